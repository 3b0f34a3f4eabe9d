"""Infeasible problems: what binds, and the smallest change of each kind that would help.

Every relaxation is found by solving the changed problem, one kind at a time: a latency target, GPUs
of one pool, the budget, the stated rates. The largest value is tried first; if it does not help,
the kind is not offered. Then the smallest sufficient value is bracketed by doubling and bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TypeAlias

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..deadline import Deadline
from ..errors import SolverError
from ..milp.build import build_program, served_ranges
from ..milp.highs import Solution, SolverOptions, minimise, solve
from ..milp.variables import THETA, Program
from ..plan import Infeasible, InfeasibleReason, Relaxation, Unservable
from ..problem import STAGES, ModelDemand, Phase, PlanningProblem, Pool
from ..templates.catalogue import Catalogue, TemplateCache, build_catalogue
from ..templates.packing import LARGEST_ISLAND

MILLISECOND = 1e-3
PRECISION = 0.01
"""Precision of latency relaxations: 1 % or 1 ms, whichever is coarser."""
OPTIONS = SolverOptions(gap=5e-3, time_limit=5.0, nodes=2_000)
ROUNDING = 1e-6
"""Cents by which a solver's cost may exceed a whole cent."""
MOST_GPUS = 16 * LARGEST_ISLAND
"""Most GPUs that are offered in addition in one pool."""

EVERYTHING = 1 - 1e-9
"""All of a model's requests, up to the rounding of a sum."""

Change: TypeAlias = Callable[[int], "PlanningProblem"]


@dataclass(frozen=True)
class _Search:
    """The problem to relax, the deadline, and the templates that all tries share."""

    problem: PlanningProblem
    deadline: Deadline
    cache: TemplateCache = field(default_factory=dict)


@dataclass(frozen=True)
class _Sufficient:
    """A sufficient value; not ``smallest`` if the time ran out before that was proven."""

    value: int
    smallest: bool

    @property
    def qualifier(self) -> str:
        """Text before the value."""
        return "" if self.smallest else "at most "


def relaxations(problem: PlanningProblem, deadline: Deadline) -> tuple[Relaxation, ...]:
    """Return the smallest relaxation of every kind that helps, in a fixed order.

    Kinds that are still unknown when the time runs out are left out.
    """
    search = _Search(problem, deadline)
    kinds: list[Callable[[], Relaxation | None]] = [
        lambda: _rate(search),
        lambda: _budget(search),
        lambda: _latency(search, "ttft"),
        lambda: _latency(search, "tpot"),
        *(partial(_gpus, search, pool) for pool in sorted(problem.pools, key=lambda p: p.name)),
    ]
    helpful = []
    for kind in kinds:
        if deadline.passed:
            break
        with suppress(SolverError):  # unknown within the limits of time and nodes
            if (relaxation := kind()) is not None:
                helpful.append(relaxation)
    return tuple(helpful)


def exceeds_unservable(share: float, allowed: float) -> bool:
    """Return whether more than the allowed share of requests is unservable; 100 % always is."""
    return share > min(allowed, EVERYTHING)


def _program(problem: PlanningProblem, search: _Search) -> Program | None:
    """Return the program, or None if too much of some model is unservable."""
    catalogue = build_catalogue(problem, cache=search.cache, deadline=search.deadline)
    for model in problem.models:
        served = served_ranges(catalogue.templates, model.name, len(model.ranges), problem.links)
        probability = model.lengths.moments(model.ranges).probability
        if exceeds_unservable(1.0 - float(probability[served].sum()), problem.max_unservable):
            return None
    return build_program(problem, catalogue.templates, search.deadline)


def _optimum(
    problem: PlanningProblem, search: _Search, cost: Callable[[Program], FloatArray]
) -> Solution | None:
    """Minimise a cost at minHeadroom; None if infeasible."""
    program = _program(problem, search)
    if program is None:
        return None
    objective = minimise(program, cost(program))
    objective.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
    return solve(program, objective, _options(search))


