"""Traffic: turn the counts of a window into a workload with intervals.

Import: ``window`` (what was counted), ``estimate`` (the demand), ``problem`` (the demand as a
problem).
Never: read Prometheus, choose islands, or drop a length range without traffic.
"""
