"""Remove islands on lost nodes from the table at once and renormalise the rest.

Needs the table only: no templates, no solver, nothing that could fail or take time. A better split
of the rest is left to the next decision.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from ..plan import Plan
from ..table.reweigh import Loss, Side, Unrepairable, Way


def repair(plan: Plan, lost: AbstractSet[str], *, sure: bool = False) -> Plan | Unrepairable:
    """Return the plan without the lost islands; the plan itself if it has none of them.

    Weights follow `reweigh.Loss`. Theta and rates stay until ``restate``.

    ``sure``: return no table in which an engine may refuse requests. For islands that leave on
    purpose and could as well stay.
    """
    if not any(island.name in lost for island in plan.islands):
        return plan
    sides = {}
    for group, members in zip(plan.groups, plan.members().values(), strict=True):
        alive = sum(member not in lost for member in members)
        kind = group.model, group.phase, group.domain_class
        sides[group.name] = Side(*kind, before=len(members), after=alive)
    ways = [Way(route.model, route.range.max, route.pairs) for route in plan.routes]
    loss = Loss(sides, ways)
    if refusal := loss.refusal():
        return refusal
    for route, way in zip(plan.routes, ways, strict=True):
        if sure and route.share and not loss.surely_served(way):
            where = f"{route.model} [{route.range.min}, {route.range.max})"
            return Unrepairable(route.model, f"{where}: no remaining group surely serves it")
    return replace(
        plan,
        groups=tuple(
            replace(group, islands=sides[group.name].after)
            for group in plan.groups
            if sides[group.name].after
        ),
        islands=tuple(island for island in plan.islands if island.name not in lost),
        routes=tuple(
            replace(route, pairs=loss.rerouted(way))
            for route, way in zip(plan.routes, ways, strict=True)
        ),
        changes=None,
        interval=None,
    )
