"""Accelerators, models and efficiencies: data with unit, source and date.

Import: ``accelerators``, ``architectures``, ``efficiency``, ``precision``.
Never: hold a figure in code; figures stand in ``data/*.yaml``.
"""
