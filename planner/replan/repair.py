"""Remove islands on lost nodes from the table at once and renormalise the rest.

Needs the table only: no templates, no solver, nothing that could fail or take time. A better split
of the rest is left to the next decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..layout.weights import apportion
from ..plan import Group, Pair, Plan, Route
from ..problem import Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class Unrepairable:
    """Why the last good table stays: a phase of ``model`` has no island left."""

    model: str
    message: str


@dataclass(frozen=True)
class _Survivors:
    """Groups that still have islands; ``remaining``: the share of islands that each still has."""

    plan: Plan
    groups: dict[str, Group]
    remaining: dict[str, float]

    def weight(self, pair: Pair) -> float:
        """Return the pair's weight times what remains of both groups (a mixed group once)."""
        if pair.prefill not in self.groups or pair.decode not in self.groups:
            return 0.0
        sides = {pair.prefill, pair.decode}
        return pair.weight * float(np.prod([self.remaining[name] for name in sides]))


def repair(plan: Plan, lost: AbstractSet[str], *, sure: bool = False) -> Plan | Unrepairable:
    """Return the plan without the lost islands; the plan itself if it has none of them.

    A pair's weight falls with the islands that its groups lost. A range that lost all pairs goes to
    groups that serve ranges at least as long, else to any of the model: an engine may refuse a
    request there, but a lost island certainly does. Theta and rates stay until ``restate``.

    ``sure``: return no table in which an engine may refuse requests. For islands that leave on
    purpose and could as well stay.
    """
    if not any(island.name in lost for island in plan.islands):
        return plan
    groups, remaining = {}, {}
    all_members = plan.members()
    for group in plan.groups:
        members = all_members[group.name]
        if alive := sum(member not in lost for member in members):
            groups[group.name] = replace(group, islands=alive)
            remaining[group.name] = alive / len(members)
    survivors = _Survivors(plan, groups, remaining)
    for model in sorted({group.model for group in plan.groups}):
        if not any(_possible_pairs(survivors, model)):
            return Unrepairable(
                model, f"{model}: no prefill island can reach a decode island; the table stays"
            )
    for route in plan.routes if sure else ():
        if route.share and not _surely_served(survivors, route):
            where = f"{route.model} [{route.range.min}, {route.range.max})"
            return Unrepairable(route.model, f"{where}: no remaining group surely serves it")
    return replace(
        plan,
        groups=tuple(survivors.groups.values()),
        islands=tuple(island for island in plan.islands if island.name not in lost),
        routes=tuple(_rerouted(survivors, route) for route in plan.routes),
        changes=None,
        interval=None,
    )


def _rerouted(survivors: _Survivors, route: Route) -> Route:
    weights = np.array([survivors.weight(pair) for pair in route.pairs])
    if weights.any():
        return replace(route, pairs=_weighted(route.pairs, weights))
    able = _able(survivors, route)
    possible = list(_possible_pairs(survivors, route.model))
    pairs = [p for p in possible if {p.prefill, p.decode} <= able] or possible
    return replace(route, pairs=_weighted(pairs, np.array([float(p.weight) for p in pairs])))


def _surely_served(survivors: _Survivors, route: Route) -> bool:
    """Return whether a remaining group served the range or longer ones."""
    able = _able(survivors, route)
    return any(survivors.weight(pair) for pair in route.pairs) or any(
        {p.prefill, p.decode} <= able for p in _possible_pairs(survivors, route.model)
    )


def _weighted(pairs: Sequence[Pair], weights: FloatArray) -> tuple[Pair, ...]:
    shares = apportion(weights).tolist()
    return tuple(
        replace(pair, weight=share) for pair, share in zip(pairs, shares, strict=True) if share
    )


def _able(survivors: _Survivors, route: Route) -> set[str]:
    """Return the remaining groups that have a route at least as long."""
    return {
        name
        for r in survivors.plan.routes
        if r.model == route.model and r.range.max >= route.range.max
        for pair in r.pairs
        for name in (pair.prefill, pair.decode)
        if name in survivors.groups
    }


def _possible_pairs(survivors: _Survivors, model: str) -> Iterator[Pair]:
    """Yield pairs of groups that can reach each other, weighted by the islands on both sides.

    Groups of one domain class, or of classes between which the table already sends KV caches.
    """
    groups = [group for group in survivors.groups.values() if group.model == model]
    classes = {group.name: group.domain_class for group in survivors.plan.groups}
    crossed = {
        (classes[pair.prefill], classes[pair.decode])
        for route in survivors.plan.routes
        if route.model == model
        for pair in route.pairs
    }
    for group in groups:
        if group.phase is Phase.MIXED:
            yield Pair(group.name, group.name, group.islands**2)
        for other in groups if group.phase is Phase.PREFILL else ():
            ends = group.domain_class, other.domain_class
            if other.phase is Phase.DECODE and (ends[0] == ends[1] or ends in crossed):
                yield Pair(group.name, other.name, group.islands * other.islands)
