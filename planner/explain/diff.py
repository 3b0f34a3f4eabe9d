"""Compare two plans: islands, GPUs, cost, promises, and the share of requests that move.

Groups are compared by their template (model, pools, class, phase, size, parallelism, batch), not by
name, which depends on their number. A request moves if the template that prefills or decodes it
changes. The share that moves is the smallest that the two routings allow: the total variation
distance between their weights, range by range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
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

    @property
    def differs(self) -> bool:
        """Whether anything changed."""
        return self.count[0] != self.count[1] or self.used[0] != self.used[1]


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
            or any(pool.differs for pool in self.pools)
            or any(change.word != "same" for change in self.islands)
            or self.total.either > SUM_ROUNDING
        )


def compare(old: Stored, new: Stored) -> PlanDiff:
    """Compare the old plan with the new one."""
    moved = tuple(_moved(old, new))
    return PlanDiff(
        tuple(_field_changes(_inputs(old.document), _inputs(new.document), "")),
        tuple(_figures(old, new)),
        tuple(_pools(old, new)),
        tuple(_islands(old.plan, new.plan)),
        moved,
        _total(moved, new),
    )


def _figures(old: Stored, new: Stored) -> Iterator[Figure]:
    units = THETA_UNIT[old.plan.objective], THETA_UNIT[new.plan.objective]
    yield from _in_units("theta", units, (old.plan.theta, new.plan.theta))
    yield Figure("throughput", "req/s", old.plan.throughput, new.plan.throughput)
    (one, old_unit), (two, new_unit) = _bound(old.plan), _bound(new.plan)
    yield from _in_units("bound", (old_unit, new_unit), (one, two))
    cost = (float(side.plan.cost_per_hour) for side in (old, new))
    yield Figure("cost", "$/h", *cost)
    yield from _rented(old.plan, new.plan)
    for model in sorted({g.model for g in (*old.plan.groups, *new.plan.groups)}):
        yield Figure(f"tpot of {model}", "ms", _tpot(old.plan, model), _tpot(new.plan, model))
    lost = [{item.model: item.share for item in side.plan.unservable} for side in (old, new)]
    for model in sorted({*lost[0], *lost[1]}):
        shares = (side.get(model, 0.0) for side in lost)
        yield Figure(f"unservable of {model}", "1", *shares)


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


def _rented(old: Plan, new: Plan) -> Iterator[Figure]:
    """Yield the rented GPUs of every pool that has any."""
    before, after = dict(old.rented), dict(new.rented)
    for pool in sorted({*before, *after}):
        yield Figure(f"rented of {pool}", "GPUs", before.get(pool, 0), after.get(pool, 0))


def _tpot(plan: Plan, model: str) -> float | None:
    """Return the largest TPOT of the groups that decode [ms]."""
    decoding = (g for g in plan.groups if g.model == model and Phase.DECODE in g.phase.stages)
    return max((g.step_time * 1e3 for g in decoding), default=None)


def _pools(old: Stored, new: Stored) -> Iterator[PoolChange]:
    counts = [{pool.name: pool.count for pool in side.problem.pools} for side in (old, new)]
    for name in sorted({*counts[0], *counts[1]}):
        count = (counts[0].get(name, 0), counts[1].get(name, 0))
        yield PoolChange(name, count, (old.plan.used(name), new.plan.used(name)))


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
        one, two = before.get(key, Counter()), after.get(key, Counter())
        same_nodes = (one & two).total()
        both = min(one.total(), two.total())
        yield IslandChange(key, one.total(), two.total(), both - same_nodes)


def _nodes_by_template(plan: Plan) -> dict[TemplateKey, Counter[tuple[str, ...]]]:
    """Return the number of islands by template and nodes."""
    keys = {group.name: template_key(group) for group in plan.groups}
    counts: dict[TemplateKey, Counter[tuple[str, ...]]] = {}
    for island in plan.islands:
        counts.setdefault(keys[island.group], Counter())[island.nodes] += 1
    return counts


def _moved(old: Stored, new: Stored) -> Iterator[MovedShare]:
    before = {model.name for model in old.problem.models}
    for model in sorted(new.problem.models, key=lambda m: m.name):
        if model.name in before:
            yield _moved_of(model, old.plan, new.plan)


def _moved_of(model: ModelDemand, old: Plan, new: Plan) -> MovedShare:
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
        before, after = (_weights(cell, routes[i], keys[i]) for i in (0, 1))
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


def _distance(one: Counter[Hashable], other: Counter[Hashable]) -> float:
    """Return the smallest share that must move; all of a cell that only one plan routes."""
    unmoved = (one & other).total()
    return (max(one.total(), other.total()) - unmoved) / MILLION


def _total(moved: tuple[MovedShare, ...], new: Stored) -> MovedShare:
    weight = {model.name: new.problem.weight(model) for model in new.problem.models}
    whole = sum(weight[item.model] for item in moved) or 1.0
    sums = (
        sum(getattr(item, side) * weight[item.model] for item in moved) / whole
        for side in ("prefill", "decode", "either")
    )
    return MovedShare("all", *sums)


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
    one, two = _by_name(old), _by_name(new)
    if one is None or two is None:
        if old != new:
            yield FieldChange(path, old, new)
        return
    is_list = isinstance(old, list)
    for key in sorted({*one, *two}):
        place = f"{path}[{key}]" if is_list else f"{path}.{key}".lstrip(".")
        if key in one and key in two:
            yield from _field_changes(one[key], two[key], place)
        else:
            yield FieldChange(place, one.get(key), two.get(key))


def _by_name(value: Any) -> Document | None:  # noqa: ANN401
    """Return a mapping as it is, a list of named objects by name, None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(v, dict) and "name" in v for v in value):
        return {str(item["name"]): item for item in value}
    return None
