"""Deployed islands, and what they could be without moving a GPU.

A *body* is an island's class without its phase: model, domain class, GPUs by pool, parallelism.
Islands of one body become each other by a change of phase. Templates of one body and phase are
operating points of one engine, which need no restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

    ``switch``: by model, how its engine changes phase (default: restart). ``pinned``: islands that
    change only if others of their kind do not suffice.
    """

    problem: PlanningProblem
    plan: Plan
    templates: tuple[Template, ...]
    switch: Mapping[str, RoleSwitch] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()

    @cached_property
    def kinds(self) -> Counter[IslandClass]:
        """Number of islands by class."""
        count: Counter[IslandClass] = Counter()
        for group in self.plan.groups:
            count[group.island_class] += group.islands
        return count

    def reachable(self, kind: IslandClass) -> IslandClass:
        """Return the body of a class; the class itself if its phase cannot change."""
        fixed = self.switch.get(kind.model) is RoleSwitch.NONE
        return kind if fixed else kind.without_phase

    @cached_property
    def _by_class(self) -> dict[IslandClass, list[Template]]:
        templates: dict[IslandClass, list[Template]] = {}
        for template in self.templates:
            templates.setdefault(template.island_class, []).append(template)
        return templates

    @cached_property
    def _limited(self) -> dict[tuple[Template, int], Template]:
        """Templates limited to smaller batches; cached because templates compare by identity."""
        return {}

    def operating_points(self, group: Group) -> tuple[Template, ...]:
        """Return the templates that an island of the group may run as.

        Those up to the batch that its engine admits, and the smallest larger one limited to that
        batch: contexts that are a little shorter than planned move every point a little. Its step
        times also bound those of smaller batches. A batch row is o (a / B + beta + kappa k), so
        B / batch times the row is at least the row of the smaller batch.
        """
        points, batch = self._by_class.get(group.island_class, []), group.max_batch
        within = [t for t in points if t.max_batch <= batch]
        larger = [t for t in points if t.max_batch > batch]
        if not larger or any(t.max_batch == batch for t in within):
            return tuple(within)
        smallest = min(larger, key=lambda t: t.max_batch)
        if (limited := self._limited.get((smallest, batch))) is None:
            factors = [
                smallest.max_batch / batch if n == "batch" else 1.0 for n in smallest.row_names
            ]
            rows = smallest.rows * np.array(factors)[:, np.newaxis]
            limited = replace(smallest, max_batch=batch, rows=rows)
            self._limited[smallest, batch] = limited
        return (*within, limited)


def deployed_islands(
    problem: PlanningProblem, plan: Plan, switch: Mapping[str, RoleSwitch] | None = None
) -> DeployedIslands:
    """Return the plan's islands with templates for the lengths of the observed demand.

    The templates are of all phases that the islands may have.
    """
    switch = switch or {}
    phases = {model.name: model.phases for model in problem.models}
    classes: dict[IslandClass, Shape] = {}
    for group in plan.groups:
        others = () if switch.get(group.model) is RoleSwitch.NONE else phases[group.model]
        for phase in (group.phase, *others):
            kind = group.island_class._replace(phase=phase)
            if kind not in classes:
                classes[kind] = shape_of(problem, group, phase)
    deployed = {group.island_class for group in plan.groups}
    templates = templates_of(problem, list(classes.values()), deployed)
    return DeployedIslands(problem, plan, templates, switch)


def shape_of(problem: PlanningProblem, group: Group, phase: Phase | None = None) -> Shape:
    """Return the shape of the group's islands, as they are or in another phase."""
    pools = {pool.name: pool for pool in problem.pools}
    demand = next(model for model in problem.models if model.name == group.model)
    sections = tuple((pools[part.pool], part.gpus) for part in group.sections)
    return Shape(demand, sections, group.domain_class, group.parallelism, phase or group.phase)
