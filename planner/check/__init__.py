"""The independent judgement of a plan; ``checker.py`` runs the checks of all subjects.

Import: ``checker.check_plan``, ``checker.run_checks`` and ``checker.check_document``.
Never: import what builds plans (templates, milp, layout, strategies, capacity rows). Arrays of the
builder are computed again by plain loops over lengths, islands and nodes.
"""
