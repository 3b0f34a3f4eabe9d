"""Explain a plan: used limits, the bottleneck stage, sensitivities, rejected templates, sources.

Dual prices of an integer program do not give the value of one more GPU. So every difference comes
from solving the changed problem (``sensitivity.py``) and is an interval that contains the true
difference in the rate model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import numpy as np
from scipy.optimize import linprog

from archipelago.perfmodel.calibration.provenance import Fact
from archipelago.perfmodel.model import FloatArray

from ..deadline import Deadline
from ..documents import canonical
from ..errors import InputError
from ..milp.build import build_program, served_ranges
from ..milp.highs import SolverOptions, objective_of, reduced_costs
from ..plan import MILLION, Exclusion, Plan, ThetaInterval
from ..problem import STAGES, Objective, Phase, PlanningProblem, Pool
from ..strategy import Progress, quiet
from ..templates.catalogue import Catalogue, TemplateCache, build_catalogue
from ..templates.packing import capacity
from ..templates.template import Template, island_throughput
from .diff import template_key
from .provenance import facts
from .sensitivity import (
    LEAST_TIME,
    BaseSolution,
    Outcome,
    Resolution,
    cheapest,
    perturbations,
    place,
    resolve,
    resolve_with,
    solution_of,
)

GIGA = 1e9
NETWORK = "network"
"""Capacity row of an island's network adapters."""


@dataclass(frozen=True)
class Limit:
    """One limit of the problem and the plan's use of it."""

    kind: str  # "gpus", "packing", "budget", "headroom", "link", or the capacity row of a group
    subject: str
    used: float
    limit: float
    unit: str
    binds: bool


@dataclass(frozen=True)
class StageCapacity:
    """Theta of the islands of one model and stage if the other stage were unlimited.

    Mixed islands count in both stages; ``phase`` is mixed if there are no others.
    """

    model: str
    phase: Phase
    theta: float
    binds: bool


def limits(
    problem: PlanningProblem,
    plan: Plan,
    templates: tuple[Template, ...],
    of_group: dict[str, Template],
) -> Iterator[Limit]:
    """Yield the limits of pools, budget, headroom, links, and the rows of every group.

    ``of_group``: the template of each group of the plan.
    """
    for pool in problem.pools:
        yield from _pool_limits(pool, plan, templates)
    if problem.budget_per_hour is not None:
        least = cheapest(problem, templates)
        spare = problem.budget_per_hour - plan.cost_per_hour
        used, limit = float(plan.cost_per_hour), float(problem.budget_per_hour)
        yield Limit("budget", "all islands", used, limit, "$/h", least is None or spare < least)
    gap = problem.solver.gap
    if problem.objective is Objective.COST and problem.min_headroom is not None:
        binds = plan.theta <= problem.min_headroom * (1 + gap)
        unit = "times the rates, at least"
        yield Limit("headroom", "all models", plan.theta, problem.min_headroom, unit, binds)
    for link in problem.links:
        for source, target in (link.classes, link.classes[::-1]):
            used = _flow(problem, plan, of_group, (source, target))
            full = used >= link.bytes_per_second * (1 - gap)
            limit = link.bytes_per_second / GIGA
            yield Limit("link", f"{source} to {target}", used / GIGA, limit, "GB/s", full)
    for group in plan.groups:
        full = group.utilisation >= 1 - gap
        yield Limit(group.binding, group.name, group.utilisation, 1.0, "1", full)
        template = of_group[group.name]
        loads = template.rows @ (np.array(group.rates) / group.islands)
        for name, load in zip(template.row_names, loads.tolist(), strict=True):
            if name == NETWORK != group.binding and load >= 1 - gap:
                yield Limit(NETWORK, group.name, load, 1.0, "1", binds=True)


