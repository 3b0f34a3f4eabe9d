"""Is a plan that costs less worth its changes? Both in dollars, within the horizon.

saved = (what the islands cost now - what they would cost) x horizon
lost  = sum over islands that change  GPUs x price x seconds out of service
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.checker import run_checks
from archipelago.planner.plan import Certificate
from archipelago.planner.problem import Objective
from archipelago.planner.published import accounted
from archipelago.planner.replan.change import change_of
from archipelago.planner.replan.facts import HOUR, RoleSwitch
from archipelago.planner.replan.restate import restated
from archipelago.planner.replan.standing import stand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.plan import Group, Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.facts import Limits

KEPT = "the islands as they stand: a cheaper plan would not pay for its changes"
"""Why a plan of least cost is not the cheapest one."""


@dataclass(frozen=True)
class Bill:
    """What a change of islands saves [$/h], and what those that change miss meanwhile [$]."""

    saves: float
    lost: float

    def pays(self, horizon: float) -> bool:
        """Whether the change is worth it within so many seconds."""
        return self.saves * horizon / HOUR > self.lost

    def said(self, horizon: float) -> str:
        """In words, with the figures."""
        within = self.saves * horizon / HOUR
        verb = "pays" if self.pays(horizon) else "does not pay"
        return (
            f"${self.saves:.2f}/h less, ${within:.2f} within {horizon:.0f} s, {verb} for "
            f"${self.lost:.2f} of GPUs out of service"
        )


def bill(
    old: Plan,
    new: Plan,
    problem: PlanningProblem,
    limits: Limits,
    switch: Mapping[str, RoleSwitch],
) -> Bill:
    """Of the change from one table to another, at the prices of the problem."""
    change = change_of(old, new)
    price = {pool.name: float(pool.price_per_gpu_hour) / HOUR for pool in problem.pools}
    groups = {group.name: group for group in new.groups}
    lost = 0.0
    for island in new.islands:
        group = groups[island.group]
        online = island.name in change.flipped and switch.get(group.model) is RoleSwitch.ONLINE
        if island.name in change.flipped | change.moved:
            lost += _price(group, price) * (limits.online if online else limits.restart)
    now, then = accounted(old, problem).cost_per_hour, accounted(new, problem).cost_per_hour
    return Bill(float(now - then), lost)


def _price(group: Group, price: Mapping[str, float]) -> float:
    """Of one island [$/s]."""
    return sum(part.gpus * price[part.pool] for part in group.sections)


def standing_answer(old: Plan, best: Plan, problem: PlanningProblem) -> Plan | None:
    """The islands as they stand as an answer to the problem; None where they are none.

    ``best``: the plan of least cost, whose proof says how far they are from it.
    """
    pools = {pool.name for pool in problem.pools}
    if any(part.pool not in pools for group in old.groups for part in group.sections):
        return None
    bare = replace(problem, running=())
    plan = accounted(restated(stand(bare, old), np.finfo(np.float64).max), bare)
    cost = float(plan.cost_per_hour)
    gap = (cost - best.certificate.bound) / cost if cost else 0.0
    proof = Certificate(best.certificate.bound, gap, complete=False, reason=KEPT)
    plan = replace(plan, objective=Objective.COST, certificate=proof, strategy=best.strategy)
    found = [line for item in run_checks(bare, plan) for line in item.findings]
    return plan if not found and plan.theta >= (problem.min_headroom or 0.0) else None
