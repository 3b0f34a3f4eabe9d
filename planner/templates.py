"""Templates: what an island can be, with the capacity rows that say what it can serve.

A template is (model, pool, size, phase, parallelism, operating point). It carries rows ``A`` such
that one island serves the rates lambda [req/s] exactly when ``A lambda <= 1`` (design of the rate
model: docs/performance-model.md). What cannot be used is left out with its reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel import capacity
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.parallelism import Parallelism, candidates
from archipelago.perfmodel.roofline import Roofline
from archipelago.planner.packing import island_sizes
from archipelago.planner.plan import Exclusion
from archipelago.planner.problem import ModelDemand, Phase, PlanningProblem, Pool
from archipelago.planner.strategy import Progress, quiet

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray, PerformanceModel

BALANCED = 0.999999
"""A row whose value at zero load reaches this share of its limit leaves no room for requests."""


@dataclass(frozen=True, eq=False)
class Template:
    """One thing an island can be.

    ``rows`` has shape (rows, ranges): island-seconds per request [s] over the row's limit.
    ``servable`` (ranges,): pairs (template, range) that memory and length targets allow.
    """

    model: str
    pool: str
    phase: Phase
    gpus: int
    parallelism: Parallelism
    max_batch: int
    row_names: tuple[str, ...]
    rows: FloatArray
    servable: NDArray[np.bool_]
    performance: PerformanceModel

    @property
    def key(self) -> str:
        """Canonical name; equal for equal templates of any two runs."""
        batch = f"/b{self.max_batch}" if self.phase is Phase.DECODE else ""
        return f"{self.model}/{self.pool}/x{self.gpus}/{self.phase}/{self.parallelism}{batch}"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All templates of a problem in canonical order, and what was left out.

    ``nearest``: for each (model, phase) with an exclusion the one that missed its limit by the
    smallest factor; the first thing to look at where nothing is left.
    """

    templates: tuple[Template, ...]
    exclusions: tuple[Exclusion, ...]
    nearest: dict[tuple[str, Phase], Exclusion]


@dataclass(frozen=True)
class _Shape:
    """A template before its rates are known."""

    demand: ModelDemand
    pool: Pool
    gpus: int
    parallelism: Parallelism
    phase: Phase

    def template(
        self,
        max_batch: int,
        row_names: tuple[str, ...],
        rows: FloatArray,
        servable: NDArray[np.bool_],
        performance: PerformanceModel,
    ) -> Template:
        """The template that this shape is at one operating point."""
        return Template(
            self.demand.name,
            self.pool.name,
            self.phase,
            self.gpus,
            self.parallelism,
            max_batch,
            row_names,
            rows,
            servable,
            performance,
        )

    @property
    def silicon(self) -> Hashable:
        """What the benchmark depends on; pools of one accelerator share it."""
        node = (self.pool.accelerator.name, self.pool.gpus_per_node)
        return (self.demand.name, *node, self.gpus, self.phase, self.parallelism)

    def __str__(self) -> str:
        where = f"{self.demand.name}/{self.pool.name}/x{self.gpus}"
        return f"{where}/{self.phase}/{self.parallelism}"


class _Unusable(Exception):  # noqa: N818  # control flow inside this module
    """The shape cannot be a template; the message says why, with the numbers.

    ``factor`` is need over limit, where that is known.
    """

    def __init__(self, why: str, factor: float = math.inf) -> None:
        super().__init__(why)
        self.factor = factor


def build_catalogue(problem: PlanningProblem, progress: Progress = quiet) -> Catalogue:
    """Benchmark every shape, keep what can serve something and is not dominated."""
    shapes = list(_shapes(problem))
    known: dict[Hashable, list[Template] | _Unusable] = {}
    found: list[Template] = []
    missed: list[tuple[float, _Shape, Exclusion]] = []
    for done, shape in enumerate(shapes):
        progress("benchmarking templates", done / len(shapes))
        if shape.silicon not in known:
            known[shape.silicon] = _outcome(shape)
        answer = known[shape.silicon]
        if isinstance(answer, _Unusable):
            missed.append((answer.factor, shape, Exclusion(str(shape), str(answer))))
        else:
            found.extend(replace(template, pool=shape.pool.name) for template in answer)
    kept, dominated = _prune(found)
    exclusions = sorted([*(item[2] for item in missed), *dominated], key=_by_name)
    return Catalogue(tuple(kept), tuple(exclusions), _nearest(missed))


def _outcome(shape: _Shape) -> list[Template] | _Unusable:
    try:
        return _benchmark(shape)
    except _Unusable as unusable:
        return unusable


def _nearest(
    missed: list[tuple[float, _Shape, Exclusion]],
) -> dict[tuple[str, Phase], Exclusion]:
    nearest: dict[tuple[str, Phase], Exclusion] = {}
    for _, shape, exclusion in sorted(missed, key=lambda item: (item[0], item[2].template)):
        nearest.setdefault((shape.demand.name, shape.phase), exclusion)
    return nearest


def _by_name(exclusion: Exclusion) -> tuple[str, str]:
    return exclusion.template, exclusion.reason


