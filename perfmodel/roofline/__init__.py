"""The roofline: operators, layers, stages, islands, pipelines of several pools.

Import: ``island`` and ``pipeline`` for times, ``parallelism`` and ``settings`` for their inputs.
Never: fit anything; efficiencies come from ``catalogue`` and ``calibration``.
"""
