"""Do theta, throughput, cost, bound and gap agree with each other and with what was asked?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.problem import Objective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts

ABSOLUTE = 1e-8
"""Slack of the gap itself, which is a small difference of two rounded numbers."""


def check(facts: Facts) -> Iterator[str]:
    """The arithmetic of the certificate."""
    plan, problem = facts.plan, facts.problem
    if plan.objective is not problem.objective:
        yield f"objective: {plan.objective} stated, the problem asks for {problem.objective}"
    asked = problem.solver.strategy
    if plan.strategy != asked:
        yield f"strategy: {plan.strategy!r} stated, the problem asks for {asked!r}"
    if not plan.theta > 0:
        yield f"theta: {plan.theta:g} is not larger than 0"
    yield from _proof(facts)
    least = problem.min_headroom
    if least is None and problem.objective is Objective.COST:
        least = 1.0
    if least is not None and plan.theta < least * (1 - TOLERANCE):
        yield f"theta: {plan.theta:.9g} is below minHeadroom, {least:g}"
    throughput = plan.theta * sum(_served(facts, name) for name in facts.models)
    if not math.isclose(plan.throughput, throughput, rel_tol=TOLERANCE):
        yield f"throughput: {plan.throughput:.9g} req/s stated, theta gives {throughput:.9g}"


def _proof(facts: Facts) -> Iterator[str]:
    """Bound and gap, on the cost where that was asked for, else on theta."""
    plan, proof = facts.plan, facts.plan.certificate
    if plan.objective is Objective.COST:
        cost = float(plan.cost_per_hour)
        if proof.bound > cost * (1 + ABSOLUTE):
            yield f"costBound: {proof.bound:.9g} is above the cost, {cost:.9g}"
        gap, claims = (cost - proof.bound) / cost if cost > 0 else 0.0, "costBound and costPerHour"
    else:
        if proof.bound < plan.theta:
            yield f"bound: {proof.bound:.9g} is below theta, {plan.theta:.9g}"
        gap = (proof.bound - plan.theta) / proof.bound if proof.bound > 0 else math.inf
        claims = "bound and theta"
    if abs(gap - proof.gap) > ABSOLUTE:
        yield f"gap: {proof.gap:.9g} stated, {claims} give {gap:.9g}"
    most = facts.problem.solver.gap
    if proof.complete and gap > most + ABSOLUTE:
        yield f"gap: {gap:.9g} exceeds {most:g}, although the search is complete"
    if not proof.complete and not proof.reason:
        yield "reason: empty, although the search is not complete"


def _served(facts: Facts, model: str) -> float:
    """Requests per second of a model that have a route, at theta = 1."""
    routed = {route.range for route in facts.plan.routes if route.model == model}
    demand = facts.models[model]
    shares = zip(demand.ranges, facts.shares[model], strict=True)
    return facts.problem.weight(demand) * sum(share for span, share in shares if span in routed)
