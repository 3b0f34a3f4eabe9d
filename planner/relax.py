"""The smallest change of one kind that makes a problem feasible, each by its own solves.

A kind is tried at its most generous first; where that does not help it is not offered. Then the
smallest sufficient value is bracketed by doubling and found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from archipelago.planner.errors import SolverError
from archipelago.planner.packing import LARGEST_ISLAND
from archipelago.planner.plan import Relaxation
from archipelago.planner.program import THETA, Program, build_program, served_ranges
from archipelago.planner.solve import Effort, Solution, question, solve
from archipelago.planner.templates import build_catalogue

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.deadline import Deadline
    from archipelago.planner.problem import Domain, ModelDemand, PlanningProblem, Pool
    from archipelago.planner.templates import Bench

MILLISECOND = 1e-3
PRECISION = 0.01
"""Latency relaxations are found to 1 % or 1 ms, whichever is coarser."""
EFFORT = Effort(gap=5e-3, time_limit=5.0, nodes=2_000)
ROUNDING = 1e-6
"""Cents that a solver's cost may exceed a whole cent by."""
MOST_GPUS = 16 * LARGEST_ISLAND
"""More GPUs than this in one pool are no small change."""

EVERYTHING = 1 - 1e-9
"""Share of a model's requests; what is left is a sum's rounding."""

Change: TypeAlias = Callable[[int], "PlanningProblem"]


@dataclass(frozen=True)
class _Search:
    """The problem to relax, when to stop, and benchmarks that all tries share."""

    problem: PlanningProblem
    deadline: Deadline
    bench: Bench = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """A sufficient value; not ``smallest`` where the time ran out before that was known."""

    value: int
    smallest: bool

    @property
    def hedge(self) -> str:
        """What a text says before the value."""
        return "" if self.smallest else "at most "


def relaxations(problem: PlanningProblem, deadline: Deadline) -> tuple[Relaxation, ...]:
    """One smallest relaxation for every kind that helps, in a fixed order.

    Kinds of which nothing is known when the time runs out are left out.
    """
    search = _Search(problem, deadline)
    kinds: list[Callable[[], Relaxation | None]] = [
        lambda: _rate(search),
        lambda: _budget(search),
        lambda: _latency(search, "ttft"),
        lambda: _latency(search, "tpot"),
        *(partial(_gpus, search, pool) for pool in sorted(problem.pools, key=lambda p: p.name)),
    ]
    offers = (None if deadline.passed else _known(kind) for kind in kinds)
    return tuple(offer for offer in offers if offer is not None)


def _known(kind: Callable[[], Relaxation | None]) -> Relaxation | None:
    try:
        return kind()
    except SolverError:  # not found out within the limits of time and nodes
        return None


def lost_too_much(share: float, allowed: float) -> bool:
    """Whether too many of a model's requests fit nowhere; all of them always are."""
    return share > min(allowed, EVERYTHING)


def _program(problem: PlanningProblem, search: _Search) -> Program | None:
    """The program, None where some model cannot be served enough of."""
    catalogue = build_catalogue(problem, known=search.bench, deadline=search.deadline)
    for model in problem.models:
        served = served_ranges(catalogue.templates, model.name, len(model.ranges), problem.links)
        probability = model.lengths.moments(model.ranges).probability
        if lost_too_much(1.0 - float(probability[served].sum()), problem.max_unservable):
            return None
    return build_program(problem, catalogue.templates, search.deadline)


def _optimum(
    problem: PlanningProblem, search: _Search, cost: Callable[[Program], FloatArray]
) -> Solution | None:
    """Least cost at the headroom asked for; None where that is infeasible."""
    program = _program(problem, search)
    if program is None:
        return None
    asked = question(program, cost(program))
    asked.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
    return solve(program, asked, _effort(search))


def _effort(search: _Search) -> Effort:
    return replace(EFFORT, time_limit=min(EFFORT.time_limit, search.deadline.left))


def _feasible(problem: PlanningProblem, search: _Search) -> bool:
    return _optimum(problem, search, lambda program: np.zeros(program.columns)) is not None


