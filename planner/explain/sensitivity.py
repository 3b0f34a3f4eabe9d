"""Changed problems solved again, and the difference to the unchanged one as a sure interval.

The unchanged problem and a changed one each have a best plan found and a proven bound, so the true
difference lies in an interval; that interval, and not a dual price, is what is told. Re-solves are
limited in nodes and not in seconds, so that they end at the same place however busy the machine is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from archipelago.planner.errors import SolverError
from archipelago.planner.packing import island_sizes
from archipelago.planner.problem import Objective
from archipelago.planner.program import build_program, served_ranges
from archipelago.planner.projected import solve
from archipelago.planner.solve import Effort, Solution
from archipelago.planner.strategies.exact import objective
from archipelago.planner.templates import Catalogue, Template, build_catalogue

if TYPE_CHECKING:
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.program import Program

GAP_SHARE = 0.5
"""Part of the published gap that a re-solve may leave, as in the plan's own first solve."""
NODES = 200
"""Nodes of one re-solve; the frozen instances need no more in 9 of 10."""
FIRST_NODES = 2_000
"""Nodes of the unchanged problem, which all differences start from."""
PATIENCE = 60.0
"""Seconds of one re-solve at most; nodes end it long before, but for problems out of proportion."""
PART = " (part)"
"""Ends the name of a pool that stands for part of a node; no pool of a ServingPlan is named so."""
ROUNDING = 1e-9
"""Share of the objective below which a difference is the solver's rounding."""


class Outcome(StrEnum):
    """How a re-solve ended."""

    SOLVED = "solved"
    NO_PLAN = "no plan"
    UNKNOWN = "not solved in time"


@dataclass(frozen=True)
class Resolved:
    """The best objective of a changed problem: found, proven bound, and the difference to the base.

    Objective: theta, or the cost under the cost objective [$/h]. The true difference lies in
    [``low``, ``high``]. None where the outcome is not ``SOLVED``.
    """

    outcome: Outcome
    value: float | None = None
    bound: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Base:
    """The unchanged problem, solved; ``proven`` is the plan's own bound."""

    problem: PlanningProblem
    catalogue: Catalogue
    program: Program
    solution: Solution
    proven: float

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.problem.objective is Objective.COST else 1

    @property
    def value(self) -> float:
        """Best objective found."""
        return self.stated(self.program, self.solution.objective)

    @property
    def bound(self) -> float:
        """Proven bound: the better of both proofs."""
        found = self.sign * self.stated(self.program, self.solution.bound)
        return self.sign * max(min(found, self.sign * self.proven), self.sign * self.value)

    def stated(self, program: Program, minimised: float) -> float:
        """An objective of the solver as theta, or as cost [$/h]."""
        return minimised if self.sign < 0 else -minimised * program.scale


def best(
    program: Program, problem: PlanningProblem, nodes: int = NODES, forced: int | None = None
) -> Solution | None:
    """Largest theta or least cost, with at least one island of the template ``forced``.

    None where there is no plan.

    Raises:
        SolverError: nothing was found within the nodes.
    """
    asked = objective(program, problem)
    if forced is not None:
        asked.lower[1 + forced] = 1.0
    gap = problem.solver.gap * GAP_SHARE
    return solve(program, asked, Effort(gap, PATIENCE, problem.solver.seed, nodes))


def resolved(base: Base, problem: PlanningProblem, *, better: bool) -> Resolved:
    """A changed problem; ``better``: the change only adds room, else it only takes some away."""
    templates = _templates(base, problem)
    if any(_lost(problem, templates, m.name) > problem.max_unservable for m in problem.models):
        return Resolved(Outcome.NO_PLAN)
    program = build_program(problem, templates)
    try:
        found = best(program, problem)
    except SolverError:
        return Resolved(Outcome.UNKNOWN)
    return _compared(base, program, found, better=better)


def forced(base: Base, template: int) -> Resolved:
    """The unchanged problem with at least one island of a template."""
    try:
        found = best(base.program, base.problem, forced=template)
    except SolverError:
        return Resolved(Outcome.UNKNOWN)
    return _compared(base, base.program, found, better=False)


def _lost(problem: PlanningProblem, templates: tuple[Template, ...], name: str) -> float:
    """Share of a model's requests that no template holds."""
    model = next(m for m in problem.models if m.name == name)
    served = served_ranges(templates, name, len(model.ranges), problem.links)
    return 1.0 - float(model.lengths.moments(model.ranges).probability[served].sum())


def _templates(base: Base, problem: PlanningProblem) -> tuple[Template, ...]:
    """Templates of the changed problem; benchmarked again only where a size is new."""
    known = {pool.name: set(island_sizes(pool)) for pool in base.problem.pools}
    sizes = {pool.name: set(island_sizes(pool)) for pool in problem.pools}
    if any(sizes[name] - known[name.removesuffix(PART)] for name in sizes):
        return build_catalogue(problem).templates
    found = [found for t in base.catalogue.templates for found in _fitting(t, sizes)]
    return tuple(sorted(found, key=lambda t: (t.model, t.pool)))


def _fitting(template: Template, sizes: dict[str, set[int]]) -> list[Template]:
    """The template in the pools that are left, and in a part of a node of its pool."""
    stays = all(part.gpus in sizes.get(part.pool, ()) for part in template.sections)
    here = [template] if stays else []
    part = template.pool + PART
    if template.gpus in sizes.get(part, ()):
        here.append(replace(template, pool=part))
    return here


def _compared(base: Base, program: Program, found: Solution | None, *, better: bool) -> Resolved:
    """The difference to the base; one that only adds room cannot be worse, and the other way."""
    if found is None:
        return Resolved(Outcome.NO_PLAN)
    sign, start, most = base.sign, base.sign * base.value, base.sign * base.bound
    value = sign * base.stated(program, found.objective)
    bound = sign * base.stated(program, found.bound)
    if better:
        value, bound = max(value, start), max(bound, start)
        low, high = max(value - most, 0.0), bound - start
    else:
        value, bound = min(value, most), min(bound, most)
        low, high = value - most, min(bound - start, 0.0)
    change = min(max(value - start, low), high)
    exact = [0.0 if abs(x) < ROUNDING * abs(start) else sign * x for x in (change, low, high)]
    return Resolved(Outcome.SOLVED, sign * value, sign * bound, exact[0], *sorted(exact[1:]))
