"""Why this plan: what binds, what one step more or less gives, what was rejected, and the sources.

Nothing here is read off dual prices: those of an integer program do not say what one more GPU
gives. Every difference comes from solving the changed problem, with its own proven bound, and is
stated as an interval that surely holds the true difference (in the rate model).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog

from archipelago.perfmodel import provenance
from archipelago.perfmodel.provenance import Fact
from archipelago.planner.errors import InputError, SolverError
from archipelago.planner.offer import offer
from archipelago.planner.packing import capacity, island_sizes
from archipelago.planner.problem import Domain, Objective, Phase, PlanningProblem, Pool
from archipelago.planner.program import THETA, Program, build_program, served_ranges
from archipelago.planner.solve import Effort, Solution, question, reduced_costs, solve
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.templates import Catalogue, Template, build_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Exclusion, Group, Plan

SECONDS = 8.0
"""Time for all re-solves together [s]; what is left is shared evenly among those to come."""
SHORTEST = 0.3
"""Least time that one re-solve gets [s]."""
GAP_SHARE = 0.5
"""Part of the published gap that a re-solve may leave, as in the plan's own first solve."""
ROUNDING = 1e-9
"""Share of theta below which a difference is the solver's rounding."""
REJECTED = 3
"""Rejected templates per phase that are tried by force."""
PART = " (part)"
"""Ends the name of a pool that stands for part of a node; no pool of a ServingPlan is named so."""


class Outcome(StrEnum):
    """How a re-solve ended."""

    SOLVED = "solved"
    NO_PLAN = "no plan"
    UNKNOWN = "not solved in time"


@dataclass(frozen=True)
class Resolved:
    """The best theta of a changed problem: found, proven bound, and the difference to the base.

    The true difference lies in [``low``, ``high``]. None where the outcome is not ``SOLVED``.
    """

    outcome: Outcome
    theta: float | None = None
    bound: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Limit:
    """One limit of the problem and how much of it the plan uses."""

    kind: str  # "gpus", "packing", "budget", or the capacity row of a group
    subject: str
    used: float
    limit: float
    unit: str
    binds: bool


@dataclass(frozen=True)
class Carry:
    """What the islands of one model and phase could carry if the other phase were free."""

    model: str
    phase: Phase
    theta: float
    binds: bool


@dataclass(frozen=True)
class Step:
    """One step more or less of something, and what the best plan then reaches."""

    kind: str  # "island", "node" or "budget"
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
    """Why a plan is what it is. ``theta`` and ``bound`` are what the differences start from."""

    name: str
    objective: Objective
    planned: float  # theta that the plan promises after evaluation, a little below ``theta``
    theta: float
    bound: float
    limits: tuple[Limit, ...]
    carries: tuple[Carry, ...]
    steps: tuple[Step, ...]
    rejected: tuple[Rejected, ...]
    excluded: tuple[tuple[str, Phase, Exclusion], ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, eq=False)
class _Base:
    """The unchanged problem, solved; ``proven`` is the plan's own bound on theta."""

    problem: PlanningProblem
    catalogue: Catalogue
    program: Program
    solution: Solution
    proven: float

    @property
    def theta(self) -> float:
        """Best theta found."""
        return float(-self.solution.objective * self.program.scale)

    @property
    def bound(self) -> float:
        """Proven bound on theta: the better of both proofs."""
        found = float(-self.solution.bound * self.program.scale)
        return max(min(found, self.proven), self.theta)


class _Allowance:
    """Shares what is left of the time among the re-solves to come, and reports progress."""

    def __init__(self, jobs: int, seconds: float, progress: Progress) -> None:
        self._jobs, self._left, self._done = jobs, jobs, 0
        self._end = time.perf_counter() + seconds
        self._progress = progress

    def take(self, what: str) -> float:
        """Seconds that the next re-solve may take [s]."""
        self._progress(f"re-solving: {what}", self._done / max(self._jobs, 1))
        share = (self._end - time.perf_counter()) / max(self._jobs - self._done, 1)
        self._done += 1
        return max(share, SHORTEST)