def _smallest(
    search: _Search, change: Change, start: int, most: int, step: int = 1
) -> _Found | None:
    """Smallest value in start, start + step ... that is feasible, None if ``most`` is not.

    None too where the time runs out before anything but ``most`` is known to be feasible: that is
    no small change.
    """
    sure = True

    def feasible(value: int) -> bool:
        nonlocal sure
        try:
            return _feasible(change(value), search)
        except SolverError:  # not found out within the limits of time and nodes
            sure = False
            return False

    if start > most or not feasible(most):
        return None
    low, high = start - step, start
    while high < most and not feasible(high):
        if search.deadline.passed:
            return None
        low, high = high, min(most, high + 2 * (high - low))
    while high - low > max(step, int(PRECISION * high) if step == 1 else step):
        if search.deadline.passed:
            return _Found(high, smallest=False)
        middle = low + (high - low) // (2 * step) * step
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return _Found(high, smallest=sure)


def _latency(search: _Search, kind: str) -> Relaxation | None:
    problem = search.problem
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

    found = _smallest(search, change, now + 1, now * 1024)
    if found is None:
        return None
    text = f"{kind.upper()} {found.hedge}{found.value} ms instead of {now} ms"
    limit = found.value * MILLISECOND
    models = tuple(sorted(m.name for m in stated if getattr(m.targets, kind) < limit))
    return Relaxation(kind, float(found.value), "ms", models, text)


def _at_least(model: ModelDemand, kind: str, seconds: float) -> ModelDemand:
    target = getattr(model.targets, kind)
    if target is None or target >= seconds:
        return model
    return replace(model, targets=replace(model.targets, **{kind: seconds}))


def _gpus(search: _Search, pool: Pool) -> Relaxation | None:
    problem = search.problem
    step = pool.gpus_per_node or 1

    def change(count: int) -> PlanningProblem:
        rentable = None if pool.max_count is None else pool.max_count + count - pool.count
        domains = _grown_domains(pool, count)
        grown = replace(pool, count=count, domains=domains, max_count=rentable)
        pools = tuple(grown if p.name == pool.name else p for p in problem.pools)
        return replace(problem, pools=pools)

    most = pool.count + MOST_GPUS // step * step
    found = _smallest(search, change, pool.count + step, most, step)
    if found is None:
        return None
    more = found.value - pool.count
    text = (
        f"{found.hedge}{more} more GPUs in pool {pool.name} ({found.value} instead of {pool.count})"
    )
    return Relaxation(f"gpus:{pool.name}", float(more), "GPUs", _names(problem), text)


def _grown_domains(pool: Pool, count: int) -> tuple[Domain, ...]:
    if not pool.domains or pool.gpus_per_node is None:
        return pool.domains
    more = (count - pool.count) // pool.gpus_per_node
    return (replace(pool.domains[0], nodes=pool.domains[0].nodes + more), *pool.domains[1:])


def _budget(search: _Search) -> Relaxation | None:
    problem = search.problem
    if problem.budget_per_hour is None:
        return None
    unlimited = replace(problem, budget_per_hour=None)
    found = _optimum(unlimited, search, lambda program: program.price)
    if found is None:
        return None
    cost = Decimal(math.ceil(found.objective * 100 - ROUNDING)) / 100
    if cost <= problem.budget_per_hour:
        return None
    text = f"a budget of ${cost}/h instead of ${problem.budget_per_hour}/h"
    return Relaxation("budget", float(cost), "$/h", _names(problem), text)


def _rate(search: _Search) -> Relaxation | None:
    """The share of the stated rates that the best plan sustains at the headroom asked for."""
    problem = search.problem
    program = None if problem.min_headroom is None else _program(problem, search)
    if program is None or problem.min_headroom is None:
        return None
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    best = solve(program, question(program, cost), _effort(search))
    share = 0.0 if best is None else best.values[THETA] * program.scale / problem.min_headroom
    if not 0 < share < 1:
        return None
    shown = math.floor(share * 1000) / 1000
    text = f"{shown:.1%} of the stated rates"
    if not shown:
        shown = float(f"{share * (1 - PRECISION):.2e}")
        text = f"{shown:.3g} of the stated rates"
    return Relaxation("rate", shown, "share of the stated rates", _names(problem), text)


def _names(problem: PlanningProblem) -> tuple[str, ...]:
    return tuple(sorted(model.name for model in problem.models))
