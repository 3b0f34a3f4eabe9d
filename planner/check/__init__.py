"""The independent judgement of a plan; ``checker.py`` runs the checks of all subjects.

Import: ``check_plan``, ``run_checks``, ``check_stored`` and ``check_document`` of ``checker``.
Never: import what builds plans (templates, milp, layout, strategies, capacity rows). Arrays of the
builder are computed again by plain loops over lengths, islands and nodes.
"""
