"""Fits of the roofline's efficiencies and overheads to measurements.

A *bench* is one deployment with its measured times; a *parameter* is what a fit may vary, with a
prior; ``fit_engine`` finds the values that explain the benches of one (accelerator, engine).
"""
