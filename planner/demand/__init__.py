"""Live demand: from requests counted in buckets to the workload that the plan should be made for.

Pure: figures of a window in, an estimate with its interval out, every fault as a value. Where they
come from is the operator's concern (``archipelago.operator.scraped``); what follows from them is
re-planning's. The statistics and the choices are explained in docs/designs/0008-live-demand.md.
"""