def _options(search: _Search) -> SolverOptions:
    return replace(OPTIONS, time_limit=min(OPTIONS.time_limit, search.deadline.remaining))


def _smallest(
    search: _Search, change: Change, start: int, most: int, step: int = 1
) -> _Sufficient | None:
    """Find the smallest feasible value of start, start + step ...; None if ``most`` is infeasible.

    None too if the time runs out before any value but ``most`` is proven feasible.
    """
    proven = True

    def feasible(value: int) -> bool:
        nonlocal proven
        try:
            plan = _optimum(change(value), search, lambda program: np.zeros(program.columns))
        except SolverError:  # unknown within the limits of time and nodes
            proven = False
            return False
        return plan is not None

    if start > most or not feasible(most):
        return None
    low, high = start - step, start
    while high < most and not feasible(high):
        if search.deadline.passed:
            return None
        low, high = high, min(most, high + 2 * (high - low))
    while high - low > max(step, int(PRECISION * high) if step == 1 else step):
        if search.deadline.passed:
            return _Sufficient(high, smallest=False)
        middle = low + (high - low) // (2 * step) * step
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return _Sufficient(high, smallest=proven)


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

    sufficient = _smallest(search, change, now + 1, now * 1024)
    if sufficient is None:
        return None
    target = sufficient.value
    text = f"{kind.upper()} {sufficient.qualifier}{target} ms instead of {now} ms"
    limit = target * MILLISECOND
    models = tuple(sorted(m.name for m in stated if getattr(m.targets, kind) < limit))
    return Relaxation(kind, float(target), "ms", models, text)


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
        domains = pool.domains
        if domains and pool.gpus_per_node is not None:
            nodes = domains[0].nodes + (count - pool.count) // pool.gpus_per_node
            domains = (replace(domains[0], nodes=nodes), *domains[1:])
        grown = replace(pool, count=count, domains=domains, max_count=rentable)
        pools = tuple(grown if p.name == pool.name else p for p in problem.pools)
        return replace(problem, pools=pools)

    most = pool.count + MOST_GPUS // step * step
    sufficient = _smallest(search, change, pool.count + step, most, step)
    if sufficient is None:
        return None
    more = sufficient.value - pool.count
    text = (
        f"{sufficient.qualifier}{more} more GPUs in pool {pool.name} "
        f"({sufficient.value} instead of {pool.count})"
    )
    return Relaxation(f"gpus:{pool.name}", float(more), "GPUs", _names(problem), text)


def _budget(search: _Search) -> Relaxation | None:
    problem = search.problem
    if problem.budget_per_hour is None:
        return None
    unlimited = replace(problem, budget_per_hour=None)
    cheapest = _optimum(unlimited, search, lambda program: program.price)
    if cheapest is None:
        return None
    cost = Decimal(math.ceil(cheapest.objective * 100 - ROUNDING)) / 100
    if cost <= problem.budget_per_hour:
        return None
    text = f"a budget of ${cost}/h instead of ${problem.budget_per_hour}/h"
    return Relaxation("budget", float(cost), "$/h", _names(problem), text)


def _rate(search: _Search) -> Relaxation | None:
    """Return the share of the stated rates that the best plan sustains at minHeadroom."""
    problem = search.problem
    program = None if problem.min_headroom is None else _program(problem, search)
    if program is None or problem.min_headroom is None:
        return None
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    best = solve(program, minimise(program, cost), _options(search))
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


def unservable(problem: PlanningProblem, catalogue: Catalogue) -> tuple[Unservable, ...]:
    """Return, per model, the share of requests that no template can serve, unless it is zero."""
    shares = []
    for model in sorted(problem.models, key=lambda m: m.name):
        served = served_ranges(catalogue.templates, model.name, len(model.ranges), problem.links)
        probability = model.lengths.moments(model.ranges).probability
        share = max(0.0, 1.0 - float(probability[served].sum()))
        if not served.all() or share > 1e-12:  # noqa: PLR2004  # rounding of a sum of shares
            lost = np.flatnonzero(~served)
            above = model.ranges[lost[0]].min if len(lost) else model.ranges[-1].max
            shares.append(Unservable(model.name, share, above))
    return tuple(shares)