def explain(
    problem: PlanningProblem,
    plan: Plan,
    progress: Progress = quiet,
    seconds: float = SECONDS,
    catalogue: Catalogue | None = None,
) -> Explanation:
    """Explain a plan of a problem; ``catalogue`` None means that its templates are benchmarked.

    Raises:
        InputError: the plan has islands that are no templates of the problem.
        SolverError: the problem itself cannot be solved in the time.
    """
    catalogue = catalogue or build_catalogue(problem, progress)
    counts = _counts(plan, catalogue.templates)
    progress("solving the problem again", 0.0)
    started = time.perf_counter()
    program = build_program(problem, catalogue.templates)
    solution = _largest(program, problem, seconds / 3)
    if solution is None:
        raise InputError("the problem of this plan has no plan; it was changed after planning")
    base = _Base(problem, catalogue, program, solution, plan.certificate.bound)
    steps, rejected = list(_steps(base)), _screened(base, counts)
    left = seconds - (time.perf_counter() - started)
    allowance = _Allowance(len(steps) + len(rejected), left, progress)
    return Explanation(
        problem.name,
        problem.objective,
        plan.theta,
        base.theta,
        base.bound,
        tuple(_limits(problem, plan, catalogue)),
        _carries(problem, catalogue, counts),
        tuple(_step(base, step, allowance) for step in steps),
        tuple(_rejected(base, c, counts, allowance) for c in rejected),
        tuple((*key, item) for key, item in sorted(catalogue.nearest.items())),
        tuple(_facts(problem)),
    )


def _counts(plan: Plan, templates: tuple[Template, ...]) -> FloatArray:
    """Islands of every template in the plan, shape (templates,)."""
    position = {template.key: c for c, template in enumerate(templates)}
    counts = np.zeros(len(templates))
    for group in plan.groups:
        key = _key(group)
        if key not in position:
            raise InputError(f"group {group.name}: {key} is no template of its problem: plan again")
        counts[position[key]] += group.islands
    return counts


def _key(group: Group) -> str:
    """The key of a group's template, as ``Template.key`` writes it."""
    batch = f"/b{group.max_batch}" if group.phase is Phase.DECODE else ""
    where = f"{group.model}/{group.pool}/x{group.gpus}"
    return f"{where}/{group.phase}/{group.parallelism}{batch}"


# --- what binds ---


def _limits(problem: PlanningProblem, plan: Plan, catalogue: Catalogue) -> Iterator[Limit]:
    for pool in problem.pools:
        yield from _pool_limits(pool, plan, catalogue)
    if problem.budget_per_hour is not None:
        least = _cheapest(problem, catalogue.templates)
        spare = problem.budget_per_hour - plan.cost_per_hour
        used, limit = float(plan.cost_per_hour), float(problem.budget_per_hour)
        yield Limit("budget", "all islands", used, limit, "$/h", least is None or spare < least)
    for group in plan.groups:
        full = group.utilisation >= 1 - problem.solver.gap
        yield Limit(group.binding, group.name, group.utilisation, 1.0, "1", full)


