"""From a solution vector to a plan: counts become rates, weights, nodes and routes.

Import: ``assemble`` for the whole way.
Never: change how many islands there are.
"""
