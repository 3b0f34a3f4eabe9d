"""What each rung would reach on the observed demand, judged by one evaluator.

A candidate is made for the mean of the demand's posterior and judged on all its draws, paired with
the published table on the same draw: the interval of a gain is far narrower than the difference of
two intervals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.replan.change import change_of
from archipelago.planner.replan.facts import NO_MOVE, Limits, Reached, RoleSwitch, Rung
from archipelago.planner.replan.headroom import TAIL, load_of, mean_rates
from archipelago.planner.replan.serve import flipped, rerouted
from archipelago.planner.replan.standing import Standing, stand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Plan

CERTAIN = 1e-9
"""Gain below which another table is no better than rounding."""


@dataclass(frozen=True, eq=False)
class Scale:
    """Standing islands, the demand's mean and draws, and the published headroom on all of them."""

    standing: Standing
    mean: FloatArray  # (1, ranges) req/s
    draws: FloatArray  # (draws, ranges) req/s
    theta: float
    over: FloatArray  # (draws,) headroom of the published table

    def keep(self) -> Reached:
        """The published table."""
        unserved = load_of(self.standing).unserved(self.mean[0])
        return Reached(
            Rung.KEEP, self.theta, _low(self.over), unserved=unserved, plan=self.standing.plan
        )

    def judge(
        self,
        rung: Rung,
        plan: Plan | None,
        changed: frozenset[str] = frozenset(),
        disruption: float = 0.0,
        standing: Standing | None = None,
    ) -> Reached:
        """A candidate on the same draws; as good as keeping where there is none."""
        if plan is None:
            nothing = Reached(rung, self.theta, _low(self.over), note="no table")
            return replace(nothing, unserved=load_of(self.standing).unserved(self.mean[0]))
        load = load_of(standing or self.standing, plan)
        theta = float(load.headroom(self.mean)[0])
        each = load.headroom(self.draws)
        return Reached(
            rung,
            theta,
            _low(each),
            _gain(theta, self.theta),
            _low(np.array([_gain(new, old) for new, old in zip(each, self.over, strict=True)])),
            disruption,
            changed,
            load.unserved(self.mean[0]),
            plan=plan,
        )


def scale_of(standing: Standing, draws: FloatArray | None = None) -> Scale:
    """The published table evaluated; without draws the mean is taken as certain."""
    mean = mean_rates(standing.problem)[np.newaxis, :]
    sampled = mean if draws is None else draws
    load = load_of(standing)
    return Scale(standing, mean, sampled, float(load.headroom(mean)[0]), load.headroom(sampled))


def weigh(
    standing: Standing,
    limits: Limits,
    draws: FloatArray | None = None,
    switch: Mapping[str, RoleSwitch] | None = None,
) -> tuple[Reached, ...]:
    """Keep, reroute and flip; a rung that is no better than the one below is reported as no gain.

    ``switch``: by model, how its engine changes phase (restart where nothing is said).
    """
    scale = scale_of(standing, draws)
    keep = scale.keep()
    if np.isinf(scale.theta):
        return keep, replace(keep, rung=Rung.REROUTE), replace(keep, rung=Rung.FLIP)
    reroute = scale.judge(Rung.REROUTE, rerouted(standing))
    if reroute.theta <= keep.theta * (1 + CERTAIN) and reroute.unserved >= keep.unserved:
        reroute = replace(keep, rung=Rung.REROUTE, note="no better weights")
    found = flipped(standing, limits.flips, _worth(keep, limits))
    if found is None or not found[1]:
        return keep, reroute, replace(reroute, rung=Rung.FLIP, note="no flip is worth it")
    plan, changed = found
    cost = flip_seconds(standing, changed, limits, switch or {})
    flip = scale.judge(Rung.FLIP, plan, changed, cost)
    return keep, reroute, flip


def _worth(keep: Reached, limits: Limits) -> float:
    """The theta from which on a flip could be taken: any helps a table that is not safe."""
    return keep.theta * (1 + limits.tolerance) if keep.low >= limits.safe else 0.0


def weigh_planned(
    standing: Standing,
    plan: Plan | None,
    limits: Limits,
    draws: FloatArray | None = None,
    *,
    switch: Mapping[str, RoleSwitch] | None = None,
    published: Plan | None = None,
) -> Reached:
    """A plan of the planner (``reshape.reshaped``), judged like the other rungs.

    It is the rung that its changes are. ``published``: with the islands that get no requests, where
    the standing table is without them.
    """
    scale = scale_of(standing, draws)
    if plan is None:
        return scale.judge(Rung.RESHAPE, None)
    change = change_of(published or standing.plan, plan)
    cost = flip_seconds(standing, change.flipped, limits, switch or {})
    cost += change.gpus * limits.restart
    here = stand(standing.problem, plan)
    return scale.judge(change.rung, plan, change.flipped | change.moved, cost, here)


def with_planned(rungs: tuple[Reached, ...], planned: Reached) -> tuple[Reached, ...]:
    """The rungs with the planner's answer, which may be the better way to do what a lower one does.

    Then there is nothing that GPUs need to move for.
    """
    if planned.rung is Rung.RESHAPE:
        return (*rungs, planned)
    better = tuple(planned if _better(planned, r) else r for r in rungs)
    return (*better, replace(planned, rung=Rung.RESHAPE, plan=None, note=NO_MOVE))


def _better(planned: Reached, other: Reached) -> bool:
    """Whether it is the same rung, and sure of more."""
    return planned.rung is other.rung and planned.low > other.low * (1 + CERTAIN)


def weigh_bound(standing: Standing, bound: float) -> Reached:
    """What reshaping could reach at most, by a proven bound: nothing was planned yet."""
    theta = scale_of(standing).theta
    gain = max(_gain(bound, theta), 0.0)
    return Reached(Rung.RESHAPE, bound, bound, gain, gain, bound_only=True, note="bound only")


def flip_seconds(
    standing: Standing,
    changed: frozenset[str],
    limits: Limits,
    switch: Mapping[str, RoleSwitch],
) -> float:
    """GPU-seconds that the changed islands are out of service."""
    groups = {group.name: group for group in standing.plan.groups}
    total = 0.0
    for island in standing.plan.islands:
        if island.name in changed:
            group = groups[island.group]
            online = switch.get(group.model) is RoleSwitch.ONLINE
            total += group.gpus * (limits.online if online else limits.restart)
    return total


def _gain(new: float, old: float) -> float:
    """How much more; nothing where both know no end."""
    if not np.isfinite(old):
        return 0.0
    return new / old - 1.0 if old > 0 else float(np.inf)


def _low(values: FloatArray) -> float:
    """Lower end of the 90 % interval."""
    return float(np.quantile(values, TAIL, method="lower"))
