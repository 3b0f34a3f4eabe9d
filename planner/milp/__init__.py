"""The mixed-integer program: variables, constraints, HiGHS, Benders decomposition.

Import: ``build.Program``, ``benders`` and ``highs``.
Never: name islands or nodes; a solution is a vector.
"""
