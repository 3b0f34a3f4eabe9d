"""Deployed islands, and what they could be without moving a GPU.

A *body* is an island's class without its phase: model, domain class, GPUs by pool, parallelism.
Islands of one body become each other by a change of phase. Templates of one body and phase are
operating points of one engine, which need no restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..plan import Group, IslandClass, Plan
from ..problem import Phase, PlanningProblem
from ..templates.catalogue import templates_of
from ..templates.shapes import Shape
from ..templates.template import Template
from .types import RoleSwitch


@dataclass(frozen=True, eq=False)
class DeployedIslands:
    """A table's islands under the observed demand, with the templates of their bodies.

    ``fixed``: models whose islands cannot change phase.
    """

    problem: PlanningProblem
    plan: Plan
    templates: tuple[Template, ...]
    fixed: frozenset[str] = frozenset()

    @cached_property
    def kinds(self) -> Counter[IslandClass]:
        """Number of islands by class."""
        count: Counter[IslandClass] = Counter()
        for group in self.plan.groups:
            count[group.island_class] += group.islands
        return count

    def reachable(self, kind: IslandClass) -> IslandClass:
        """Return the body of a class; the class itself if its phase cannot change."""
        return kind if kind.model in self.fixed else kind.without_phase

    @cached_property
    def reachable_counts(self) -> Counter[IslandClass]:
        """Number of islands by body."""
        count: Counter[IslandClass] = Counter()
        for kind, islands in self.kinds.items():
            count[self.reachable(kind)] += islands
        return count

    @cached_property
    def _by_class(self) -> dict[IslandClass, list[Template]]:
        templates: dict[IslandClass, list[Template]] = {}
        for template in self.templates:
            templates.setdefault(template.island_class, []).append(template)
        return templates

    def operating_points(self, group: Group) -> tuple[Template, ...]:
        """Return the templates that an island of the group may run as.

        Those up to the batch that its engine admits; if all are larger, the smallest of them
        limited to that batch.
        """
        points = self._by_class.get(group.island_class, [])
        within = [t for t in points if t.max_batch <= group.max_batch]
        if within or not points:
            return tuple(within)
        smallest = min(points, key=lambda t: t.max_batch)
        key = smallest, group.max_batch
        return (self._limited.setdefault(key, _limited_to(*key)),)

    @cached_property
    def _limited(self) -> dict[tuple[Template, int], Template]:
        """Templates limited to smaller batches; cached because templates compare by identity."""
        return {}


def _limited_to(template: Template, batch: int) -> Template:
    """Return the template in an engine that admits less than its operating point.

    Its step times also bound those of smaller batches. A batch row is o (a / B + beta + kappa k),
    so B / batch times the row is at least the row of the smaller batch.
    """
    factor = np.array(
        [[template.max_batch / batch if n == "batch" else 1.0] for n in template.row_names]
    )
    return replace(template, max_batch=batch, rows=template.rows * factor)


def deployed_islands(
    problem: PlanningProblem,
    plan: Plan,
    switch: Mapping[str, RoleSwitch] | None = None,
    templates: tuple[Template, ...] | None = None,
) -> DeployedIslands:
    """Return the plan's islands with templates for the lengths of the observed demand.

    ``switch``: by model, how its engine changes phase. ``templates``: of the islands' bodies, if
    already built.
    """
    if templates is None:
        templates = templates_of(list(_shapes(problem, plan, switch or {})), problem.calibrations)
    fixed = frozenset(m for m, how in (switch or {}).items() if how is RoleSwitch.NONE)
    return DeployedIslands(problem, plan, templates, fixed)


def shape_of(problem: PlanningProblem, group: Group, phase: Phase | None = None) -> Shape:
    """Return the shape of the group's islands, as they are or in another phase."""
    pools = {pool.name: pool for pool in problem.pools}
    demand = next(model for model in problem.models if model.name == group.model)
    sections = tuple((pools[part.pool], part.gpus) for part in group.sections)
    return Shape(demand, sections, group.domain_class, group.parallelism, phase or group.phase)


def _shapes(
    problem: PlanningProblem, plan: Plan, switch: Mapping[str, RoleSwitch]
) -> Iterator[Shape]:
    """Yield the shapes of all islands in all phases that they may have, each once."""
    pools = {pool.name: pool for pool in problem.pools}
    demands = {model.name: model for model in problem.models}
    classes = set()
    for group in plan.groups:
        model, domain_class, parts, _, parallelism = group.island_class
        sections = tuple((pools[name], gpus) for name, gpus in parts)
        fixed = switch.get(model) is RoleSwitch.NONE
        others = () if fixed else demands[model].phases
        for phase in dict.fromkeys((group.phase, *others)):
            island_class = group.island_class._replace(phase=phase)
            if island_class not in classes:
                classes.add(island_class)
                yield Shape(demands[model], sections, domain_class, parallelism, phase)
