"""Explanations of a plan: what binds, what would change it, where its numbers come from.

Import: ``why``, ``sensitivity``, ``diff``, ``what_if`` and ``provenance``.
Never: change a plan.
"""
