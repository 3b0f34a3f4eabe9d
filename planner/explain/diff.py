"""Compare two plans: islands, GPUs, cost, promises, and the share of requests that move.

Groups are compared by their template (model, pools, class, phase, size, parallelism, batch), not by
name, which depends on their number. A request moves if the template that prefills or decodes it
changes. The share that moves is the smallest that the two routings allow: the total variation
distance between their weights, range by range.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel.workload.lengths import Range

from ..documents import THETA_UNIT, Document
from ..plan import MILLION, Group, Plan, Route
from ..problem import DEFAULT_CLASS, ModelDemand, Objective, Phase

if TYPE_CHECKING:
    from archipelago.perfmodel.roofline.parallelism import Parallelism

    from ..formats.plan_file import Stored


SUM_ROUNDING = 1e-12
"""Rounding of a sum of shares."""


@dataclass(frozen=True)
class Figure:
    """One number before and after; None if a plan does not have it."""

    name: str
    unit: str
    old: float | None
    new: float | None

    @property
    def change(self) -> float | None:
        """New minus old; None if one of them is missing."""
        return None if self.old is None or self.new is None else self.new - self.old


@dataclass(frozen=True, order=True)
class TemplateKey:
    """The template of a group's islands; ``max_batch`` [sequences] is 1 for prefill.

    ``parts``: (pool, GPUs, layers) of islands of several pools.
    """

    model: str
    pool: str
    phase: Phase
    gpus: int
    parallelism: Parallelism
    max_batch: int
    domain_class: str = DEFAULT_CLASS
    parts: tuple[tuple[str, int, int], ...] = ()

    @property
    def size(self) -> str:
        """GPUs of one island, part by part."""
        return "+".join(str(gpus) for _, gpus, _ in self.parts) or str(self.gpus)

    def __str__(self) -> str:
        batch = f"/b{self.max_batch}" if Phase.DECODE in self.phase.stages else ""
        where = (
            self.pool if self.domain_class == DEFAULT_CLASS else f"{self.pool}@{self.domain_class}"
        )
        return f"{self.model}/{where}/x{self.size}/{self.phase}/{self.parallelism}{batch}"


@dataclass(frozen=True)
class IslandChange:
    """Islands of one template before and after.

    ``relocated``: islands in both plans, but on other nodes.
    """

    kind: TemplateKey
    old: int
    new: int
    relocated: int

    @property
    def word(self) -> str:
        """``added``, ``removed``, ``changed``, ``relocated`` or ``same``."""
        if self.old == 0:
            return "added"
        if self.new == 0:
            return "removed"
        if self.old != self.new:
            return "changed"
        return "relocated" if self.relocated else "same"


@dataclass(frozen=True)
class PoolChange:
    """GPUs of one pool, in all and in islands; 0 if a plan does not have the pool."""

    pool: str
    count: tuple[int, int]  # old, new
    used: tuple[int, int]


@dataclass(frozen=True)
class MovedShare:
    """Shares of one model's requests whose template changes; ``either`` counts each once."""

    model: str
    prefill: float
    decode: float
    either: float


