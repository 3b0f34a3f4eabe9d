"""The independent checks of a plan, one subject per file; ``checker.py`` runs them all.

Nothing here imports the planner's templates, program, packing, assignment, routes, evaluation or
the performance model's capacity rows: what the builder computes with arrays is computed again with
plain loops over lengths, islands and nodes, from the problem and the model of times alone.
"""
