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
from typing import TYPE_CHECKING

import numpy as np

from ..deadline import Deadline
from ..errors import SolverError
from ..milp.build import build_program, served_ranges
from ..milp.highs import Solution, SolverOptions, largest_theta, minimise, solve
from ..milp.variables import THETA, Program
from ..plan import Infeasible, InfeasibleReason, Relaxation, Unservable
from ..problem import STAGES, PlanningProblem, Pool
from ..templates.catalogue import Catalogue, TemplateCache, build_catalogue
from ..templates.packing import LARGEST_ISLAND

if TYPE_CHECKING:
    from archipelago.perfmodel.roofline.parallelism import Splits

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


@dataclass(frozen=True)
class _Search:
    """The problem to relax, the deadline, and the templates that all tries share."""

    problem: PlanningProblem
    deadline: Deadline
    cache: TemplateCache = field(default_factory=dict)

    @property
    def options(self) -> SolverOptions:
        """Limits of the next solve."""
        return replace(OPTIONS, time_limit=min(OPTIONS.time_limit, self.deadline.remaining))

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all models."""
        return tuple(sorted(model.name for model in self.problem.models))

    def program(self, problem: PlanningProblem) -> Program | None:
        """Return the program, or None if too much of some model is unservable."""
        catalogue = build_catalogue(problem, cache=self.cache, deadline=self.deadline)
        for item in unservable(problem, catalogue):
            if exceeds_unservable(item.share, problem.max_unservable):
                return None
        return build_program(problem, catalogue.templates, self.deadline)

    def optimum(self, problem: PlanningProblem, *, priced: bool) -> Solution | None:
        """Return the cheapest solution, or any if not ``priced``, at minHeadroom."""
        program = self.program(problem)
        if program is None:
            return None
        objective = minimise(program, program.price if priced else np.zeros(program.columns))
        objective.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
        return solve(program, objective, self.options)

    def smallest(
        self, change: Callable[[int], PlanningProblem], start: int, most: int, step: int = 1
    ) -> tuple[int, str] | None:
        """Return the smallest feasible value of start, start + step ..., and the text before it.

        The text is "at most " if the time ran out before the value was proven the smallest. None if
        ``most`` is infeasible, or the time runs out before any smaller value is proven feasible.
        """
        proven = True

        def feasible(value: int) -> bool:
            nonlocal proven
            try:
                return self.optimum(change(value), priced=False) is not None
            except SolverError:  # unknown within the limits of time and nodes
                proven = False
                return False

        if start > most or not feasible(most):
            return None
        low, high = start - step, start
        while high < most and not feasible(high):
            if self.deadline.passed:
                return None
            low, high = high, min(most, high + 2 * (high - low))
        while high - low > max(step, int(PRECISION * high) if step == 1 else step):
            if self.deadline.passed:
                proven = False
                break
            middle = low + (high - low) // (2 * step) * step
            low, high = (low, middle) if feasible(middle) else (middle, high)
        return high, "" if proven else "at most "

    def latency(self, kind: str) -> Relaxation | None:
        """Return the smallest latency target of a kind that helps, for all tighter ones."""
        targets = {
            model.name: target
            for model in self.problem.models
            if (target := getattr(model.targets, kind)) is not None
        }
        if not targets:
            return None
        now = round(min(targets.values()) / MILLISECOND)

        def change(milliseconds: int) -> PlanningProblem:
            limit = milliseconds * MILLISECOND
            models = tuple(
                replace(model, targets=replace(model.targets, **{kind: limit}))
                if targets.get(model.name, math.inf) < limit
                else model
                for model in self.problem.models
            )
            return replace(self.problem, models=models)

        sufficient = self.smallest(change, now + 1, now * 1024)
        if sufficient is None:
            return None
        value, qualifier = sufficient
        text = f"{kind.upper()} {qualifier}{value} ms instead of {now} ms"
        models = tuple(sorted(n for n, target in targets.items() if target < value * MILLISECOND))
        return Relaxation(kind, float(value), "ms", models, text)

    def gpus(self, pool: Pool) -> Relaxation | None:
        """Return the fewest more GPUs of a pool that help."""
        step = pool.gpus_per_node or 1

        def change(count: int) -> PlanningProblem:
            rentable = None if pool.max_count is None else pool.max_count + count - pool.count
            domains = pool.domains
            if domains and pool.gpus_per_node is not None:
                nodes = domains[0].nodes + (count - pool.count) // pool.gpus_per_node
                domains = (replace(domains[0], nodes=nodes), *domains[1:])
            grown = replace(pool, count=count, domains=domains, max_count=rentable)
            pools = tuple(grown if p.name == pool.name else p for p in self.problem.pools)
            return replace(self.problem, pools=pools)

        most = pool.count + MOST_GPUS // step * step
        sufficient = self.smallest(change, pool.count + step, most, step)
        if sufficient is None:
            return None
        value, qualifier = sufficient
        more = value - pool.count
        text = f"{qualifier}{more} more GPUs in pool {pool.name} ({value} instead of {pool.count})"
        return Relaxation(f"gpus:{pool.name}", float(more), "GPUs", self.models, text)

    def budget(self) -> Relaxation | None:
        """Return the smallest budget that helps."""
        budget = self.problem.budget_per_hour
        if budget is None:
            return None
        cheapest = self.optimum(replace(self.problem, budget_per_hour=None), priced=True)
        if cheapest is None:
            return None
        cost = Decimal(math.ceil(cheapest.objective * 100 - ROUNDING)) / 100
        if cost <= budget:
            return None
        text = f"a budget of ${cost}/h instead of ${budget}/h"
        return Relaxation("budget", float(cost), "$/h", self.models, text)

    def rate(self) -> Relaxation | None:
        """Return the share of the stated rates that the best plan sustains at minHeadroom."""
        headroom = self.problem.min_headroom
        program = None if headroom is None else self.program(self.problem)
        if program is None or headroom is None:
            return None
        best = solve(program, largest_theta(program), self.options)
        share = 0.0 if best is None else best.values[THETA] * program.scale / headroom
        if not 0 < share < 1:
            return None
        shown = math.floor(share * 1000) / 1000
        text = f"{shown:.1%} of the stated rates"
        if not shown:
            shown = float(f"{share * (1 - PRECISION):.2e}")
            text = f"{shown:.3g} of the stated rates"
        return Relaxation("rate", shown, "share of the stated rates", self.models, text)


def relaxations(problem: PlanningProblem, deadline: Deadline) -> tuple[Relaxation, ...]:
    """Return the smallest relaxation of every kind that helps, in a fixed order.

    Kinds that are still unknown when the time runs out are left out.
    """
    search = _Search(problem, deadline)
    kinds: list[Callable[[], Relaxation | None]] = [
        search.rate,
        search.budget,
        partial(search.latency, "ttft"),
        partial(search.latency, "tpot"),
        *(partial(search.gpus, pool) for pool in sorted(problem.pools, key=lambda p: p.name)),
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
    worst = max(too_much, key=lambda item: item.share)
    model = next(m for m in problem.models if m.name == worst.model)
    templates = [t for t in catalogue.templates if t.model == model.name]
    served = {stage for template in templates for stage in template.phase.stages}
    for stage in STAGES:
        if stage not in served:
            phases = [phase for phase in model.phases if stage in phase.stages]
            exclusions = filter(None, (catalogue.nearest.get((model.name, p)) for p in phases))
            advice = next(
                (f"the nearest is {each.template}: {each.reason}" for each in exclusions),
                f"no pool has an island size for it{_pinned(model.splits)}",
            )
            text = f"no island can serve {stage} of {model.name}; {advice}"
            return outcome(problem, catalogue, InfeasibleReason.NO_TEMPLATE, text, deadline)
    text = (
        f"{worst.share:.3%} of the requests of {model.name} (inputs from {worst.above} tokens) "
        f"fit no island, more than maxUnservable {problem.max_unservable:.3%}"
    )
    return outcome(problem, catalogue, InfeasibleReason.UNSERVABLE, text, deadline)


def _pinned(splits: Splits) -> str:
    """Return what the spec says of the splits of islands, for the end of a reason."""
    degrees = {
        "tensor": splits.tp,
        "pipeline": splits.pp,
        "data": splits.dp,
        "expert": splits.ep,
    }
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree is not None]
    said = [f"parallelism {', '.join(words)}"] if words else []
    if splits.copies is not None:
        said.append(f"attentionDataParallel {'Always' if splits.copies else 'Never'}")
    return f" with {' and '.join(said)} of models[].engine" if said else ""


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
    return outcome(problem, catalogue, InfeasibleReason.HEADROOM, text, deadline)


def outcome(
    problem: PlanningProblem,
    catalogue: Catalogue,
    reason: InfeasibleReason,
    text: str,
    deadline: Deadline,
) -> Infeasible:
    """Return an outcome with the relaxations that would help."""
    helpful = relaxations(problem, deadline)
    advice = "; it would fit with " + ", or ".join(r.text for r in helpful) if helpful else ""
    return Infeasible(reason, text + advice, helpful, catalogue.exclusions)