@dataclass(frozen=True)
class FieldChange:
    """One field of the problem that differs; None if it is absent."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class PlanDiff:
    """All comparisons, also of what is unchanged.

    ``total``: the moved share of all requests of models in both plans, weighted as in the new one.
    """

    fields: tuple[FieldChange, ...]
    figures: tuple[Figure, ...]
    pools: tuple[PoolChange, ...]
    islands: tuple[IslandChange, ...]
    moved: tuple[MovedShare, ...]
    total: MovedShare

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (
            self.fields
            or any(figure.old != figure.new for figure in self.figures)
            or any(len({*pool.count}) > 1 or len({*pool.used}) > 1 for pool in self.pools)
            or any(change.word != "same" for change in self.islands)
            or self.total.either > SUM_ROUNDING
        )


def compare(old: Stored, new: Stored) -> PlanDiff:
    """Compare the old plan with the new one."""
    counts = [{pool.name: pool.count for pool in side.problem.pools} for side in (old, new)]
    pools = [
        PoolChange(
            name,
            (counts[0].get(name, 0), counts[1].get(name, 0)),
            (old.plan.used(name), new.plan.used(name)),
        )
        for name in sorted({*counts[0], *counts[1]})
    ]
    before = {model.name for model in old.problem.models}
    models = sorted(new.problem.models, key=lambda model: model.name)
    moved = [_moved(model, old.plan, new.plan) for model in models if model.name in before]
    weight = {model.name: new.problem.weight(model) for model in models}
    whole = sum(weight[item.model] for item in moved) or 1.0
    total = (
        sum(getattr(item, side) * weight[item.model] for item in moved) / whole
        for side in ("prefill", "decode", "either")
    )
    return PlanDiff(
        tuple(_field_changes(_inputs(old.document), _inputs(new.document), "")),
        tuple(_figures(old, new)),
        tuple(pools),
        tuple(_islands(old.plan, new.plan)),
        tuple(moved),
        MovedShare("all", *total),
    )


def _figures(old: Stored, new: Stored) -> Iterator[Figure]:
    plans = old.plan, new.plan
    units = THETA_UNIT[old.plan.objective], THETA_UNIT[new.plan.objective]
    yield from _in_units("theta", units, (old.plan.theta, new.plan.theta))
    yield Figure("throughput", "req/s", old.plan.throughput, new.plan.throughput)
    (old_bound, old_unit), (new_bound, new_unit) = map(_bound, plans)
    yield from _in_units("bound", (old_unit, new_unit), (old_bound, new_bound))
    yield Figure("cost", "$/h", *(float(plan.cost_per_hour) for plan in plans))
    yield from _by_key("rented", "GPUs", [dict(plan.rented) for plan in plans])
    for model in sorted({group.model for plan in plans for group in plan.groups}):
        yield Figure(f"tpot of {model}", "ms", *(_tpot(plan, model) for plan in plans))
    shares = [{item.model: item.share for item in plan.unservable} for plan in plans]
    yield from _by_key("unservable", "1", shares)


def _by_key(name: str, unit: str, values: Sequence[Mapping[str, float]]) -> Iterator[Figure]:
    """Yield a figure for every key of the old or the new values; absent ones are 0."""
    for key in sorted({*values[0], *values[1]}):
        yield Figure(f"{name} of {key}", unit, values[0].get(key, 0), values[1].get(key, 0))


def _in_units(name: str, units: tuple[str, str], values: tuple[float, float]) -> Iterator[Figure]:
    """Yield one figure, or two if the units differ (a headroom and a throughput)."""
    if units[0] == units[1]:
        yield Figure(name, units[0], *values)
    else:
        yield Figure(name, units[0], values[0], None)
        yield Figure(name, units[1], None, values[1])


def _bound(plan: Plan) -> tuple[float, str]:
    """Return the proven bound with its unit: on requests per second, or on the cost."""
    if plan.objective is Objective.COST:
        return plan.certificate.bound, "$/h"
    return plan.certificate.bound * (plan.throughput / plan.theta if plan.theta else 1.0), "req/s"


def _tpot(plan: Plan, model: str) -> float | None:
    """Return the largest TPOT of the groups that decode [ms]."""
    decoding = (g for g in plan.groups if g.model == model and Phase.DECODE in g.phase.stages)
    return max((g.step_time * 1e3 for g in decoding), default=None)


def template_key(group: Group) -> TemplateKey:
    """Return the template of a group's islands."""
    return TemplateKey(
        group.model,
        group.pool,
        group.phase,
        group.gpus,
        group.parallelism,
        group.max_batch,
        group.domain_class,
        tuple((part.pool, part.gpus, part.layers) for part in group.parts),
    )


