"""Islands that stand, and what they could be without moving a GPU.

A *body* is an island without its phase: model, domain class, GPUs by pool, parallelism. Templates
of one body are what its islands can be by a change of phase; templates of one body and phase are
operating points of an engine, which need no restart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from archipelago.planner.kinds import kind_of
from archipelago.planner.replan.facts import RoleSwitch
from archipelago.planner.shapes import Shape
from archipelago.planner.templates import benchmarked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archipelago.perfmodel.parallelism import Parallelism
    from archipelago.planner.kinds import Kind
    from archipelago.planner.plan import Group, Plan
    from archipelago.planner.problem import Phase, PlanningProblem
    from archipelago.planner.template import Template

Body: TypeAlias = "tuple[str, str, tuple[tuple[str, int], ...], Parallelism]"
"""Model, domain class, GPUs by pool, parallelism."""


@dataclass(frozen=True, eq=False)
class Standing:
    """A table's islands under the observed demand, with the templates of their bodies.

    ``fixed``: models whose islands keep their phase.
    """

    problem: PlanningProblem
    plan: Plan
    templates: tuple[Template, ...]
    fixed: frozenset[str] = frozenset()

    @cached_property
    def kinds(self) -> Counter[Kind]:
        """Islands of every kind."""
        count: Counter[Kind] = Counter()
        for group in self.plan.groups:
            count[group_kind(group)] += group.islands
        return count

    def becomes(self, kind: Kind) -> Body | Kind:
        """What islands of a kind have in common with all that they may become: their body."""
        return kind if kind[0] in self.fixed else body_of(kind)

    @cached_property
    def bodies(self) -> Counter[Body | Kind]:
        """Islands of every body."""
        count: Counter[Body | Kind] = Counter()
        for kind, islands in self.kinds.items():
            count[self.becomes(kind)] += islands
        return count

    @cached_property
    def _by_kind(self) -> dict[Kind, list[Template]]:
        found: dict[Kind, list[Template]] = {}
        for template in self.templates:
            found.setdefault(kind_of(template), []).append(template)
        return found

    def choices(self, group: Group) -> tuple[Template, ...]:
        """Templates whose rows say what an island of the group serves: any of them may.

        Operating points up to the batch that its engine admits; where all are larger, the smallest
        of them held to that batch.
        """
        mine = self._by_kind.get(group_kind(group), [])
        within = [t for t in mine if t.max_batch <= group.max_batch]
        if within or not mine:
            return tuple(within)
        smallest = min(mine, key=lambda t: t.max_batch)
        key = smallest, group.max_batch
        return (self._held.setdefault(key, _held_to(*key)),)

    @cached_property
    def _held(self) -> dict[tuple[Template, int], Template]:
        """Templates held to smaller batches; each once, since templates compare by identity."""
        return {}


def _held_to(template: Template, batch: int) -> Template:
    """The template in an engine that admits less than its operating point.

    Its step times hold for smaller batches as well. A batch row is o (a / B + beta + kappa k), so
    that B / batch times as much is at least the row of the smaller batch.
    """
    factor = np.array(
        [[template.max_batch / batch if n == "batch" else 1.0] for n in template.row_names]
    )
    return replace(template, max_batch=batch, rows=template.rows * factor)


def group_kind(group: Group) -> Kind:
    """The kind of a group's islands."""
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    return group.model, group.domain_class, parts, group.phase, group.parallelism


def body_of(kind: Kind) -> Body:
    """A kind without its phase."""
    model, domain_class, parts, _, parallelism = kind
    return model, domain_class, parts, parallelism


def stand(
    problem: PlanningProblem,
    plan: Plan,
    switch: Mapping[str, RoleSwitch] | None = None,
    templates: tuple[Template, ...] | None = None,
) -> Standing:
    """The plan's islands, benchmarked anew for the lengths of the observed demand.

    ``switch``: by model, how its engine changes phase; models that cannot keep their phases.
    ``templates``: of their bodies, where they are known.
    """
    if templates is None:
        wanted = list(_shapes(problem, plan, switch or {}))
        templates = benchmarked(wanted, problem.calibrations)
    fixed = frozenset(m for m, how in (switch or {}).items() if how is RoleSwitch.NONE)
    return Standing(problem, plan, templates, fixed)


def shape_of(problem: PlanningProblem, group: Group, phase: Phase | None = None) -> Shape:
    """What an island of the group is, or would be in another phase."""
    pools = {pool.name: pool for pool in problem.pools}
    demand = next(model for model in problem.models if model.name == group.model)
    sections = tuple((pools[part.pool], part.gpus) for part in group.sections)
    return Shape(demand, sections, group.domain_class, group.parallelism, phase or group.phase)


def _shapes(
    problem: PlanningProblem, plan: Plan, switch: Mapping[str, RoleSwitch]
) -> Iterator[Shape]:
    pools = {pool.name: pool for pool in problem.pools}
    demands = {model.name: model for model in problem.models}
    seen = set()
    for group in plan.groups:
        model, domain_class, parts, parallelism = body_of(group_kind(group))
        sections = tuple((pools[name], gpus) for name, gpus in parts)
        fixed = switch.get(model) is RoleSwitch.NONE
        others = () if fixed else demands[model].phases
        for phase in dict.fromkeys((group.phase, *others)):
            kind = model, domain_class, parts, phase, parallelism
            if kind not in seen:
                seen.add(kind)
                yield Shape(demands[model], sections, domain_class, parallelism, phase)
