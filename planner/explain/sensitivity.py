"""Sensitivity: solve problems that are one step away (an island, a node, a budget, the rates).

The plan and the plan of the changed problem each have an objective and a proven bound, so the true
difference is in an interval; that interval is reported, not a dual price. What is asked most often
comes first, and each question has its part of the time that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from archipelago.perfmodel.model import FloatArray

from ..errors import SolverError
from ..milp import highs
from ..milp.build import build_program, served_ranges
from ..milp.highs import Solution, SolverOptions, objective_of
from ..milp.variables import Program
from ..problem import DEFAULT_CLASS, Billing, Domain, Objective, PlanningProblem, Pool
from ..search.portfolio import solve
from ..templates.catalogue import Catalogue, TemplateCache, build_catalogue
from ..templates.packing import island_sizes
from ..templates.template import Template

GAP_SHARE = 0.5
"""Part of the published gap that a re-solve may leave, as in the plan's own first solve."""
NODES = 200
"""Nodes of one re-solve; more narrow the interval of the largest problems only."""
LEAST_TIME = 0.02
"""A question with less time left is not begun [s]."""
PART = " (part)"
"""Suffix of the name of a pool that is part of a node; not allowed in a ServingPlan."""
ROUNDING = 1e-9
"""Share of the objective below which a difference is the solver's rounding."""


class Outcome(StrEnum):
    """How a re-solve ended."""

    SOLVED = "solved"
    NO_PLAN = "no plan"
    UNKNOWN = "not solved in time"


@dataclass(frozen=True)
class Resolution:
    """Objective and proven bound of a changed problem, and the difference to the unchanged one.

    Objective: theta, or the cost under the cost objective [$/h]. The true difference is in
    [``low``, ``high``]. All are None unless the outcome is ``SOLVED``.
    """

    outcome: Outcome
    value: float | None = None
    bound: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class BaseSolution:
    """The unchanged problem and its plan.

    ``values``, shape (columns,): the plan's islands with the best rates for them. ``proven``: the
    plan's bound. ``cache``: templates of any problem of the same models.
    """

    problem: PlanningProblem
    catalogue: Catalogue
    program: Program
    solution: Solution
    proven: float
    cache: TemplateCache

    @property
    def sign(self) -> int:
        """1 if theta is maximised, -1 if the cost is minimised."""
        return -1 if self.problem.objective is Objective.COST else 1

    @property
    def value(self) -> float:
        """Objective of the plan's islands before its rates are rounded."""
        return self.stated(self.program, self.solution.objective)

    @property
    def bound(self) -> float:
        """Proven bound, never on the wrong side of the objective."""
        return self.sign * max(self.sign * self.proven, self.sign * self.value)

    def stated(self, program: Program, minimised: float) -> float:
        """Return an objective of the solver as theta, or as cost [$/h]."""
        return minimised if self.sign < 0 else -minimised * program.scale


def solution_of(
    program: Program, problem: PlanningProblem, counts: FloatArray, seconds: float
) -> Solution | None:
    """Return the best rates for given islands; None if they do not keep the problem's limits.

    ``counts``, shape (templates,).

    Raises:
        SolverError: there was no time.
    """
    objective = objective_of(program, problem)
    objective.lower[1 : program.first_pair] = counts
    objective.upper[1 : program.first_pair] = counts
    options = SolverOptions(problem.solver.gap * GAP_SHARE, seconds, problem.solver.seed)
    return highs.solve(program, objective, options)


def resolve(
    base: BaseSolution, problem: PlanningProblem | None, seconds: float, *, better: bool
) -> Resolution:
    """Solve a changed problem; ``better``: it only relaxes limits, else it only tightens them.

    ``problem`` None: nothing remains, so there is no plan. ``seconds``: at most.
    """
    if problem is None:
        return Resolution(Outcome.NO_PLAN)
    templates = _templates(base, problem)
    for model in problem.models:
        served = served_ranges(templates, model.name, len(model.ranges), problem.links)
        share = float(model.lengths.moments(model.ranges).probability[served].sum())
        if 1.0 - share > problem.max_unservable:
            return Resolution(Outcome.NO_PLAN)
    return _resolution(base, build_program(problem, templates), problem, seconds, better=better)


def resolve_with(base: BaseSolution, template: int, seconds: float) -> Resolution:
    """Solve the unchanged problem with at least one island of a template, in so many seconds."""
    return _resolution(base, base.program, base.problem, seconds, better=False, forced=template)


