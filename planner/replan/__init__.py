"""Replanning: the least change that makes a published table fit the observed demand.

Import: ``candidates`` (what each level reaches), ``policy.decide``, ``rollout``, ``repair``.
Never: read a clock or the cluster; docs/designs/0007-replanning-decision.md has the reasons.
"""
