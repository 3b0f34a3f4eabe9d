"""Why this plan: what binds, what one step more or less gives, what was rejected, and the sources.

Nothing here is read off dual prices: those of an integer program do not say what one more GPU
gives. Every difference comes from solving the changed problem (``resolve.py``), with its own proven
bound, and is stated as an interval that surely holds the true difference (in the rate model).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from archipelago.planner.binding import Carry, Limit, carries, limits
from archipelago.planner.errors import InputError
from archipelago.planner.offer import offer
from archipelago.planner.problem import Objective, Phase, PlanningProblem
from archipelago.planner.program import build_program
from archipelago.planner.resolve import (
    FIRST_NODES,
    PATIENCE,
    Base,
    Outcome,
    Resolved,
    best,
    forced,
    resolved,
)
from archipelago.planner.solve import Effort, reduced_costs
from archipelago.planner.sources import facts
from archipelago.planner.steps import Changed, steps
from archipelago.planner.strategies.exact import objective
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.template import Template, place_name
from archipelago.planner.templates import Catalogue, build_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.provenance import Fact
    from archipelago.planner.plan import Exclusion, Group, Plan, ThetaInterval

REJECTED = 3
"""Rejected templates per phase that are tried by force."""
THREADS = 4
"""Re-solves side by side; each needs the memory of a plan."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Step:
    """One step more or less of something, and what the best plan then reaches."""

    kind: str  # "island", "node", "budget" or "rate"
    subject: str
    amount: float
    unit: str
    result: Resolved


@dataclass(frozen=True)
class Rejected:
    """A template that the plan does not use, and what using one island of it costs."""

    template: str
    phase: Phase
    reason: str
    result: Resolved


@dataclass(frozen=True)
class Explanation:
    """Why a plan is what it is. ``value`` and ``bound`` are what the differences start from.

    ``planned``, ``value`` and ``bound`` are theta, or the cost under the cost objective [$/h].
    ``planned`` is what the plan promises after evaluation, a little worse than ``value``;
    ``interval`` what that may be, if times are as uncertain as they say.
    """

    name: str
    objective: Objective
    planned: float
    value: float
    bound: float
    limits: tuple[Limit, ...]
    carries: tuple[Carry, ...]
    steps: tuple[Step, ...]
    rejected: tuple[Rejected, ...]
    excluded: tuple[tuple[str, Phase, Exclusion], ...]
    facts: tuple[Fact, ...]
    interval: ThetaInterval | None = None


def explain(
    problem: PlanningProblem,
    plan: Plan,
    progress: Progress = quiet,
    catalogue: Catalogue | None = None,
) -> Explanation:
    """Explain a plan of a problem; ``catalogue`` None means that its templates are benchmarked.

    Raises:
        InputError: the plan has islands that are no templates of the problem.
        SolverError: the problem itself is not solved within ``FIRST_NODES``.
    """
    catalogue = catalogue or build_catalogue(problem, progress)
    of_group = _templates(plan, catalogue.templates)
    counts = _counts(plan, catalogue.templates, of_group)
    progress("solving the problem again", 0.0)
    program = build_program(problem, catalogue.templates)
    solution = best(program, problem, FIRST_NODES)
    if solution is None:
        raise InputError("the problem of this plan has no plan; it was changed after planning")
    base = Base(problem, catalogue, program, solution, plan.certificate.bound)
    changes, rejects = list(steps(problem, catalogue.templates)), _screened(base, counts)
    jobs = _Jobs(len(changes) + len(rejects), progress)
    tried = jobs.each(lambda change: _step(base, change), changes)
    refused = jobs.each(lambda c: _rejected(base, c, counts), rejects)
    cost = problem.objective is Objective.COST
    return Explanation(
        problem.name,
        problem.objective,
        float(plan.cost_per_hour) if cost else plan.theta,
        base.value,
        base.bound,
        tuple(limits(problem, plan, catalogue.templates, of_group)),
        carries(problem, catalogue.templates, counts),
        tried,
        refused,
        tuple((*key, item) for key, item in sorted(catalogue.nearest.items())),
        tuple(facts(problem)),
        plan.interval,
    )