def _pool_limits(pool: Pool, plan: Plan, templates: tuple[Template, ...]) -> Iterator[Limit]:
    """Yield the limit of GPUs, and one per packing row: sum of (s_c / s) n_c <= C(s)."""
    smallest, rows = [], []
    for domain_class in pool.classes:
        groups = [(g.gpus_of(pool.name), g) for g in plan.groups if g.domain_class == domain_class]
        sizes = {t.gpus_of(pool.name) for t in templates if t.domain_class == domain_class}
        for i, size in enumerate(sorted(sizes - {0})):
            used = sum(gpus // size * g.islands for gpus, g in groups if gpus >= size)
            room = capacity(pool, size, domain_class)
            unit = f"islands of {size} GPU" + ("" if size == 1 else "s")
            full = used + 1 > room
            rows.append(Limit("packing", place(pool, domain_class), used, room, unit, binds=full))
            smallest += [full] if i == 0 else []
    full = bool(smallest) and all(smallest)
    yield Limit("gpus", pool.name, plan.used(pool.name), pool.available, "GPUs", binds=full)
    yield from rows


def _flow(
    problem: PlanningProblem, plan: Plan, of_group: dict[str, Template], classes: tuple[str, str]
) -> float:
    """Return the bytes per second that the routes send from one class to another [B/s]."""
    groups = {group.name: group for group in plan.groups}
    models = {model.name: model for model in problem.models}
    total = 0.0
    for route in plan.routes:
        model = models[route.model]
        for pair in route.pairs:
            sides = groups[pair.prefill].domain_class, groups[pair.decode].domain_class
            if sides == classes and pair.prefill != pair.decode:
                size = model.sent_bytes(of_group[pair.prefill].performance)(model.lengths.length)
                mean = float(model.lengths.expectation(size, [route.range])[0])
                rate = plan.theta * problem.weight(model) * route.share * pair.weight / MILLION
                total += rate * mean
    return total


# --- which stage runs out first ---


def stage_capacities(
    problem: PlanningProblem, templates: tuple[Template, ...], counts: FloatArray
) -> tuple[StageCapacity, ...]:
    """Return theta by model and stage; the smallest binds. ``counts`` of every template."""
    islands = [(t, float(n)) for t, n in zip(templates, counts, strict=True) if n > 0]
    thetas: dict[tuple[str, Phase], float] = {}
    for model in sorted(problem.models, key=lambda m: m.name):
        own = [(t, n) for t, n in islands if t.model == model.name]
        all_mixed = all(t.phase is Phase.MIXED for t, _ in own)
        served = served_ranges(templates, model.name, len(model.ranges), problem.links)
        rate = model.lengths.moments(model.ranges).probability * problem.weight(model)
        rate = np.where(served, rate, 0.0)
        for phase in (Phase.MIXED,) if all_mixed else STAGES:
            serving = [(t, n) for t, n in own if phase in (t.phase, *t.phase.stages)]
            thetas[model.name, phase] = _largest_theta(serving, rate)
    least = min(thetas.values())
    gap = problem.solver.gap
    return tuple(
        StageCapacity(model, phase, theta, binds=theta <= least * (1 + gap))
        for (model, phase), theta in thetas.items()
    )


def _largest_theta(islands: list[tuple[Template, float]], rate: FloatArray) -> float:
    """Return the largest theta of some islands at ``rate``, by a linear program over ranges."""
    ranges = np.flatnonzero(rate > 0)
    width = len(ranges)
    columns = 1 + len(islands) * width
    demand = np.zeros((width, columns))
    demand[:, 0] = -1.0
    upper, rows, limits = np.full(columns, np.inf), [], []
    for i, (template, count) in enumerate(islands):
        at = slice(1 + i * width, 1 + (i + 1) * width)
        demand[:, at] = np.eye(width)
        upper[at] = np.where(template.servable[ranges], np.inf, 0.0)
        for row in template.rows:
            load = np.zeros(columns)
            load[at] = np.where(template.servable[ranges], row[ranges] * rate[ranges], 0.0)
            rows.append(load)
            limits.append(count)
    if not rows:
        return 0.0
    cost = np.zeros(columns)
    cost[0] = -1.0
    bounds = np.column_stack([np.zeros(columns), upper])
    limit = np.array(limits)
    result = linprog(cost, np.array(rows), limit, demand, np.zeros(width), bounds)
    return float(-result.fun) if result.success else 0.0


REJECTED = 3
"""Rejected templates per phase that are forced into a re-solve."""
THREADS = 4
"""Re-solves in parallel; each needs the memory of a plan."""


@dataclass(frozen=True)
class Sensitivity:
    """A step of one limit, and the best objective after it."""

    kind: str  # "island", "node", "budget" or "rate"
    subject: str
    amount: float
    unit: str
    result: Resolution


@dataclass(frozen=True)
class Rejected:
    """A template without islands, and the best objective with one island of it."""

    template: str
    phase: Phase
    reason: str
    result: Resolution


@dataclass(frozen=True)
class Explanation:
    """The explanation of a plan.

    ``planned``, ``value`` and ``bound``: theta, or the cost under the cost objective [$/h].
    ``value``: of the plan's islands with the best rates, and ``bound``, the plan's own, are the
    reference of all differences. ``planned``: after evaluation, a little worse than ``value``.
    ``interval``: 90 % interval of theta from the uncertainty of times.
    """

    name: str
    objective: Objective
    planned: float
    value: float
    bound: float
    limits: tuple[Limit, ...]
    stage_capacities: tuple[StageCapacity, ...]
    steps: tuple[Sensitivity, ...]
    rejected: tuple[Rejected, ...]
    excluded: tuple[tuple[str, Phase, Exclusion], ...]
    facts: tuple[Fact, ...]
    interval: ThetaInterval | None = None

    @property
    def questions(self) -> list[Sensitivity | Rejected]:
        """What was asked, in its order."""
        return [*self.steps, *self.rejected]


ANSWER_TIME = 10.0
"""Time of all answers together [s]; what is not answered by then is named."""


@dataclass(frozen=True, eq=False)
class Inquiry:
    """The questions about a plan, to be answered one by one.

    ``asked``: the explanation before the first answer; steps and rejected templates have none yet.
    """

    asked: Explanation
    solves: tuple[Callable[[float], Resolution], ...]
    deadline: Deadline

    def answers(self) -> Iterator[Sensitivity | Rejected]:
        """Yield the steps, then the rejected templates, each once it and those before are answered.

        The time that is left is divided evenly among the questions that are left.
        """
        workers = min(THREADS, os.cpu_count() or 1)
        left, lock = len(self.solves), Lock()

        def answer(solve: Callable[[float], Resolution]) -> Resolution:
            nonlocal left
            with lock:
                seconds = self.deadline.remaining * min(workers, left) / left
                left -= 1
            return solve(seconds) if seconds >= LEAST_TIME else Resolution(Outcome.UNKNOWN)

        # HiGHS releases Python's lock. Answers keep their order, whichever ends first.
        with ThreadPoolExecutor(workers) as threads:
            results = threads.map(answer, self.solves)
            for item, result in zip(self.asked.questions, results, strict=True):
                yield replace(item, result=result)

    def explanation(self, progress: Progress = quiet) -> Explanation:
        """Return the explanation once everything is answered."""
        answers = []
        for answer in self.answers():
            answers.append(answer)
            progress("solving changed problems", len(answers) / len(self.solves))
        steps = tuple(each for each in answers if isinstance(each, Sensitivity))
        rejected = tuple(each for each in answers if isinstance(each, Rejected))
        return replace(self.asked, steps=steps, rejected=rejected)


def inquire(
    problem: PlanningProblem,
    plan: Plan,
    progress: Progress = quiet,
    catalogue: Catalogue | None = None,
    seconds: float = ANSWER_TIME,
) -> Inquiry:
    """Ask about a plan of a problem; its templates are built if ``catalogue`` is None.

    ``seconds``: from here to the last answer.

    Raises:
        InputError: the plan has islands that are no templates of the problem, or breaks its limits.
        SolverError: there is no time.
    """
    deadline = Deadline(seconds)
    cache: TemplateCache = {}
    catalogue = catalogue or build_catalogue(problem, progress, cache)
    position = {template.key: c for c, template in enumerate(catalogue.templates)}
    of_group, counts = {}, np.zeros(len(position))
    for group in plan.groups:
        key = str(template_key(group))
        if key not in position:
            raise InputError(f"group {group.name}: {key} is no template of its problem: plan again")
        of_group[group.name] = catalogue.templates[position[key]]
        counts[position[key]] += group.islands
    progress("looking at the plan", 0.0)
    program = build_program(problem, catalogue.templates)
    solution = solution_of(program, problem, counts, deadline.remaining)
    if solution is None:
        raise InputError("the problem of this plan has no plan; it was changed after planning")
    proven = canonical(plan.certificate.bound)  # as a plan file states it
    base = BaseSolution(problem, catalogue, program, solution, proven, cache)
    changes = perturbations(problem, catalogue.templates)
    rejects = _screened(base, counts, deadline.remaining)
    solves = (
        *(partial(resolve, base, change.problem, better=change.better) for change in changes),
        *(partial(resolve_with, base, c) for c in rejects),
    )
    unanswered = Resolution(Outcome.UNKNOWN)
    cost = problem.objective is Objective.COST
    asked = Explanation(
        problem.name,
        problem.objective,
        float(plan.cost_per_hour) if cost else plan.theta,
        base.value,
        base.bound,
        tuple(limits(problem, plan, catalogue.templates, of_group)),
        stage_capacities(problem, catalogue.templates, counts),
        tuple(Sensitivity(c.kind, c.subject, c.amount, c.unit, unanswered) for c in changes),
        tuple(_rejected(base, catalogue.templates[c], counts, unanswered) for c in rejects),
        tuple((*key, item) for key, item in sorted(catalogue.nearest.items())),
        tuple(facts(problem)),
        plan.interval,
    )
    return Inquiry(asked, solves, deadline)


def explain(
    problem: PlanningProblem,
    plan: Plan,
    progress: Progress = quiet,
    catalogue: Catalogue | None = None,
) -> Explanation:
    """Return all answers about a plan; see ``inquire``."""
    return inquire(problem, plan, progress, catalogue).explanation(progress)


# --- rejected templates ---


def _screened(base: BaseSolution, counts: FloatArray, seconds: float) -> list[int]:
    """Return the templates without islands of least reduced cost, a few per phase."""
    effort = SolverOptions(base.problem.solver.gap, seconds, base.problem.solver.seed)
    price = reduced_costs(base.program, objective_of(base.program, base.problem), effort)
    templates = base.catalogue.templates
    used = {_shape(t) for t, n in zip(templates, counts, strict=True) if n > 0}
    order = sorted(range(len(templates)), key=lambda c: (price[1 + c], c))
    screened: list[int] = []
    for phase in Phase:
        cheapest: dict[tuple[object, ...], int] = {}
        for c in order:
            if templates[c].phase is phase and base.program.max_counts[c] > 0:
                cheapest.setdefault(_shape(templates[c]), c)
        screened += [c for shape, c in cheapest.items() if shape not in used][:REJECTED]
    return screened


def _shape(template: Template) -> tuple[object, ...]:
    """Return a template's properties without its batch."""
    place = template.pool, template.domain_class, template.sections
    return template.model, *place, template.phase, template.parallelism


def _rejected(
    base: BaseSolution, template: Template, counts: FloatArray, result: Resolution
) -> Rejected:
    """Compare its throughput with the best used template, per dollar or per GPU."""
    used = [t for t, n in zip(base.catalogue.templates, counts, strict=True) if n > 0]
    chosen = [t for t in used if (t.model, t.phase) == (template.model, template.phase)]
    own = island_throughput(base.problem, template)
    others = [(island_throughput(base.problem, t), t) for t in chosen]
    per_gpu = f"{own.rate / template.gpus:.3g} req/s per GPU"
    if not chosen:
        reason = f"{per_gpu}; the plan has no {template.phase} islands of {template.model}"
    elif own.per_dollar is not None and all(o.per_dollar is not None for o, _ in others):
        most, of = max(((o.per_dollar or 0.0, t.key) for o, t in others))
        reason = f"{own.per_dollar:,.0f} requests per $; chosen {of}: {most:,.0f}"
    else:
        most, of = max((o.rate / t.gpus, t.key) for o, t in others)
        reason = f"{per_gpu}; chosen {of}: {most:.3g}"
    return Rejected(template.key, template.phase, reason, result)
