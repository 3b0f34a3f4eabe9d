"""Checks of the certificate (theta, throughput, cost, bound, gap) and of the changes.

Every island of the plan is kept, moved or started, and the GPUs add up. If the problem has running
islands, kept ones have the same class and nodes, and moved ones the same class and other nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ..plan import Changes, Island, Unfinished
from ..problem import Objective, RunningIsland
from .index import TOLERANCE, PlanIndex, misstated

ABSOLUTE = 1e-8
"""Absolute slack of the gap, a small difference of two rounded numbers."""


def check_certificate(index: PlanIndex) -> Iterator[str]:
    """Check objective, strategy, theta and throughput, then bound and gap.

    Bound and gap are of the cost if it is minimised, else of theta.
    """
    plan, problem, proof = index.plan, index.problem, index.plan.certificate
    claim, strategy = "the problem asks for", problem.solver.strategy
    yield from misstated("objective", plan.objective, problem.objective, claim)
    yield from misstated("strategy", plan.strategy, strategy, claim)
    if not plan.theta > 0:
        yield f"theta: {plan.theta:g} is not larger than 0"
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
    if proof.complete and gap > problem.solver.gap + ABSOLUTE:
        yield f"gap: {gap:.9g} exceeds {problem.solver.gap:g}, although the search is complete"
    if not proof.complete and proof.reason not in {*Unfinished}:
        known = ", ".join(Unfinished)
        yield f"reason: {proof.reason!r}, although the search is not complete; known are {known}"
    if priced := proof.priced:
        looser = proof.bound - priced.bound
        looser = -looser if plan.objective is Objective.COST else looser
        if looser > TOLERANCE * priced.bound:
            yield f"pricedBound: {priced.bound:.9g} is tighter than the bound, {proof.bound:.9g}"
    least = problem.min_headroom
    if least is None and problem.objective is Objective.COST:
        least = 1.0
    if least is not None and plan.theta < least * (1 - TOLERANCE):
        yield f"theta: {plan.theta:.9g} is below minHeadroom, {least:g}"
    routed = {(route.model, route.range) for route in plan.routes}
    served = sum(
        problem.weight(model) * share
        for name, model in index.models.items()
        for span, share in zip(model.ranges, index.shares[name], strict=True)
        if (name, span) in routed
    )
    yield from misstated(
        "throughput", plan.throughput, plan.theta * served, "theta gives", unit=" req/s"
    )


def check_changes(index: PlanIndex) -> Iterator[str]:
    """Check the islands of the plan, then the running ones."""
    changes, running = index.plan.changes, {item.name: item for item in index.problem.running}
    if changes is None:
        if running:
            yield f"changes: missing, although {len(running)} islands run"
        return
    islands = {island.name: island for island in index.plan.islands}
    remaining = (*changes.kept, *changes.moved)
    planned = Counter((*remaining, *changes.started))
    for name, times in planned.items():
        if name not in islands:
            yield f"changes: {name!r} is kept, moved or started, but is no island of the plan"
        elif times > 1:
            yield f"changes: {name!r} stands {times} times among kept, moved and started"
    for name in islands:
        if name not in planned:
            yield f"changes: island {name!r} is neither kept, moved nor started"
    for name in sorted({*changes.stopped} & {*remaining}):
        yield f"changes.stopped: {name!r} is also kept or moved"
    for name in sorted(({*changes.stopped} & {*islands}) - {*planned}):
        yield f"changes.stopped: {name!r} is an island of the plan"
    groups = [
        index.groups.get(islands[name].group)
        for name in (*changes.started, *changes.moved)
        if name in islands
    ]
    gpus, source = sum(group.gpus for group in groups if group), "islands that start or move:"
    yield from misstated("changes.movedGpus", changes.moved_gpus, gpus, source)
    if not running:
        return
    before = Counter((*remaining, *changes.stopped))
    for name in running:
        if before[name] != 1:
            yield (
                f"changes: {name!r} runs and stands {before[name]} times among kept, moved and "
                "stopped; each island stands there once"
            )
    for name in sorted({*before} - {*running}):
        yield f"changes: {name!r} is kept, moved or stopped, but does not run"
    for name, now in running.items():
        if name in islands:
            yield from _check_island(index, changes, islands[name], now)


def _check_island(
    index: PlanIndex, changes: Changes, island: Island, now: RunningIsland
) -> Iterator[str]:
    """Check an island of the plan that has the name of a running one."""
    group = index.groups.get(island.group)
    if group is None:
        return  # ``structure`` reports it
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    new = RunningIsland(
        island.name,
        group.model,
        group.phase,
        group.parallelism,
        parts,
        island.nodes,
        group.started,
    )
    place, same = f"changes[{island.name}]", replace(new, nodes=now.nodes) == now
    words = f"runs as {_description(now)}"
    in_place = not now.nodes or sorted(island.nodes) == sorted(now.nodes)
    if island.name in changes.kept:
        if not same:
            yield f"{place}: kept, but {words} and is planned as {_description(new)}"
        if not in_place:
            here, there = ", ".join(now.nodes), ", ".join(island.nodes)
            yield f"{place}: kept, but runs on {here} and is planned on {there}"
    elif island.name in changes.moved:
        if not same:
            yield f"{place}: moved, but {words}, planned as {_description(new)}"
        if in_place and now.nodes:
            yield f"{place}: moved, but stays on {', '.join(now.nodes)}"
    elif same and in_place:
        yield f"{place}: stopped and started as it is; it is kept"


def _description(island: RunningIsland) -> str:
    parts = " + ".join(f"{gpus} of {pool}" for pool, gpus in island.parts)
    return f"{island.phase} of {island.model} on {parts} as {island.parallelism}"
