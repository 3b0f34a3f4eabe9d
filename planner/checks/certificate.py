"""Do theta, throughput, bound and gap agree with each other and with what was asked?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from archipelago.planner.checks.facts import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts

ABSOLUTE = 1e-8
"""Slack of the gap itself, which is a small difference of two rounded numbers."""


def check(facts: Facts) -> Iterator[str]:
    """The arithmetic of the certificate."""
    plan, problem, proof = facts.plan, facts.problem, facts.plan.certificate
    if plan.objective is not problem.objective:
        yield f"objective: {plan.objective} stated, the problem asks for {problem.objective}"
    asked = problem.solver.strategy
    if plan.strategy != asked:
        yield f"strategy: {plan.strategy!r} stated, the problem asks for {asked!r}"
    if not plan.theta > 0:
        yield f"theta: {plan.theta:g} is not larger than 0"
    if proof.bound < plan.theta:
        yield f"bound: {proof.bound:.9g} is below theta, {plan.theta:.9g}"
    gap = (proof.bound - plan.theta) / proof.bound if proof.bound > 0 else math.inf
    if abs(gap - proof.gap) > ABSOLUTE:
        yield f"gap: {proof.gap:.9g} stated, bound and theta give {gap:.9g}"
    if proof.complete and gap > problem.solver.gap + ABSOLUTE:
        yield f"gap: {gap:.9g} exceeds {problem.solver.gap:g}, although the search is complete"
    if not proof.complete and not proof.reason:
        yield "reason: empty, although the search is not complete"
    if problem.min_headroom is not None and plan.theta < problem.min_headroom * (1 - TOLERANCE):
        yield f"theta: {plan.theta:.9g} is below minHeadroom, {problem.min_headroom:g}"
    throughput = plan.theta * sum(_served(facts, name) for name in facts.models)
    if not math.isclose(plan.throughput, throughput, rel_tol=TOLERANCE):
        yield f"throughput: {plan.throughput:.9g} req/s stated, theta gives {throughput:.9g}"


def _served(facts: Facts, model: str) -> float:
    """Requests per second of a model that have a route, at theta = 1."""
    routed = {route.range for route in facts.plan.routes if route.model == model}
    demand = facts.models[model]
    shares = zip(demand.ranges, facts.shares[model], strict=True)
    return facts.problem.weight(demand) * sum(share for span, share in shares if span in routed)
