"""Length distributions, the ranges that they are cut into, traces.

Import: ``lengths``, ``ranges``, ``histogram``, ``traces``.
Never: know about hardware.
"""
