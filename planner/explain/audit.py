"""What the planner's own rows say of a plan file: its exclusions, its figures, and its bound.

The catalogue and the program are built again from the problem in the file, by the code that made
the plan. So these checks find a changed file, and they do not judge the rows; the checks of
``planner/check`` share no code with the planner and judge the plan itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..check.checker import CheckResult
from ..check.index import TOLERANCE, PlanIndex, misstated
from ..check.uncertainty import CapacityRows, check_uncertainty
from ..formats.plan_file import Stored
from ..milp.build import build_program
from ..milp.duality import proven_bound, row_names
from ..milp.highs import SolverOptions, largest_theta, objective_of, solve
from ..milp.variables import Program
from ..plan import Plan, running_islands
from ..problem import Objective, PlanningProblem, RunningIsland
from ..templates.catalogue import Catalogue, build_catalogue
from ..templates.template import Template

DOMINATED = re.compile("dominated by (?P<template>.*): no range is served better per GPU")
OPERATING_POINT = re.compile("/b[0-9]+$")
SECONDS = 60.0
"""Limit of the linear program over the counts of a plan; it takes milliseconds."""


@dataclass(frozen=True)
class Proof:
    """How much of a plan's gap the prices prove, and how much is the word of the solver's search.

    ``gap``: as stated. ``by_prices``: gap to the bound that the prices prove; infinite without.
    """

    gap: float
    by_prices: float


def audit(stored: Stored) -> tuple[list[CheckResult], Proof]:
    """Check a plan file against the catalogue and the program of its problem."""
    problem = replace(stored.problem, running=_remaining(stored.plan))
    catalogue, index = build_catalogue(problem), PlanIndex(stored.problem, stored.plan)
    templates = dict(_templates(stored.plan, catalogue))
    rows = {name: CapacityRows(t.row_names, t.rows) for name, t in templates.items()}
    program = build_program(problem, catalogue.templates)
    findings, proof = _check_bound(stored.plan, problem, program)
    findings += _check_against_itself(stored.plan, program, templates)
    return [
        CheckResult("templates left out", tuple(_check_exclusions(stored.plan, catalogue))),
        CheckResult("use of capacity", tuple(_check_use(index, templates))),
        CheckResult("uncertainty", tuple(check_uncertainty(index, rows))),
        CheckResult("bound", tuple(findings)),
    ], proof


def _remaining(plan: Plan) -> tuple[RunningIsland, ...]:
    """Return the islands that ran before and still do: their templates are never left out."""
    if plan.changes is None:
        return ()
    names = {*plan.changes.kept, *plan.changes.moved}
    return tuple(island for island in running_islands(plan) if island.name in names)


def _templates(plan: Plan, catalogue: Catalogue) -> Iterator[tuple[str, Template]]:
    """Yield the template of every group by the group's name; none if the catalogue lacks it."""
    by_kind = {(t.island_class, t.parts, t.max_batch): t for t in catalogue.templates}
    for group in plan.groups:
        if template := by_kind.get((group.island_class, group.parts, group.max_batch)):
            yield group.name, template


def _check_exclusions(plan: Plan, catalogue: Catalogue) -> Iterator[str]:
    """Check the reason of every template that was left out.

    Templates of running classes are not left out for being dominated, and the file does not have
    the classes of islands that were stopped: so many classes may be missing, and what dominates
    another template may be one of theirs.
    """
    stated = {item.template: item.reason for item in plan.exclusions}
    if len(stated) < len(plan.exclusions):
        yield "exclusions: a template stands twice"
    found = {item.template: item.reason for item in catalogue.exclusions}
    stopped = 0 if plan.changes is None else len(plan.changes.stopped)
    missing = {name for name in found if name not in stated and dominating(found[name])}
    ran = len({OPERATING_POINT.sub("", name) for name in missing}) <= stopped
    known = {template.key for template in catalogue.templates} | {*found}
    for name in sorted({*stated, *found}):
        here, there = stated.get(name), found.get(name)
        if ran and name in missing:
            continue
        if stopped and here and there and dominating(there) and dominating(here) in known:
            continue
        yield from misstated(f"exclusions[{name}]", here, there, "the catalogue has")


def dominating(reason: str) -> str:
    """Return the template that a reason says to be better; empty if it is another reason."""
    match = DOMINATED.fullmatch(reason)
    return match["template"] if match else ""


def _check_use(index: PlanIndex, templates: dict[str, Template]) -> Iterator[str]:
    """Check that every group is of a template, and its capacity row with the least slack."""
    for group in index.valid_groups:
        place = f"groups[{group.name}]"
        if (template := templates.get(group.name)) is None:
            yield f"{place}: the catalogue has no template of its islands with this maxBatch"
            continue
        loads = template.rows @ np.array(index.island_rates(group))
        yield from misstated(f"{place}.utilisation", group.utilisation, float(loads.max()))
        used = dict(zip(template.row_names, loads.tolist(), strict=True))
        if used.get(group.binding, 0.0) < loads.max() * (1 - TOLERANCE):
            binding = template.row_names[int(loads.argmax())]
            yield from misstated(f"{place}.binding", group.binding, binding)


def _check_bound(plan: Plan, problem: PlanningProblem, program: Program) -> tuple[list[str], Proof]:
    """Check the bound that the prices of the program's rows prove."""
    certificate = plan.certificate
    if certificate.priced is None:
        return [], Proof(certificate.gap, math.inf)
    prices = dict(certificate.priced.prices)
    proven = proven_bound(program, problem, objective_of(program, problem), prices)
    cheapest = problem.objective is Objective.COST
    value = float(plan.cost_per_hour) if cheapest else plan.theta
    gap = (value - proven) / value if cheapest else 1 - value / proven
    findings = [*misstated("pricedBound.bound", certificate.priced.bound, proven, "prices prove")]
    if plan.changes is None or not plan.changes.stopped:
        unknown = sorted({*prices} - {*row_names(program, problem)})
        findings += [f"pricedBound.prices[{name}]: the program has no such row" for name in unknown]
    return findings, Proof(certificate.gap, gap)


def _check_against_itself(
    plan: Plan, program: Program, templates: dict[str, Template]
) -> Iterator[str]:
    """Check that the plan's own islands do not reach more than the bound on theta.

    A plan gives up a part of its gap for fewer islands and readable routes, so a linear program
    over its counts reaches more than its theta, and refutes a bound that was moved there.
    """
    if plan.objective is Objective.COST or len(templates) < len(plan.groups):
        return
    index = {id(template): c for c, template in enumerate(program.templates, start=1)}
    objective = replace(largest_theta(program), integer=False)
    for counts in (objective.lower, objective.upper):
        counts[1 : program.first_pair] = 0.0
        for group in plan.groups:
            counts[index[id(templates[group.name])]] += group.islands
    solution = solve(program.without_cover(), objective, SolverOptions(0.0, SECONDS))
    reached = 0.0 if solution is None else -solution.objective * program.scale
    if reached > plan.certificate.bound * (1 + TOLERANCE):
        yield f"bound: {plan.certificate.bound:.9g} on theta, but these islands reach {reached:.9g}"
