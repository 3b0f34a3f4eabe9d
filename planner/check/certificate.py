"""Checks of the certificate (theta, throughput, cost, bound, gap) and of the changes.

Every island of the plan is kept, moved or started, and the GPUs add up. If the problem has running
islands, kept ones have the same class and nodes, and moved ones the same class and other nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from ..plan import Changes, Group, Island
from ..problem import Objective, RunningIsland
from .index import TOLERANCE, PlanIndex

ABSOLUTE = 1e-8
"""Absolute slack of the gap, a small difference of two rounded numbers."""


def check_certificate(index: PlanIndex) -> Iterator[str]:
    """Check the arithmetic of the certificate."""
    plan, problem = index.plan, index.problem
    if plan.objective is not problem.objective:
        yield f"objective: {plan.objective} stated, the problem asks for {problem.objective}"
    strategy = problem.solver.strategy
    if plan.strategy != strategy:
        yield f"strategy: {plan.strategy!r} stated, the problem asks for {strategy!r}"
    if not plan.theta > 0:
        yield f"theta: {plan.theta:g} is not larger than 0"
    yield from _proof(index)
    least = problem.min_headroom
    if least is None and problem.objective is Objective.COST:
        least = 1.0
    if least is not None and plan.theta < least * (1 - TOLERANCE):
        yield f"theta: {plan.theta:.9g} is below minHeadroom, {least:g}"
    throughput = plan.theta * sum(_served(index, name) for name in index.models)
    if not math.isclose(plan.throughput, throughput, rel_tol=TOLERANCE):
        yield f"throughput: {plan.throughput:.9g} req/s stated, theta gives {throughput:.9g}"


def _proof(index: PlanIndex) -> Iterator[str]:
    """Check bound and gap: of the cost if it is minimised, else of theta."""
    plan, proof = index.plan, index.plan.certificate
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
    most = index.problem.solver.gap
    if proof.complete and gap > most + ABSOLUTE:
        yield f"gap: {gap:.9g} exceeds {most:g}, although the search is complete"
    if not proof.complete and not proof.reason:
        yield "reason: empty, although the search is not complete"


def _served(index: PlanIndex, model: str) -> float:
    """Return the requests per second of a model with a route, at theta = 1."""
    routed = {route.range for route in index.plan.routes if route.model == model}
    demand = index.models[model]
    shares = zip(demand.ranges, index.shares[model], strict=True)
    return index.problem.weight(demand) * sum(share for span, share in shares if span in routed)


def check_changes(index: PlanIndex) -> Iterator[str]:
    """Check the islands of the plan, then the running ones."""
    changes, running = index.plan.changes, {item.name: item for item in index.problem.running}
    if changes is None:
        if running:
            yield f"changes: missing, although {len(running)} islands run"
        return
    islands = {island.name: island for island in index.plan.islands}
    yield from _check_planned(index, changes, islands)
    if running:
        yield from _check_running(changes, running)
        for name, now in running.items():
            if name in islands:
                yield from _check_island(index, changes, islands[name], now)


def _check_planned(index: PlanIndex, changes: Changes, islands: dict[str, Island]) -> Iterator[str]:
    stated = Counter((*changes.kept, *changes.moved, *changes.started))
    for name, times in stated.items():
        if name not in islands:
            yield f"changes: {name!r} is kept, moved or started, but is no island of the plan"
        elif times > 1:
            yield f"changes: {name!r} stands {times} times among kept, moved and started"
    for name in islands:
        if name not in stated:
            yield f"changes: island {name!r} is neither kept, moved nor started"
    for name in sorted({*changes.stopped} & {*changes.kept, *changes.moved}):
        yield f"changes.stopped: {name!r} is also kept or moved"
    for name in sorted(({*changes.stopped} & {*islands}) - {*stated}):
        yield f"changes.stopped: {name!r} is an island of the plan"
    gpus = sum(_gpus(index, islands.get(name)) for name in (*changes.started, *changes.moved))
    if gpus != changes.moved_gpus:
        yield f"changes.movedGpus: {changes.moved_gpus} stated, islands that start or move: {gpus}"


def _gpus(index: PlanIndex, island: Island | None) -> int:
    group = index.groups.get(island.group) if island else None
    return group.gpus if group else 0


def _check_running(changes: Changes, running: dict[str, RunningIsland]) -> Iterator[str]:
    stated = Counter((*changes.kept, *changes.moved, *changes.stopped))
    for name in running:
        if stated[name] != 1:
            yield (
                f"changes: {name!r} runs and stands {stated[name]} times among kept, moved and "
                "stopped; each island stands there once"
            )
    for name in sorted({*stated} - {*running}):
        yield f"changes: {name!r} is kept, moved or stopped, but does not run"


def _check_island(
    index: PlanIndex, changes: Changes, island: Island, now: RunningIsland
) -> Iterator[str]:
    """Check an island of the plan that has the name of a running one."""
    group = index.groups.get(island.group)
    if group is None:
        return  # ``structure`` reports it
    place, same = f"changes[{island.name}]", _signature(group) == _running_signature(now)
    words = f"runs as {_describe_running(now)}"
    where = not now.nodes or sorted(island.nodes) == sorted(now.nodes)
    if island.name in changes.kept:
        if not same:
            yield f"{place}: kept, but {words} and is planned as {_describe_planned(group)}"
        if not where:
            here, there = ", ".join(now.nodes), ", ".join(island.nodes)
            yield f"{place}: kept, but runs on {here} and is planned on {there}"
    elif island.name in changes.moved:
        if not same:
            yield f"{place}: moved, but {words}, planned as {_describe_planned(group)}"
        if where and now.nodes:
            yield f"{place}: moved, but stays on {', '.join(now.nodes)}"
    elif same and where:
        yield f"{place}: stopped and started as it is; it is kept"


def _signature(group: Group) -> tuple[object, ...]:
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    return group.model, group.phase, group.parallelism, parts


def _running_signature(now: RunningIsland) -> tuple[object, ...]:
    return now.model, now.phase, now.parallelism, now.parts


def _describe_running(now: RunningIsland) -> str:
    parts = " + ".join(f"{gpus} of {pool}" for pool, gpus in now.parts)
    return f"{now.phase} of {now.model} on {parts} as {now.parallelism}"


def _describe_planned(group: Group) -> str:
    parts = " + ".join(f"{part.gpus} of {part.pool}" for part in group.sections)
    return f"{group.phase} of {group.model} on {parts} as {group.parallelism}"
