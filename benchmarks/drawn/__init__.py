"""Specs drawn at random over the whole schema, and how well the planner answers them.

The planner is never tuned on them: each month has a seed of its own.
"""