def _templates(base: BaseSolution, problem: PlanningProblem) -> tuple[Template, ...]:
    """Return the templates of the changed problem; they are built again only if a size is new."""
    before = {pool.name: set(island_sizes(pool)) for pool in base.problem.pools}
    sizes = {pool.name: set(island_sizes(pool)) for pool in problem.pools}
    if any(sizes[name] - before[name.removesuffix(PART)] for name in sizes):
        return build_catalogue(problem, cache=base.cache).templates
    templates = []
    for template in base.catalogue.templates:
        if all(part.gpus in sizes.get(part.pool, ()) for part in template.sections):
            templates.append(template)
        part_of_node = template.pool + PART
        if template.gpus in sizes.get(part_of_node, ()):
            templates.append(replace(template, pool=part_of_node))
    return tuple(sorted(templates, key=lambda t: (t.model, t.pool)))


def _resolution(
    base: BaseSolution,
    program: Program,
    problem: PlanningProblem,
    seconds: float,
    *,
    better: bool,
    forced: int | None = None,
) -> Resolution:
    """Solve, and return the difference to the base; relaxed limits never make it worse.

    ``forced``: a template of which there is at least one island.
    """
    objective = objective_of(program, problem)
    if forced is not None:
        objective.lower[1 + forced] = 1.0
    gap, seed = problem.solver.gap * GAP_SHARE, problem.solver.seed
    # What relaxes a limit leaves the plan as it is possible: the search begins with it.
    same = better and program.templates == base.program.templates
    known = base.solution.values if same else None
    try:
        solution = solve(program, objective, SolverOptions(gap, seconds, seed, NODES), known)
    except SolverError:
        return Resolution(Outcome.UNKNOWN)
    if solution is None:
        return Resolution(Outcome.NO_PLAN)
    sign, start, most = base.sign, base.sign * base.value, base.sign * base.bound
    value = sign * base.stated(program, solution.objective)
    bound = sign * base.stated(program, solution.bound)
    if better:
        value, bound = max(value, start), max(bound, start)
        low, high = max(value - most, 0.0), bound - start
    else:
        value, bound = min(value, most), min(bound, most)
        low, high = value - most, min(bound - start, 0.0)
    change = min(max(value - start, low), high)
    exact = [0.0 if abs(x) < ROUNDING * abs(start) else sign * x for x in (change, low, high)]
    return Resolution(Outcome.SOLVED, sign * value, sign * bound, exact[0], *sorted(exact[1:]))


KINDS = ("rate", "node", "budget", "island")
"""Kinds of steps, the most asked first."""

RATE_STEP = 5
"""Step of the rates under the cost objective [%]."""


@dataclass(frozen=True, eq=False)
class Perturbation:
    """A problem one step away; ``problem`` None if nothing of the pool or budget remains.

    ``better``: the step relaxes a limit.
    """

    kind: str
    subject: str
    amount: float
    unit: str
    problem: PlanningProblem | None
    better: bool


def perturbations(problem: PlanningProblem, templates: tuple[Template, ...]) -> list[Perturbation]:
    """Return every step that can matter, in both directions, the most asked first.

    That is other rates, then what more would bring, then what less would cost; whole nodes and
    money before single islands.
    """
    steps = list(_perturbations(problem, templates))
    return sorted(steps, key=lambda s: (s.kind != "rate", s.amount < 0, KINDS.index(s.kind)))


def _perturbations(
    problem: PlanningProblem, templates: tuple[Template, ...]
) -> Iterator[Perturbation]:
    for pool in problem.pools:
        node = pool.gpus_per_node
        # Part of a node is a pool of its own, which islands of several pools could not use.
        whole = node is not None and any(pool.name in names for names in problem.pipelines)
        for domain_class in pool.classes:
            sizes = {t.gpus_of(pool.name) for t in templates if t.domain_class == domain_class}
            sizes -= {0}
            if not sizes:
                continue
            steps = [*([] if whole else [min(sizes)]), *([] if node is None else [node])]
            for gpus in dict.fromkeys(steps):
                kind = "node" if gpus == node else "island"
                where = place(pool, domain_class)
                for step in (gpus, -gpus):
                    changed = with_gpus(problem, pool, step, domain_class)
                    yield Perturbation(kind, where, step, "GPUs", changed, step > 0)
    least = cheapest(problem, templates)
    if problem.budget_per_hour is not None and least is not None:
        for money in (least, -least):
            budget = problem.budget_per_hour + money
            spent = replace(problem, budget_per_hour=budget) if budget > 0 else None
            yield Perturbation("budget", "all islands", float(money), "$/h", spent, money > 0)
    if problem.objective is Objective.COST:
        for share in (RATE_STEP, -RATE_STEP):
            headroom = (problem.min_headroom or 1.0) * (1 + share / 100)
            changed = replace(problem, min_headroom=headroom)
            yield Perturbation("rate", "all models", share, "%", changed, share < 0)