def _shapes(problem: PlanningProblem) -> Iterator[_Shape]:
    for demand in sorted(problem.models, key=lambda m: m.name):
        for pool in sorted(problem.pools, key=lambda p: p.name):
            for gpus in island_sizes(pool):
                for phase in Phase:
                    choices = candidates(
                        demand.architecture, pool.accelerator, gpus, pool.gpus_per_node, phase
                    )
                    for parallelism in choices:
                        yield _Shape(demand, pool, gpus, parallelism, phase)


def _benchmark(shape: _Shape) -> list[Template]:
    try:
        performance = Roofline(
            shape.pool.accelerator,
            shape.demand.architecture,
            shape.parallelism,
            gpus_per_node=shape.pool.gpus_per_node,
            max_sequences=shape.demand.max_sequences,
        )
    except DoesNotFit as error:
        raise _Unusable(str(error)) from None
    holds = _held_ranges(shape, performance)
    if shape.phase is Phase.PREFILL:
        return [_prefill(shape, performance, holds)]
    return _decode(shape, performance, holds)


def _held_ranges(shape: _Shape, performance: PerformanceModel) -> NDArray[np.bool_]:
    """Ranges whose longest request fits into the KV memory of one copy, with its mean output."""
    demand = shape.demand
    moments = demand.lengths.moments(demand.ranges)
    longest = _longest_inputs(demand)
    kept_output = moments.output if shape.phase is Phase.DECODE else np.ones_like(longest)
    per_copy = performance.kv_capacity() / shape.parallelism.dp
    holds = np.asarray(longest + kept_output <= per_copy)
    if not holds.any():
        need = longest[0] + kept_output[0]
        why = f"KV memory of one copy holds {per_copy:.0f} tokens, needs {need:.0f}"
        raise _Unusable(why, need / per_copy if per_copy else math.inf)
    return holds


def _longest_inputs(demand: ModelDemand) -> FloatArray:
    return np.array([r.max - 1 for r in demand.ranges], dtype=np.float64)


def _prefill(shape: _Shape, performance: PerformanceModel, holds: NDArray[np.bool_]) -> Template:
    demand = shape.demand
    ttft = demand.targets.ttft
    cap = capacity.prefill_utilisation(performance, demand.lengths, ttft)
    alone = performance.prefill_time(_longest_inputs(demand))
    servable = holds if ttft is None else holds & (alone <= ttft)
    if ttft is not None and (cap <= 0 or not servable.any()):
        mean = float(demand.lengths.probability @ performance.prefill_time(demand.lengths.length))
        raise _Unusable(
            f"TTFT {ttft * 1e3:.0f} ms: an idle island needs {alone[0] * 1e3:.0f} ms for the "
            f"shortest range and {mean * 1e3:.0f} ms on average",
            max(float(alone[0]), mean) / ttft,
        )
    row = capacity.prefill_row(performance, demand.lengths, demand.ranges, cap)
    return shape.template(1, ("time",), np.atleast_2d(row), servable, performance)


def _decode(
    shape: _Shape, performance: PerformanceModel, holds: NDArray[np.bool_]
) -> list[Template]:
    demand = shape.demand
    tpot = demand.targets.tpot
    moments = demand.lengths.moments(demand.ranges)
    context = _longest_inputs(demand) + moments.output
    copies = float(shape.parallelism.dp)
    alone = performance.decode_step_time(np.full_like(context, copies), copies * context)
    servable = holds if tpot is None else holds & (alone <= tpot)
    found = []
    for cap in capacity.batch_caps(performance, moments, tpot) if servable.any() else ():
        step = capacity.affine_majorant(performance, cap, _mean_context(moments))
        if tpot is None or step.a < BALANCED * tpot:
            names, rows = capacity.decode_rows(step, moments, tpot)
            found.append(shape.template(cap, names, rows, servable, performance))
    if not found:
        least, limit = float(alone.min()), tpot or math.inf
        raise _Unusable(
            f"TPOT {limit * 1e3:.0f} ms: a sequence alone takes {least * 1e3:.1f} ms per token",
            least / limit,
        )
    return found


def _mean_context(moments: capacity.RangeMoments) -> float:
    tokens = moments.probability * moments.output
    return float(np.dot(tokens, moments.context) / tokens.sum())


def _prune(templates: list[Template]) -> tuple[list[Template], list[Exclusion]]:
    """Drop templates that the same GPUs in islands of another template beat everywhere.

    Smaller islands pack wherever a larger one does, so k islands of 1/k of the size may stand for
    one: their joint capacity is ``A lambda <= k``. Of two equals the later one stays.
    """
    kept: list[Template] = []
    dropped: list[Exclusion] = []
    for _, members in groupby(templates, key=lambda t: (t.model, t.pool)):
        rivals = list(members)
        alive = dict.fromkeys(rivals)  # templates compare by identity
        for template in rivals:
            better = next((t for t in alive if t is not template and _beats(t, template)), None)
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
    able = other.servable
    return bool(
        one.servable[able].all() and (one.rows[:, able] <= count * other.rows[:, able]).all()
    )
