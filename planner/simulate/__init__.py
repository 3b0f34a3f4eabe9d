"""Simulation of a plan, request by request.

Import: ``run.simulate``.
Never: be used to decide a plan; it is a second opinion.
"""
