"""The catalogue of templates: everything an island can be that is worth considering.

A template is (model, pool, domain class, size, phase, parallelism, operating point). It carries
rows ``A`` such that one island serves the rates lambda [req/s] exactly when ``A lambda <= 1``
(design of the rate model: docs/performance-model.md). What cannot be used is left out with its
reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.benchmark import Unusable, benchmark
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.kinds import kind_of, running_kind
from archipelago.planner.plan import Exclusion, Part
from archipelago.planner.shapes import Shape, shapes
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.template import Template

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from archipelago.perfmodel.calibration import Calibration
    from archipelago.planner.kinds import Kind
    from archipelago.planner.problem import Phase, PlanningProblem

__all__ = ["Bench", "Catalogue", "Template", "benchmarked", "build_catalogue"]


Bench: TypeAlias = "dict[Hashable, list[Template] | Unusable]"
"""Benchmarks by what they depend on."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All templates of a problem in canonical order, and what was left out.

    ``nearest``: for each (model, phase) with an exclusion the one that missed its limit by the
    smallest factor; the first thing to look at where nothing is left.
    """

    templates: tuple[Template, ...]
    exclusions: tuple[Exclusion, ...]
    nearest: dict[tuple[str, Phase], Exclusion]


def build_catalogue(
    problem: PlanningProblem,
    progress: Progress = quiet,
    known: Bench | None = None,
    deadline: Deadline = ENDLESS,
) -> Catalogue:
    """Benchmark every shape, keep what can serve something and is not dominated.

    ``known``: what was benchmarked before, for problems of the same models' lengths and ranges
    and calibrations; it is added to.

    Raises:
        OutOfTimeError: the deadline passed before all shapes were benchmarked.
    """
    found_shapes = shapes(problem, deadline)
    todo = list(deadline.watch("listing what islands could be", found_shapes, "shapes"))
    known = {} if known is None else known
    found: list[Template] = []
    missed: list[tuple[float, Shape, Exclusion]] = []
    for done, shape in enumerate(todo):
        deadline.check("benchmarking templates", f"{done} of {len(todo)}")
        progress("benchmarking templates", done / len(todo))
        if shape.silicon not in known:
            known[shape.silicon] = _outcome(shape, problem.calibrations)
        answer = known[shape.silicon]
        if isinstance(answer, Unusable):
            missed.append((answer.factor, shape, Exclusion(str(shape), str(answer))))
        else:
            found.extend(_placed(template, shape) for template in answer)
    running = {running_kind(problem, island) for island in problem.running}
    kept, dominated = _prune(found, running, deadline)
    exclusions = sorted([*(item[2] for item in missed), *dominated], key=_by_name)
    return Catalogue(tuple(kept), tuple(exclusions), _nearest(missed))


def benchmarked(
    wanted: Iterable[Shape], calibrations: tuple[Calibration, ...] = ()
) -> tuple[Template, ...]:
    """The templates of given shapes; of each kind, the operating points worth having.

    Shapes that could serve nothing are left out.
    """
    found: list[Template] = []
    known: Bench = {}
    for shape in wanted:
        if shape.silicon not in known:
            known[shape.silicon] = _outcome(shape, calibrations)
        answer = known[shape.silicon]
        if not isinstance(answer, Unusable):
            found.extend(_placed(template, shape) for template in answer)
    found.sort(key=lambda t: (t.model, t.pool, t.domain_class))
    return tuple(_prune(found, {kind_of(t) for t in found}, ENDLESS)[0])


def _outcome(shape: Shape, calibrations: tuple[Calibration, ...]) -> list[Template] | Unusable:
    try:
        return benchmark(shape, calibrations)
    except Unusable as unusable:
        return unusable


def _placed(template: Template, shape: Shape) -> Template:
    """The template of equal silicon, in this shape's pools and class."""
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


def _nearest(
    missed: list[tuple[float, Shape, Exclusion]],
) -> dict[tuple[str, Phase], Exclusion]:
    nearest: dict[tuple[str, Phase], Exclusion] = {}
    for _, shape, exclusion in sorted(missed, key=lambda item: (item[0], item[2].template)):
        nearest.setdefault((shape.demand.name, shape.phase), exclusion)
    return nearest


def _by_name(exclusion: Exclusion) -> tuple[str, str]:
    return exclusion.template, exclusion.reason


def _prune(
    templates: list[Template], running: set[Kind | None], deadline: Deadline
) -> tuple[list[Template], list[Exclusion]]:
    """Drop templates that the same GPUs in islands of another template beat everywhere.

    Smaller islands pack wherever a larger one does, so k islands of 1/k of the size may stand for
    one: their joint capacity is ``A lambda <= k``. Of two equals the later one stays. What runs
    now stays too, unless another operating point of the same kind is better.
    """
    kept: list[Template] = []
    dropped: list[Exclusion] = []
    for _, members in groupby(templates, key=lambda t: (t.model, t.pool, t.domain_class)):
        rivals = list(members)
        alive = dict.fromkeys(rivals)  # templates compare by identity
        for template in deadline.watch("comparing templates", rivals):
            others = [t for t in alive if t is not template]
            if kind_of(template) in running:
                others = [t for t in others if kind_of(t) == kind_of(template)]
            better = next((t for t in others if _beats(t, template)), None)
            if better is not None:
                del alive[template]
                reason = f"dominated by {better.key}: no range is served better per GPU"
                dropped.append(Exclusion(template.key, reason))
        kept.extend(alive)
    return kept, dropped


def _beats(one: Template, other: Template) -> bool:
    """Whether the GPUs of ``other`` serve at least as much as islands of ``one``."""
    if one.phase is not other.phase or other.gpus % one.gpus:
        return False
    count = other.gpus // one.gpus
    if any(b.gpus != count * a.gpus for a, b in zip(one.sections, other.sections, strict=True)):
        return False
    able = other.servable
    return bool(
        one.servable[able].all() and (one.rows[:, able] <= count * other.rows[:, able]).all()
    )
