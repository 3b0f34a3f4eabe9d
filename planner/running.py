"""From the plan that runs to what the next problem says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.planner.problem import Running

if TYPE_CHECKING:
    from archipelago.planner.plan import Group, Island, Plan


def running_of(plan: Plan) -> tuple[Running, ...]:
    """The islands of a plan as ``PlanningProblem.running`` takes them, in the order of the plan."""
    groups = {group.name: group for group in plan.groups}
    return tuple(_running(island, groups[island.group]) for island in plan.islands)


def _running(island: Island, group: Group) -> Running:
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    return Running(island.name, group.model, group.phase, group.parallelism, parts, island.nodes)
