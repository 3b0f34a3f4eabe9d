"""The front door of the planner: plan a resource, answer a re-planning request.

Import: ``plan``, ``replan`` and ``messages``; the operator's worker and the command line use
nothing else of the solver.
Never: talk to Kubernetes, wait, or keep state between two requests.
"""
