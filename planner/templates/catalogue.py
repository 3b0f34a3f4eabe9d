"""The catalogue of templates: all configurations of an island that are worth considering.

A template is (model, pool, domain class, size, phase, parallelism, operating point). It has
rows ``A`` such that one island serves the rates lambda [req/s] if and only if ``A lambda <= 1``
(docs/explanation/performance-model.md). A shape that cannot be used is excluded with a reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

import numpy as np

from archipelago.perfmodel.calibration.corrections import Calibration

from ..deadline import ENDLESS, Deadline
from ..plan import Exclusion, IslandClass, Part
from ..problem import Phase, PlanningProblem
from ..strategy import Progress, quiet
from .build import Unusable, build_templates
from .shapes import Shape, shapes
from .template import Template, running_island_class
from .transfer import settled

TemplateCache: TypeAlias = "dict[Hashable, list[Template] | Unusable]"
"""Templates by ``Shape.hardware_key``, for equal lengths, ranges and calibrations."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All templates of a problem in canonical order, and the exclusions.

    ``nearest``: by (model, phase), the exclusion that misses its limit by the smallest factor: the
    first to look at if no template is left.
    """

    templates: tuple[Template, ...]
    exclusions: tuple[Exclusion, ...]
    nearest: dict[tuple[str, Phase], Exclusion]


def build_catalogue(
    problem: PlanningProblem,
    progress: Progress = quiet,
    cache: TemplateCache | None = None,
    deadline: Deadline = ENDLESS,
) -> Catalogue:
    """Build the templates of every shape; keep those that serve something and are not dominated.

    ``cache`` is used and filled; for problems of equal lengths, ranges and calibrations.

    Raises:
        OutOfTimeError: the deadline passed before all templates were built.
    """
    candidates = shapes(problem, deadline)
    todo = list(deadline.watch("listing what islands could be", candidates, "shapes"))
    cache = {} if cache is None else cache
    usable: list[Template] = []
    unusable: list[tuple[float, tuple[str, Phase], Exclusion]] = []
    for done, shape in enumerate(todo):
        deadline.check("benchmarking templates", f"{done} of {len(todo)}")
        progress("benchmarking templates", done / len(todo))
        result = _cached(shape, problem.calibrations, cache)
        if isinstance(result, Unusable):
            kind = shape.demand.name, shape.phase
            unusable.append((result.factor, kind, Exclusion(str(shape), str(result))))
        else:
            usable.extend(_in_pools_of(shape, template) for template in result)
    usable, dropped = settled(problem, usable)
    unusable += [
        (each.factor, (each.template.model, each.template.phase), each.exclusion)
        for each in dropped
    ]
    running = {running_island_class(problem, island) for island in problem.running}
    templates, dominated = _prune(usable, running, deadline)
    exclusions = sorted(
        [*(item[2] for item in unusable), *dominated], key=lambda e: (e.template, e.reason)
    )
    nearest: dict[tuple[str, Phase], Exclusion] = {}
    for _, kind, exclusion in sorted(unusable, key=lambda item: (item[0], item[2].template)):
        nearest.setdefault(kind, exclusion)
    return Catalogue(tuple(templates), tuple(exclusions), nearest)


def templates_of(
    problem: PlanningProblem, candidates: Iterable[Shape], deployed: AbstractSet[IslandClass]
) -> tuple[Template, ...]:
    """Build the templates of given shapes, without dominated operating points.

    Shapes that could serve nothing are left out. ``deployed``: classes of islands that run.
    """
    templates: list[Template] = []
    cache: TemplateCache = {}
    for shape in candidates:
        result = _cached(shape, problem.calibrations, cache)
        if not isinstance(result, Unusable):
            templates.extend(_in_pools_of(shape, template) for template in result)
    templates, _ = settled(problem, templates, deployed)
    templates.sort(key=lambda t: (t.model, t.pool, t.domain_class))
    return tuple(_prune(templates, {t.island_class for t in templates}, ENDLESS)[0])


def _cached(
    shape: Shape, calibrations: tuple[Calibration, ...], cache: TemplateCache
) -> list[Template] | Unusable:
    if shape.hardware_key not in cache:
        try:
            cache[shape.hardware_key] = build_templates(shape, calibrations)
        except Unusable as unusable:
            cache[shape.hardware_key] = unusable
    return cache[shape.hardware_key]


def _in_pools_of(shape: Shape, template: Template) -> Template:
    """Return a template of equal hardware with the pools and class of this shape."""
    parts = tuple(
        Part(pool.name, part.gpus, part.layers)
        for (pool, _), part in zip(shape.sections, template.parts, strict=False)
    )
    return replace(
        template,
        pool=shape.pool,
        domain_class=shape.domain_class,
        parts=parts,
        price=shape.price,
    )


def _prune(
    templates: list[Template], running: set[IslandClass | None], deadline: Deadline
) -> tuple[list[Template], list[Exclusion]]:
    """Drop templates that another template dominates, with the same GPUs and for every range.

    Smaller islands fit wherever a larger one does, so k islands of 1/k of the size can replace one:
    their joint capacity is ``A lambda <= k``. Of two equal templates the later one stays. Templates
    of running classes stay, unless another operating point of the same class dominates.
    """
    undominated: list[Template] = []
    dropped: list[Exclusion] = []
    for _, members in groupby(templates, key=lambda t: (t.model, t.pool, t.domain_class)):
        everyone = list(members)
        dominated: dict[Template, Template] = {}  # templates compare by identity
        for phase in Phase:
            rivals = [template for template in everyone if template.phase is phase]
            dominated |= _dominated(rivals, running, deadline)
        for template, better in dominated.items():
            reason = f"dominated by {better.key}: no range is served better per GPU"
            dropped.append(Exclusion(template.key, reason))
        undominated.extend(template for template in everyone if template not in dominated)
    return undominated, dropped


def _dominated(
    rivals: list[Template], running: set[IslandClass | None], deadline: Deadline
) -> dict[Template, Template]:
    """Return what the GPUs of each template serve at least as well as islands of another one.

    ``rivals``: of one phase, with parts of the same pools. The value is the first that is better.
    """
    dominated: dict[Template, Template] = {}
    if len(rivals) < 2:  # noqa: PLR2004  # one alone has no rival
        return dominated
    gpus = np.array([[part.gpus for part in template.sections] for template in rivals])
    rows = np.stack([template.rows for template in rivals])
    servable = np.stack([template.servable for template in rivals])
    classes = [template.island_class for template in rivals] if running else []
    remaining = np.ones(len(rivals), dtype=bool)
    for at, template in enumerate(deadline.watch("comparing templates", rivals)):
        counts, rest = np.divmod(gpus[at], gpus)  # islands of each rival in place of this one
        count, ranges = counts[:, 0], template.servable
        able = remaining & (rest == 0).all(axis=1) & (counts == count[:, None]).all(axis=1)
        able[at] = False
        if classes and classes[at] in running:
            able &= [each == classes[at] for each in classes]
        others = np.flatnonzero(able)
        others = others[servable[np.ix_(others, ranges)].all(axis=1)]
        most = count[others, None, None] * template.rows[:, ranges]
        better = others[(rows[others][:, :, ranges] <= most).all(axis=(1, 2))]
        if better.size:
            remaining[at] = False
            dominated[template] = rivals[better[0]]
    return dominated