class _Jobs:
    """Runs re-solves side by side: the solver lets go of Python's lock, and none needs another.

    Results keep their order, so that they do not depend on which is done first.
    """

    def __init__(self, jobs: int, progress: Progress) -> None:
        self._jobs, self._done, self._progress = max(jobs, 1), 0, progress

    def each(self, solve: Callable[[T], R], items: list[T]) -> tuple[R, ...]:
        """The result of every item, in their order."""
        found = []
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            for result in pool.map(solve, items):
                found.append(result)
                self._done += 1
                self._progress("solving what might have been", self._done / self._jobs)
        return tuple(found)


def _templates(plan: Plan, templates: tuple[Template, ...]) -> dict[str, Template]:
    """The template of every group.

    Raises:
        InputError: a group is none of the problem's templates.
    """
    known = {template.key: template for template in templates}
    found = {}
    for group in plan.groups:
        key = _key(group)
        if key not in known:
            raise InputError(f"group {group.name}: {key} is no template of its problem: plan again")
        found[group.name] = known[key]
    return found


def _key(group: Group) -> str:
    """The key of a group's template, as ``Template.key`` writes it."""
    batch = "" if group.phase is Phase.PREFILL else f"/b{group.max_batch}"
    size = "+".join(str(part.gpus) for part in group.sections)
    where = f"{group.model}/{place_name(group.pool, group.domain_class)}/x{size}"
    return f"{where}/{group.phase}/{group.parallelism}{batch}"


def _counts(
    plan: Plan, templates: tuple[Template, ...], of_group: dict[str, Template]
) -> FloatArray:
    """Islands of every template in the plan, shape (templates,)."""
    position = {template.key: c for c, template in enumerate(templates)}
    counts = np.zeros(len(templates))
    for group in plan.groups:
        counts[position[of_group[group.name].key]] += group.islands
    return counts


def _step(base: Base, change: Changed) -> Step:
    result = Resolved(Outcome.NO_PLAN)
    if change.problem is not None:
        result = resolved(base, change.problem, better=change.better)
    return Step(change.kind, change.subject, change.amount, change.unit, result)


# --- what was rejected ---


def _screened(base: Base, counts: FloatArray) -> list[int]:
    """Templates without islands that cost least in the linear relaxation, a few per phase."""
    effort = Effort(base.problem.solver.gap, PATIENCE, base.problem.solver.seed)
    price = reduced_costs(base.program, objective(base.program, base.problem), effort)
    templates = base.catalogue.templates
    used = {_shape(t) for t, n in zip(templates, counts, strict=True) if n > 0}
    order = sorted(range(len(templates)), key=lambda c: (price[1 + c], c))
    found: list[int] = []
    for phase in Phase:
        cheapest: dict[tuple[object, ...], int] = {}
        for c in order:
            if templates[c].phase is phase and base.program.count_upper[c] > 0:
                cheapest.setdefault(_shape(templates[c]), c)
        found += [c for shape, c in cheapest.items() if shape not in used][:REJECTED]
    return found


def _shape(template: Template) -> tuple[object, ...]:
    """A template but for its batch: another operating point is no other choice."""
    place = template.pool, template.domain_class, template.sections
    return template.model, *place, template.phase, template.parallelism


def _rejected(base: Base, c: int, counts: FloatArray) -> Rejected:
    template = base.catalogue.templates[c]
    reason = _reason(base, template, counts)
    return Rejected(template.key, template.phase, reason, forced(base, c))


def _reason(base: Base, template: Template, counts: FloatArray) -> str:
    """What it offers beside the chosen template that offers most, in the scarcer measure."""
    used = [t for t, n in zip(base.catalogue.templates, counts, strict=True) if n > 0]
    rivals = [t for t in used if t.model == template.model]
    chosen = [t for t in rivals if t.phase is template.phase]
    mine = offer(base.problem, template)
    if not chosen:
        per = f"{mine.rate / template.gpus:.3g} req/s per GPU"
        return f"{per}; the plan has no {template.phase} islands of {template.model}"
    theirs = [(offer(base.problem, t), t) for t in chosen]
    if mine.per_dollar is not None and all(o.per_dollar is not None for o, _ in theirs):
        most, of = max(((o.per_dollar or 0.0, t.key) for o, t in theirs))
        return f"{mine.per_dollar:,.0f} requests per $; chosen {of}: {most:,.0f}"
    most, of = max((o.rate / t.gpus, t.key) for o, t in theirs)
    return f"{mine.rate / template.gpus:.3g} req/s per GPU; chosen {of}: {most:.3g}"
