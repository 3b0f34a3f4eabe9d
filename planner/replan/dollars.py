"""What a change saves, and what it costs, in dollars.

saved = (cost of the deployed islands now - cost of the new plan) x horizon
lost  = sum over islands that change  GPUs x price x seconds out of service
"""

from __future__ import annotations

from collections.abc import Mapping

from ..plan import Plan
from ..problem import PlanningProblem
from ..table.plan_of_table import accounted
from .rollout import island_changes
from .types import HOUR, ChangeCost, Limits, RoleSwitch


def change_cost(
    old: Plan,
    new: Plan,
    problem: PlanningProblem,
    limits: Limits,
    switch: Mapping[str, RoleSwitch],
) -> ChangeCost:
    """Compare two plans at the prices of the problem."""
    change = island_changes(old, new)
    price = {pool.name: float(pool.price_per_gpu_hour) / HOUR for pool in problem.pools}
    groups = {group.name: group for group in new.groups}
    lost = 0.0
    for island in new.islands:
        group = groups[island.group]
        online = island.name in change.flipped and switch.get(group.model) is RoleSwitch.ONLINE
        if island.name in change.flipped | change.moved:
            dollars = sum(part.gpus * price[part.pool] for part in group.sections)  # per second
            lost += dollars * (limits.online if online else limits.restart)
    now, then = accounted(old, problem).cost_per_hour, accounted(new, problem).cost_per_hour
    return ChangeCost(float(now), float(then), lost)