def _islands(old: Plan, new: Plan) -> Iterator[IslandChange]:
    before, after = _nodes_by_template(old), _nodes_by_template(new)
    for key in sorted({*before, *after}):
        same_nodes = (before[key] & after[key]).total()
        counts = before[key].total(), after[key].total()
        yield IslandChange(key, *counts, relocated=min(counts) - same_nodes)


def _nodes_by_template(plan: Plan) -> defaultdict[TemplateKey, Counter[tuple[str, ...]]]:
    """Return the number of islands by template and nodes."""
    keys = {group.name: template_key(group) for group in plan.groups}
    counts: defaultdict[TemplateKey, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for island in plan.islands:
        counts[keys[island.group]][island.nodes] += 1
    if plan.only_counts:
        for group in plan.groups:
            counts[keys[group.name]][()] += group.islands
    return counts


def _moved(model: ModelDemand, old: Plan, new: Plan) -> MovedShare:
    """Compare ranges that neither plan divides, weighted by the workload of the new plan."""
    routes = [
        [r for r in plan.routes if r.model == model.name and r.range.max > r.range.min]
        for plan in (old, new)
    ]
    edges = sorted({edge for side in routes for r in side for edge in (r.range.min, r.range.max)})
    cells = tuple(Range(low, high) for low, high in pairwise(edges))
    if not cells:
        return MovedShare(model.name, 0.0, 0.0, 0.0)
    share = model.lengths.moments(cells).probability
    keys = [{g.name: str(template_key(g)) for g in plan.groups} for plan in (old, new)]
    sums = [0.0, 0.0, 0.0]
    for cell, part in zip(cells, share, strict=True):
        before, after = map(_weights, (cell, cell), routes, keys)
        for i, view in enumerate((0, 1, None)):
            sums[i] += float(part) * _distance(_side(before, view), _side(after, view))
    return MovedShare(model.name, *sums)


def _weights(cell: Range, routes: list[Route], keys: dict[str, str]) -> dict[tuple[str, str], int]:
    """Return requests per million of a cell by (prefill, decode) template."""
    weights: Counter[tuple[str, str]] = Counter()
    for route in routes:
        if route.range.min <= cell.min and cell.max <= route.range.max:
            for pair in route.pairs:
                weights[keys[pair.prefill], keys[pair.decode]] += pair.weight
    return dict(weights)


def _side(weights: dict[tuple[str, str], int], view: int | None) -> Counter[Hashable]:
    """Return the weights of one phase, or of pairs if ``view`` is None."""
    sums: Counter[Hashable] = Counter()
    for pair, weight in weights.items():
        sums[pair if view is None else pair[view]] += weight
    return sums


def _distance(old: Counter[Hashable], new: Counter[Hashable]) -> float:
    """Return the smallest share that must move; all of a cell that a single plan routes."""
    return (max(old.total(), new.total()) - (old & new).total()) / MILLION


def _inputs(document: Document) -> Document:
    """Return the inputs of a plan: the spec, and the calibrations by name."""
    calibrations = [
        {**row, "name": f"{row['engine']} on {row['accelerator']}: {', '.join(row['models'])}"}
        for row in document.get("calibrations", ())
    ]
    named = {"calibrations": calibrations} if calibrations else {}
    return {**document["problem"], **named}


def _field_changes(old: Any, new: Any, path: str) -> Iterator[FieldChange]:  # noqa: ANN401  # any JSON value
    """Yield the fields that differ; lists of named objects are compared by name."""
    before, after = _by_name(old), _by_name(new)
    if before is None or after is None:
        if old != new:
            yield FieldChange(path, old, new)
        return
    for key in sorted({*before, *after}):
        place = f"{path}[{key}]" if isinstance(old, list) else f"{path}.{key}".lstrip(".")
        if key in before and key in after:
            yield from _field_changes(before[key], after[key], place)
        else:
            yield FieldChange(place, before.get(key), after.get(key))


def _by_name(value: Any) -> Document | None:  # noqa: ANN401
    """Return a mapping as it is, a list of named objects by name, None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value):
        return {str(item["name"]): item for item in value}
    return None