def place(pool: Pool, domain_class: str) -> str:
    """Return the name of the pool, with the class if it has several."""
    return pool.name if len(pool.classes) == 1 else f"{pool.name} in {domain_class}"


def cheapest(problem: PlanningProblem, templates: tuple[Template, ...]) -> Decimal | None:
    """Return the price of the cheapest island, the smallest useful budget step [$/h]."""
    pools = {pool.name: pool for pool in problem.pools}
    costs = [sum((_price(pools[p.pool], p.gpus) for p in t.sections), Decimal()) for t in templates]
    return min((cost for cost in costs if cost), default=None)


def _price(pool: Pool, gpus: int) -> Decimal:
    """Return the price of some GPUs on empty nodes; whole nodes if these are paid for [$/h]."""
    node = pool.gpus_per_node if pool.billing is Billing.PER_NODE else None
    return pool.price_per_gpu_hour * (gpus if node is None else math.ceil(gpus / node) * node)


def with_gpus(
    problem: PlanningProblem, pool: Pool, delta: int, domain_class: str | None = None
) -> PlanningProblem | None:
    """Return the problem with more or fewer GPUs of a pool; None if no pool remains.

    Whole nodes are added or removed in the domain in which this changes most or least. A part of a
    node is a pool of its own with one small node. In a pool that can rent, the GPUs that can be
    rented change. ``domain_class`` None: any.
    """
    node = pool.gpus_per_node
    if node is None or delta % node == 0:
        new = [_resized(pool, delta, domain_class)]
    elif delta > 0:
        whole, part = divmod(delta, node)
        new = [_resized(pool, whole * node, domain_class), _part(pool, part, domain_class)]
    else:
        nodes = math.ceil(-delta / node)  # whole, then part of the last one is given back
        rest = nodes * node + delta
        new = [_resized(pool, -nodes * node, domain_class), _part(pool, rest, domain_class)]
    others = [p for p in problem.pools if p.name != pool.name]
    pools = (*others, *(p for p in new if p.available > 0))
    names = {pool.name for pool in pools}
    pipelines = tuple(p for p in problem.pipelines if names.issuperset(p))
    return replace(problem, pools=pools, pipelines=pipelines) if pools else None


def _part(pool: Pool, gpus: int, domain_class: str | None) -> Pool:
    sizes = tuple(size for size in island_sizes(pool) if size <= gpus)
    place = domain_class or DEFAULT_CLASS
    return replace(
        pool,
        name=pool.name + PART,
        count=gpus,
        max_count=None,
        gpus_per_node=gpus,
        domains=() if place == DEFAULT_CLASS else (Domain("part", 1, place),),
        island_sizes=sizes,
    )


def _resized(pool: Pool, delta: int, domain_class: str | None) -> Pool:
    """Return the pool with more or fewer GPUs: rentable ones first, then existing ones."""
    if pool.max_count is not None:
        rents = pool.domains[0].domain_class if pool.domains else DEFAULT_CLASS
        if domain_class not in (None, rents):
            existing = _resized(replace(pool, max_count=None), delta, domain_class)
            return replace(existing, max_count=pool.max_count + delta)
        if pool.max_count + delta > pool.count:
            return replace(pool, max_count=pool.max_count + delta)
        delta += pool.max_count - pool.count
        pool = replace(pool, max_count=None)
    domains = pool.domains
    nodes = 0 if pool.gpus_per_node is None else delta // pool.gpus_per_node
    if domains and pool.gpus_per_node is not None:
        chain = [s // pool.gpus_per_node for s in island_sizes(pool) if s >= pool.gpus_per_node]
        for _ in range(abs(nodes)):
            domains = _one_node(domains, chain, 1 if nodes > 0 else -1, domain_class)
    return replace(pool, count=max(pool.count + delta, 0), domains=domains)


def _one_node(
    domains: tuple[Domain, ...], chain: list[int], sign: int, domain_class: str | None
) -> tuple[Domain, ...]:
    """Add a node where it completes the largest island, or remove one where it breaks the smallest.

    Sizes divide each other, so the number of sizes that divide a domain measures that island.
    """

    def completes(domain: Domain) -> int:
        nodes = domain.nodes + (1 if sign > 0 else 0)
        return sum(1 for size in chain if nodes % size == 0)

    candidates = [
        d for d in domains if domain_class in (None, d.domain_class) and (sign > 0 or d.nodes)
    ]
    if not candidates:
        return domains
    at = sorted(candidates, key=completes)[-1 if sign > 0 else 0]
    new = replace(at, nodes=at.nodes + sign)
    changed = (new if domain is at else domain for domain in domains)
    return tuple(domain for domain in changed if domain.node_count > 0)
