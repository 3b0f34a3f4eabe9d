"""The catalogue of templates: all configurations of an island that are worth considering.

A template is (model, pool, domain class, size, phase, parallelism, operating point). It has
rows ``A`` such that one island serves the rates lambda [req/s] if and only if ``A lambda <= 1``
(docs/explanation/performance-model.md). A shape that cannot be used is excluded with a reason.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from archipelago.perfmodel.calibration.corrections import Calibration

from ..deadline import ENDLESS, Deadline
from ..plan import Exclusion, IslandClass, Part
from ..problem import Phase, PlanningProblem
from ..strategy import Progress, quiet
from .build import Unusable, build_templates
from .shapes import Shape, shapes
from .template import Template, running_island_class

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
    unusable: list[tuple[float, Shape, Exclusion]] = []
    for done, shape in enumerate(todo):
        deadline.check("benchmarking templates", f"{done} of {len(todo)}")
        progress("benchmarking templates", done / len(todo))
        result = _cached(shape, problem.calibrations, cache)
        if isinstance(result, Unusable):
            unusable.append((result.factor, shape, Exclusion(str(shape), str(result))))
        else:
            usable.extend(_in_pools_of(shape, template) for template in result)
    running = {running_island_class(problem, island) for island in problem.running}
    templates, dominated = _prune(usable, running, deadline)
    exclusions = sorted(
        [*(item[2] for item in unusable), *dominated], key=lambda e: (e.template, e.reason)
    )
    nearest: dict[tuple[str, Phase], Exclusion] = {}
    for _, shape, exclusion in sorted(unusable, key=lambda item: (item[0], item[2].template)):
        nearest.setdefault((shape.demand.name, shape.phase), exclusion)
    return Catalogue(tuple(templates), tuple(exclusions), nearest)


def templates_of(
    candidates: Iterable[Shape], calibrations: tuple[Calibration, ...] = ()
) -> tuple[Template, ...]:
    """Build the templates of given shapes, without dominated operating points.

    Shapes that could serve nothing are left out.
    """
    templates: list[Template] = []
    cache: TemplateCache = {}
    for shape in candidates:
        result = _cached(shape, calibrations, cache)
        if not isinstance(result, Unusable):
            templates.extend(_in_pools_of(shape, template) for template in result)
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
        rivals = list(members)
        remaining = dict.fromkeys(rivals)  # templates compare by identity
        for template in deadline.watch("comparing templates", rivals):
            others = [t for t in remaining if t is not template]
            if template.island_class in running:
                others = [t for t in others if t.island_class == template.island_class]
            better = next((t for t in others if _dominates(t, template)), None)
            if better is not None:
                del remaining[template]
                reason = f"dominated by {better.key}: no range is served better per GPU"
                dropped.append(Exclusion(template.key, reason))
        undominated.extend(remaining)
    return undominated, dropped


def _dominates(small: Template, large: Template) -> bool:
    """Return whether the GPUs of ``large`` serve at least as much as islands of ``small``."""
    if small.phase is not large.phase or large.gpus % small.gpus:
        return False
    count, ranges = large.gpus // small.gpus, large.servable
    if any(b.gpus != count * a.gpus for a, b in zip(small.sections, large.sections, strict=True)):
        return False
    capable = small.servable[ranges].all()
    return bool(capable and (small.rows[:, ranges] <= count * large.rows[:, ranges]).all())