def _pool_limits(pool: Pool, plan: Plan, catalogue: Catalogue) -> Iterator[Limit]:
    """GPUs, and for every island size the packing row: sum of (s_c / s) n_c <= C(s)."""
    groups = [group for group in plan.groups if group.pool == pool.name]
    sizes = sorted({t.gpus for t in catalogue.templates if t.pool == pool.name})
    rows = []
    for size in sizes:
        used = sum(g.gpus // size * g.islands for g in groups if g.gpus >= size)
        room = capacity(pool, size)
        unit = f"islands of {size} GPU" + ("" if size == 1 else "s")
        rows.append(Limit("packing", pool.name, used, room, unit, binds=used + 1 > room))
    gpus = sum(g.gpus * g.islands for g in groups)
    yield Limit("gpus", pool.name, gpus, pool.count, "GPUs", bool(rows) and rows[0].binds)
    yield from rows


def _carries(
    problem: PlanningProblem, catalogue: Catalogue, counts: FloatArray
) -> tuple[Carry, ...]:
    """Which model and phase the plan's islands run out in."""
    most = {
        (model.name, phase): _alone(problem, catalogue, counts, model.name, phase)
        for model in sorted(problem.models, key=lambda m: m.name)
        for phase in Phase
    }
    least = min(most.values())
    return tuple(
        Carry(model, phase, theta, binds=theta <= least * (1 + problem.solver.gap))
        for (model, phase), theta in most.items()
    )


def _alone(
    problem: PlanningProblem, catalogue: Catalogue, counts: FloatArray, name: str, phase: Phase
) -> float:
    """Largest theta of one model's islands of one phase, a linear program over its ranges."""
    model = next(m for m in problem.models if m.name == name)
    served = served_ranges(catalogue.templates, name, len(model.ranges))
    rate = model.lengths.moments(model.ranges).probability * problem.weight(model)
    ranges = np.flatnonzero(served & (rate > 0))
    mine = [
        (t, n)
        for t, n in zip(catalogue.templates, counts, strict=True)
        if n > 0 and t.model == name and t.phase is phase
    ]
    width = len(ranges)
    columns = 1 + len(mine) * width
    meet = np.zeros((width, columns))
    meet[:, 0] = -1.0
    upper, rows, most = np.full(columns, np.inf), [], []
    for i, (template, count) in enumerate(mine):
        at = slice(1 + i * width, 1 + (i + 1) * width)
        meet[:, at] = np.eye(width)
        upper[at] = np.where(template.servable[ranges], np.inf, 0.0)
        for row in template.rows:
            line = np.zeros(columns)
            line[at] = np.where(template.servable[ranges], row[ranges] * rate[ranges], 0.0)
            rows.append(line)
            most.append(count)
    cost = np.zeros(columns)
    cost[0] = -1.0
    bounds = np.column_stack([np.zeros(columns), upper])
    found = linprog(cost, np.array(rows), np.array(most), meet, np.zeros(width), bounds)
    return float(-found.fun) if found.success else 0.0


# --- one step more and less ---


@dataclass(frozen=True, eq=False)
class _Changed:
    """A step to be solved; ``problem`` None where nothing of the pool or budget is left."""

    kind: str
    subject: str
    amount: float
    unit: str
    problem: PlanningProblem | None


def _steps(base: _Base) -> Iterator[_Changed]:
    problem, templates = base.problem, base.catalogue.templates
    for pool in problem.pools:
        sizes = {t.gpus for t in templates if t.pool == pool.name}
        node = {pool.gpus_per_node} - {None}
        steps = dict.fromkeys([*([min(sizes)] if sizes else []), *(node if sizes else ())])
        for gpus in steps:
            kind = "node" if gpus == pool.gpus_per_node else "island"
            for sign in (1, -1):
                changed = _with_gpus(problem, pool, sign * (gpus or 1))
                yield _Changed(kind, pool.name, sign * (gpus or 1), "GPUs", changed)
    least = _cheapest(problem, templates)
    if problem.budget_per_hour is not None and least is not None:
        for money in (least, -least):
            budget = problem.budget_per_hour + money
            spent = replace(problem, budget_per_hour=budget) if budget > 0 else None
            yield _Changed("budget", "all islands", float(money), "$/h", spent)


def _cheapest(problem: PlanningProblem, templates: tuple[Template, ...]) -> Decimal | None:
    """Price of the cheapest island: the smallest budget step that can buy something [$/h]."""
    price = {pool.name: pool.price_per_gpu_hour for pool in problem.pools}
    costs = [price[t.pool] * t.gpus for t in templates if price[t.pool]]
    return min(costs, default=None)


def _with_gpus(problem: PlanningProblem, pool: Pool, delta: int) -> PlanningProblem | None:
    """The problem with some GPUs of a pool more or fewer; None where no pool is left.

    Whole nodes go where they help most or are missed least. A part of a node is a pool of its own
    with one small node, because it packs like that.
    """
    node = pool.gpus_per_node
    if node is None or delta % node == 0:
        new = [_resized(pool, delta)]
    elif delta > 0:
        whole, part = divmod(delta, node)
        new = [_resized(pool, whole * node), _part(pool, part)]
    else:
        nodes = math.ceil(-delta / node)  # whole, then part of the last one is given back
        new = [_resized(pool, -nodes * node), _part(pool, nodes * node + delta)]
    others = [p for p in problem.pools if p.name != pool.name]
    pools = (*others, *(p for p in new if p.count > 0))
    return replace(problem, pools=pools) if pools else None


def _part(pool: Pool, gpus: int) -> Pool:
    sizes = tuple(size for size in island_sizes(pool) if size <= gpus)
    return replace(
        pool,
        name=pool.name + PART,
        count=gpus,
        gpus_per_node=gpus,
        domains=(),
        island_sizes=sizes,
    )


def _resized(pool: Pool, delta: int) -> Pool:
    domains = pool.domains
    nodes = 0 if pool.gpus_per_node is None else delta // pool.gpus_per_node
    if domains and pool.gpus_per_node is not None:
        chain = [s // pool.gpus_per_node for s in island_sizes(pool) if s >= pool.gpus_per_node]
        for _ in range(abs(nodes)):
            domains = _one_node(domains, chain, 1 if nodes > 0 else -1)
    return replace(pool, count=max(pool.count + delta, 0), domains=domains)


def _one_node(domains: tuple[Domain, ...], chain: list[int], sign: int) -> tuple[Domain, ...]:
    """One node more where it completes the largest island, or fewer where it breaks the least.

    Sizes divide each other, so the number of sizes that divide a domain says how large that is.
    """

    def completes(domain: Domain) -> int:
        nodes = domain.nodes + (1 if sign > 0 else 0)
        return sum(1 for size in chain if nodes % size == 0)

    if not domains:
        return domains
    at = sorted(domains, key=completes)[-1 if sign > 0 else 0]
    new = replace(at, nodes=at.nodes + sign)
    changed = (new if domain is at else domain for domain in domains)
    return tuple(domain for domain in changed if domain.nodes > 0)


def _step(base: _Base, step: _Changed, allowance: _Allowance) -> Step:
    seconds = allowance.take(f"{step.amount:+g} {step.unit} {step.subject}")
    result = Resolved(Outcome.NO_PLAN)
    if step.problem is not None:
        result = _resolve(base, step.problem, seconds, better=step.amount > 0)
    return Step(step.kind, step.subject, step.amount, step.unit, result)


def _resolve(base: _Base, problem: PlanningProblem, seconds: float, *, better: bool) -> Resolved:
    templates = _templates(base, problem)
    if any(_lost(problem, templates, m.name) > problem.max_unservable for m in problem.models):
        return Resolved(Outcome.NO_PLAN)
    program = build_program(problem, templates)
    try:
        found = _largest(program, problem, seconds)
    except SolverError:
        return Resolved(Outcome.UNKNOWN)
    return _compared(base, program, found, better=better)


def _lost(problem: PlanningProblem, templates: tuple[Template, ...], name: str) -> float:
    """Share of a model's requests that no template holds."""
    model = next(m for m in problem.models if m.name == name)
    served = served_ranges(templates, name, len(model.ranges))
    return 1.0 - float(model.lengths.moments(model.ranges).probability[served].sum())


def _templates(base: _Base, problem: PlanningProblem) -> tuple[Template, ...]:
    """Templates of the changed problem; benchmarked again only where a size is new."""
    known = {pool.name: set(island_sizes(pool)) for pool in base.problem.pools}
    sizes = {pool.name: set(island_sizes(pool)) for pool in problem.pools}
    if any(sizes[name] - known[name.removesuffix(PART)] for name in sizes):
        return build_catalogue(problem).templates
    found = [
        template if template.pool == pool else replace(template, pool=pool)
        for pool in sizes
        for template in base.catalogue.templates
        if template.pool == pool.removesuffix(PART) and template.gpus in sizes[pool]
    ]
    return tuple(sorted(found, key=lambda t: (t.model, t.pool)))


def _largest(
    program: Program, problem: PlanningProblem, seconds: float, forced: int | None = None
) -> Solution | None:
    """Largest theta, with at least one island of the template ``forced``."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    asked = question(program, cost)
    if forced is not None:
        asked.lower[1 + forced] = 1.0
    effort = Effort(problem.solver.gap * GAP_SHARE, max(seconds, SHORTEST), problem.solver.seed)
    return solve(program, asked, effort)


def _compared(base: _Base, program: Program, found: Solution | None, *, better: bool) -> Resolved:
    """The difference to the base; one that only adds room cannot be worse, and the other way."""
    if found is None:
        return Resolved(Outcome.NO_PLAN)
    theta, bound = float(-found.objective * program.scale), float(-found.bound * program.scale)
    if better:
        theta, bound = max(theta, base.theta), max(bound, base.theta)
        low, high = max(theta - base.bound, 0.0), bound - base.theta
    else:
        theta, bound = min(theta, base.bound), min(bound, base.bound)
        low, high = theta - base.bound, min(bound - base.theta, 0.0)
    change = min(max(theta - base.theta, low), high)
    differences = (_rounded(value, base.theta) for value in (change, low, high))
    return Resolved(Outcome.SOLVED, theta, bound, *differences)


def _rounded(value: float, of: float) -> float:
    return 0.0 if abs(value) < ROUNDING * of else value


# --- what was rejected ---


def _screened(base: _Base, counts: FloatArray) -> list[int]:
    """Templates without islands that cost least in the linear relaxation, a few per phase."""
    cost = np.zeros(base.program.columns)
    cost[THETA] = -1.0
    effort = Effort(base.problem.solver.gap, SECONDS, base.problem.solver.seed)
    price = reduced_costs(base.program, question(base.program, cost), effort)
    templates = base.catalogue.templates
    used = {_shape(t) for t, n in zip(templates, counts, strict=True) if n > 0}
    order = sorted(range(len(templates)), key=lambda c: (price[1 + c], c))
    found: list[int] = []
    for phase in Phase:
        best: dict[tuple[object, ...], int] = {}
        for c in order:
            shape = _shape(templates[c])
            if templates[c].phase is phase and base.program.count_upper[c] > 0:
                best.setdefault(shape, c)
        found += [c for shape, c in best.items() if shape not in used][:REJECTED]
    return found


def _shape(template: Template) -> tuple[object, ...]:
    """A template but for its batch: another operating point is no other choice."""
    return template.model, template.pool, template.phase, template.gpus, template.parallelism


def _rejected(base: _Base, c: int, counts: FloatArray, allowance: _Allowance) -> Rejected:
    template = base.catalogue.templates[c]
    seconds = allowance.take(f"one island of {template.key}")
    try:
        found = _largest(base.program, base.problem, seconds, forced=c)
        result = _compared(base, base.program, found, better=False)
    except SolverError:
        result = Resolved(Outcome.UNKNOWN)
    return Rejected(template.key, template.phase, _reason(base, template, counts), result)


def _reason(base: _Base, template: Template, counts: FloatArray) -> str:
    """What it offers beside the chosen template that offers most, in the scarcer measure."""
    chosen = [
        t
        for t, n in zip(base.catalogue.templates, counts, strict=True)
        if n > 0 and t.model == template.model and t.phase is template.phase
    ]
    mine = offer(base.problem, template)
    theirs = [(offer(base.problem, t), t) for t in chosen]
    if mine.per_dollar is not None and all(o.per_dollar is not None for o, _ in theirs):
        best, of = max(((o.per_dollar or 0.0, t.key) for o, t in theirs))
        return f"{mine.per_dollar:,.0f} requests per $; chosen {of}: {best:,.0f}"
    best, of = max((o.rate / t.gpus, t.key) for o, t in theirs)
    return f"{mine.rate / template.gpus:.3g} req/s per GPU; chosen {of}: {best:.3g}"


# --- where the numbers come from ---


def _facts(problem: PlanningProblem) -> Iterator[Fact]:
    """Every number that the plan stands on, the user's first."""
    yield from _stated(problem)
    for architecture in {m.architecture.name: m.architecture for m in problem.models}.values():
        yield provenance.architecture_fact(architecture)
    accelerators = {pool.accelerator.name: pool.accelerator for pool in problem.pools}
    dtypes = sorted({t for m in problem.models for t in provenance.weight_types(m.architecture)})
    for accelerator in accelerators.values():
        yield from provenance.accelerator_facts(accelerator)
        for dtype in dict.fromkeys(accelerator.operand(dtype) for dtype in dtypes):
            yield from provenance.efficiency_facts(accelerator, dtype)
    yield from provenance.overhead_facts()


def _stated(problem: PlanningProblem) -> Iterator[Fact]:
    """What the ServingPlan says."""

    def user(subject: str, name: str, value: object, unit: str) -> Fact:
        return Fact(subject, name, str(value), unit, provenance.Kind.USER, "ServingPlan")

    for model in problem.models:
        if model.rate is not None:
            yield user(model.name, "requestsPerSecond", f"{model.rate:g}", "req/s")
        else:
            yield user(model.name, "weight", f"{model.weight:g}", "1")
        for name, target in (("ttft", model.targets.ttft), ("tpot", model.targets.tpot)):
            if target is not None:
                yield user(model.name, name, f"{target * 1e3:g}", "ms")
        mean = float(model.lengths.probability @ model.lengths.length)
        output = float(model.lengths.probability @ model.lengths.output)
        yield user(model.name, "mean input of the workload", f"{mean:.4g}", "tokens")
        yield user(model.name, "mean output of the workload", f"{output:.4g}", "tokens")
    for pool in problem.pools:
        yield user(pool.name, "count", pool.count, "GPUs")
        yield user(pool.name, "pricePerGPUHour", pool.price_per_gpu_hour, "$/h")
    if problem.budget_per_hour is not None:
        yield user(problem.name, "budgetPerHour", problem.budget_per_hour, "$/h")
