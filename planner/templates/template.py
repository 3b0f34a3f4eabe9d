"""What makes two islands interchangeable, of templates and of islands that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.packing import classes_of, nodes_of

if TYPE_CHECKING:
    from archipelago.perfmodel.parallelism import Parallelism
    from archipelago.planner.problem import Phase, PlanningProblem, Running
    from archipelago.planner.template import Template

Kind: TypeAlias = "tuple[str, str, tuple[tuple[str, int], ...], Phase, Parallelism]"
"""Model, domain class, GPUs by pool, phase, parallelism."""


def kind_of(template: Template) -> Kind:
    """The kind of a template's islands; operating points of one kind need no restart."""
    parts = tuple((part.pool, part.gpus) for part in template.sections)
    return template.model, template.domain_class, parts, template.phase, template.parallelism


def running_kind(problem: PlanningProblem, island: Running) -> Kind | None:
    """The kind of an island that runs; None where its nodes are not in one class of its pools."""
    pools = {pool.name: pool for pool in problem.pools}
    if any(name not in pools for name, _ in island.parts):
        return None
    classes: set[str] = set()
    for name, _ in island.parts:
        found = classes_of(pools[name])
        if len(found) > 1:
            found = tuple(
                c
                for c in found
                if any(set(island.nodes) & set(n) for n in nodes_of(pools[name], c).values())
            )
        classes.update(found)
    if len(classes) != 1:
        return None
    return island.model, classes.pop(), island.parts, island.phase, island.parallelism