def explain_unservable(
    problem: PlanningProblem,
    catalogue: Catalogue,
    missing: tuple[Unservable, ...],
    deadline: Deadline,
) -> Infeasible | None:
    """Return the outcome if too much of some model is unservable, else None."""
    too_much = [item for item in missing if exceeds_unservable(item.share, problem.max_unservable)]
    if not too_much:
        return None
    models = {model.name: model for model in problem.models}
    worst = max(too_much, key=lambda item: item.share)
    text, reason = _what_is_missing(models[worst.model], catalogue, worst, problem.max_unservable)
    return _outcome(problem, catalogue, reason, text, deadline)


def no_room(problem: PlanningProblem, catalogue: Catalogue, deadline: Deadline) -> Infeasible:
    """Return the outcome if no set of islands that fits serves every model and phase."""
    budget = problem.budget_per_hour
    limit = "the pools" if budget is None else f"the pools and ${budget}/h"
    text = f"{limit} have no room for one prefill and one decode island of every model"
    return _outcome(problem, catalogue, InfeasibleReason.NO_ROOM, text, deadline)


def too_little(
    problem: PlanningProblem,
    catalogue: Catalogue,
    theta: float,
    bound: float,
    deadline: Deadline,
) -> Infeasible:
    """Return the outcome if the best plan has less than minHeadroom."""
    text = (
        f"the best plan reaches headroom {theta:.4g} (at most {bound:.4g}), "
        f"less than minHeadroom {problem.min_headroom:g}"
    )
    return _outcome(problem, catalogue, InfeasibleReason.HEADROOM, text, deadline)


def unreached(problem: PlanningProblem, catalogue: Catalogue, deadline: Deadline) -> Infeasible:
    """Return the outcome if no plan has minHeadroom and the largest headroom is unknown."""
    text = f"no plan reaches minHeadroom {problem.min_headroom:g}"
    return _outcome(problem, catalogue, InfeasibleReason.HEADROOM, text, deadline)


def _outcome(
    problem: PlanningProblem,
    catalogue: Catalogue,
    reason: InfeasibleReason,
    text: str,
    deadline: Deadline,
) -> Infeasible:
    helpful = relaxations(problem, deadline)
    advice = "; it would fit with " + ", or ".join(r.text for r in helpful) if helpful else ""
    return Infeasible(reason, text + advice, helpful, catalogue.exclusions)


def _what_is_missing(
    model: ModelDemand, catalogue: Catalogue, worst: Unservable, allowed: float
) -> tuple[str, InfeasibleReason]:
    templates = [t for t in catalogue.templates if t.model == model.name]
    for stage in STAGES:
        if not any(stage in t.phase.stages for t in templates):
            text = f"no island can serve {stage} of {model.name}"
            return f"{text}; {_nearest(catalogue, model, stage)}", InfeasibleReason.NO_TEMPLATE
    text = (
        f"{worst.share:.3%} of the requests of {model.name} (inputs from {worst.above} tokens) "
        f"fit no island, more than maxUnservable {allowed:.3%}"
    )
    return text, InfeasibleReason.UNSERVABLE


def _nearest(catalogue: Catalogue, model: ModelDemand, stage: Phase) -> str:
    phases = [phase for phase in model.phases if stage in phase.stages]
    exclusions = (catalogue.nearest.get((model.name, phase)) for phase in phases)
    nearest = next((exclusion for exclusion in exclusions if exclusion is not None), None)
    if nearest is None:
        return "no pool has an island size for it"
    return f"the nearest is {nearest.template}: {nearest.reason}"
