"""The smallest change of one kind that makes a problem feasible, each by its own solves.

A kind is tried at its most generous first; where that does not help it is not offered. Then the
smallest sufficient value is bracketed by doubling and found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from archipelago.planner.packing import LARGEST_ISLAND
from archipelago.planner.plan import Relaxation
from archipelago.planner.program import THETA, build_program, served_ranges
from archipelago.planner.solve import Effort, question, solve
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from archipelago.planner.problem import ModelDemand, PlanningProblem, Pool

MILLISECOND = 1e-3
PRECISION = 0.01
"""Latency relaxations are found to 1 % or 1 ms, whichever is coarser."""
EFFORT = Effort(gap=5e-3, time_limit=5.0, nodes=2_000)
MOST_GPUS = 16 * LARGEST_ISLAND
"""More GPUs than this in one pool are no small change."""

Change: TypeAlias = Callable[[int], "PlanningProblem"]


def relaxations(problem: PlanningProblem) -> tuple[Relaxation, ...]:
    """One smallest relaxation for every kind that helps, in a fixed order."""
    return tuple(offer for offer in _offers(problem) if offer is not None)


def _offers(problem: PlanningProblem) -> Iterator[Relaxation | None]:
    yield _latency(problem, "ttft")
    yield _latency(problem, "tpot")
    for pool in sorted(problem.pools, key=lambda p: p.name):
        yield _gpus(problem, pool)
    yield _budget(problem)
    yield _rate(problem)


def best_theta(problem: PlanningProblem) -> float:
    """Theta of a quick solve; 0 where the problem is infeasible."""
    catalogue = build_catalogue(problem)
    for model in problem.models:
        served = served_ranges(catalogue.templates, model.name, len(model.ranges))
        probability = model.lengths.moments(model.ranges).probability
        if 1.0 - float(probability[served].sum()) > problem.max_unservable:
            return 0.0
    program = build_program(problem, catalogue.templates)
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    solution = solve(program, question(program, cost), EFFORT)
    return 0.0 if solution is None else float(solution.values[THETA]) * program.scale


def _feasible(problem: PlanningProblem) -> bool:
    theta = best_theta(problem)
    return theta > 0 and theta >= (problem.min_headroom or 0.0)


def _smallest(change: Change, start: int, most: int, step: int = 1) -> int | None:
    """Smallest value in start, start + step ... that is feasible, None if ``most`` is not."""
    if start > most or not _feasible(change(most)):
        return None
    low, high = start - step, start
    while high < most and not _feasible(change(high)):
        low, high = high, min(most, high + 2 * (high - low))
    while high - low > max(step, int(PRECISION * high) if step == 1 else step):
        middle = low + (high - low) // (2 * step) * step
        low, high = (low, middle) if _feasible(change(middle)) else (middle, high)
    return high


def _latency(problem: PlanningProblem, kind: str) -> Relaxation | None:
    stated = [m for m in problem.models if getattr(m.targets, kind) is not None]
    if not stated:
        return None
    tightest = min(stated, key=lambda m: (getattr(m.targets, kind), m.name))
    now = round(getattr(tightest.targets, kind) / MILLISECOND)

    def change(milliseconds: int) -> PlanningProblem:
        return replace(
            problem,
            models=tuple(
                _at_least(model, kind, milliseconds * MILLISECOND) for model in problem.models
            ),
        )

    value = _smallest(change, now + 1, now * 1024)
    if value is None:
        return None
    text = f"{kind.upper()} {value} ms instead of {now} ms"
    models = tuple(sorted(m.name for m in stated if getattr(m.targets, kind) < value / 1e3))
    return Relaxation(kind, float(value), "ms", models, text)


def _at_least(model: ModelDemand, kind: str, seconds: float) -> ModelDemand:
    target = getattr(model.targets, kind)
    if target is None or target >= seconds:
        return model
    return replace(model, targets=replace(model.targets, **{kind: seconds}))


def _gpus(problem: PlanningProblem, pool: Pool) -> Relaxation | None:
    step = pool.gpus_per_node or 1

    def change(count: int) -> PlanningProblem:
        grown = replace(pool, count=count, domains=_grown_domains(pool, count))
        return replace(
            problem, pools=tuple(grown if p.name == pool.name else p for p in problem.pools)
        )

    most = pool.count + max(MOST_GPUS, step)
    value = _smallest(change, pool.count + step, most - (most - pool.count) % step, step)
    if value is None:
        return None
    more = value - pool.count
    text = f"{more} more GPUs in pool {pool.name} ({value} instead of {pool.count})"
    return Relaxation(f"gpus:{pool.name}", float(more), "GPUs", _names(problem), text)


def _grown_domains(pool: Pool, count: int) -> tuple:
    if not pool.domains or pool.gpus_per_node is None:
        return pool.domains
    more = (count - pool.count) // pool.gpus_per_node
    return (replace(pool.domains[0], nodes=pool.domains[0].nodes + more), *pool.domains[1:])


def _budget(problem: PlanningProblem) -> Relaxation | None:
    if problem.budget_per_hour is None:
        return None
    cost = cheapest(replace(problem, budget_per_hour=None))
    if cost is None or cost <= problem.budget_per_hour:
        return None
    text = f"a budget of ${cost}/h instead of ${problem.budget_per_hour}/h"
    return Relaxation("budget", float(cost), "$/h", _names(problem), text)


def cheapest(problem: PlanningProblem) -> Decimal | None:
    """Smallest cost per hour of a layout with the headroom asked for [$/h], in cents."""
    catalogue = build_catalogue(problem)
    program = build_program(problem, catalogue.templates)
    price = {pool.name: float(pool.price_per_gpu_hour) for pool in problem.pools}
    cost = np.zeros(program.columns)
    cost[1 : 1 + len(program.templates)] = [price[t.pool] * t.gpus for t in program.templates]
    asked = question(program, cost)
    asked.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
    solution = solve(program, asked, EFFORT)
    if solution is None:
        return None
    return Decimal(math.ceil(solution.objective * 100 - 1e-6)) / 100


def _rate(problem: PlanningProblem) -> Relaxation | None:
    if problem.min_headroom is None:
        return None
    theta = best_theta(problem)
    if theta <= 0 or theta >= problem.min_headroom:
        return None
    share = theta / problem.min_headroom
    text = f"{share:.1%} of the stated rates"
    return Relaxation("rate", share, "share of the stated rates", _names(problem), text)


def _names(problem: PlanningProblem) -> tuple[str, ...]:
    return tuple(sorted(model.name for model in problem.models))
