"""Islands on lost nodes leave the table at once; what is left is renormalised.

Needs the table alone: no benchmark, no solver, nothing that could fail or take time. A better
split of the rest is the next decision's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.plan import Pair, Plan, Route
from archipelago.planner.problem import Phase
from archipelago.planner.routes import per_million

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Group


@dataclass(frozen=True)
class Unrepairable:
    """A phase of a model has no island left, so that the last good table stays."""

    model: str
    message: str


@dataclass(frozen=True)
class _Survivors:
    """Groups with islands left; ``stays``: the share of each group's islands that is left."""

    plan: Plan
    groups: dict[str, Group]
    stays: dict[str, float]

    def weight(self, pair: Pair) -> float:
        """What a pair is worth: its share, and how much of both groups is left.

        A mixed group is on both sides of its pair and counts once.
        """
        if pair.prefill not in self.groups or pair.decode not in self.groups:
            return 0.0
        sides = {pair.prefill, pair.decode}
        return pair.weight * float(np.prod([self.stays[name] for name in sides]))


def repair(plan: Plan, lost: AbstractSet[str], *, sure: bool = False) -> Plan | Unrepairable:
    """The plan without the lost islands; the plan itself where it has none of them.

    A pair's weight falls with the islands that its groups lost. A range whose pairs are all gone
    goes to groups that serve ranges at least as long, if need be to any of the model: the engine
    may refuse a request there, but a lost island certainly does. Theta and rates are the old ones
    until ``weigh`` states them anew.

    ``sure``: rather no table than one in which an engine may refuse requests that there are: for
    islands that leave because somebody wants it, and that could as well stay.
    """
    if not any(island.name in lost for island in plan.islands):
        return plan
    left = _left(plan, lost)
    for model in sorted({group.model for group in plan.groups}):
        if not any(_ways(left, model)):
            return Unrepairable(
                model, f"{model}: no way from prefill to decode has an island left; table kept"
            )
    if sure and (bare := next((r for r in plan.routes if r.share and not _held(left, r)), None)):
        where = f"[{bare.range.min}, {bare.range.max})"
        return Unrepairable(bare.model, f"{bare.model} {where}: nobody left who surely holds it")
    return replace(
        plan,
        groups=tuple(left.groups.values()),
        islands=tuple(island for island in plan.islands if island.name not in lost),
        routes=tuple(_rerouted(left, route) for route in plan.routes),
        changes=None,
        interval=None,
    )


def _left(plan: Plan, lost: AbstractSet[str]) -> _Survivors:
    groups, stays = {}, {}
    for name, members in plan.members().items():
        group = next(g for g in plan.groups if g.name == name)
        if alive := sum(member not in lost for member in members):
            groups[name] = replace(group, islands=alive)
            stays[name] = alive / len(members)
    return _Survivors(plan, groups, stays)


def _rerouted(left: _Survivors, route: Route) -> Route:
    weights = np.array([left.weight(pair) for pair in route.pairs])
    if weights.any():
        return replace(route, pairs=_pairs(route.pairs, weights))
    able = _able(left, route)
    ways = list(_ways(left, route.model))
    pairs = [p for p in ways if {p.prefill, p.decode} <= able] or ways
    return replace(route, pairs=_pairs(pairs, np.array([float(p.weight) for p in pairs])))


def _held(left: _Survivors, route: Route) -> bool:
    """Whether somebody is left who served the range, or longer ones."""
    able = _able(left, route)
    served = any(left.weight(pair) for pair in route.pairs)
    return served or any({p.prefill, p.decode} <= able for p in _ways(left, route.model))


def _pairs(pairs: list[Pair] | tuple[Pair, ...], weights: FloatArray) -> tuple[Pair, ...]:
    shares = per_million(weights).tolist()
    return tuple(
        replace(pair, weight=share) for pair, share in zip(pairs, shares, strict=True) if share
    )


def _able(left: _Survivors, route: Route) -> set[str]:
    """Groups that the table sends requests at least as long to, and that still stand."""
    longer = [
        r for r in left.plan.routes if r.model == route.model and r.range.max >= route.range.max
    ]
    return {
        name
        for r in longer
        for pair in r.pairs
        for name in (pair.prefill, pair.decode)
        if name in left.groups
    }


def _ways(left: _Survivors, model: str) -> Iterator[Pair]:
    """Pairs of groups that can reach each other, weighted by the islands on both sides.

    Groups of one domain class, or of classes that the table already sends caches between.
    """
    mine = [group for group in left.groups.values() if group.model == model]
    place = {group.name: group.domain_class for group in left.plan.groups}
    crossed = {
        (place[pair.prefill], place[pair.decode])
        for route in left.plan.routes
        if route.model == model
        for pair in route.pairs
    }
    for one in mine:
        if one.phase is Phase.MIXED:
            yield Pair(one.name, one.name, one.islands**2)
        for other in mine if one.phase is Phase.PREFILL else ():
            way = one.domain_class, other.domain_class
            if other.phase is Phase.DECODE and (way[0] == way[1] or way in crossed):
                yield Pair(one.name, other.name, one.islands * other.islands)
