"""The index of a problem and its plan that all checks read, and the checker's own arithmetic.

Expectations over request lengths are sums as in their formulas. Nodes have the names
``<pool>-<domain>-<i>``, or ``<pool>-<i>`` if the pool states no domains; rented ones
``<pool>-rented-<i>``; i counts from 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from archipelago.perfmodel.calibration.corrections import (
    PHASES,
    Calibrated,
    Calibration,
    Correction,
)
from archipelago.perfmodel.calibration.uncertainty import Refittable
from archipelago.perfmodel.catalogue.efficiency import ANY
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section

from ..plan import MILLION, Group, Island, Part, Plan
from ..problem import RENTED, Domain, ModelDemand, PlanningProblem, Pool


@dataclass(frozen=True)
class Atom:
    """Requests of one input length: their probability, E[o] [tokens] and E[o^2] [tokens^2]."""

    length: float
    probability: float
    output: float
    output_square: float


@dataclass(frozen=True)
class Decoding:
    """Decode load of one request of a range: o_j tokens at the mean context k_j [tokens]."""

    output: float
    context: float


def atoms_by_range(model: ModelDemand) -> list[list[Atom]]:
    """Return the atoms of every range ``[min, max)``; those outside all ranges are unservable."""
    starts = [span.min for span in model.ranges]
    by_range: list[list[Atom]] = [[] for _ in model.ranges]
    for atom in _atoms(model):
        j = bisect_right(starts, atom.length) - 1
        if j >= 0 and atom.length < model.ranges[j].max:
            by_range[j].append(atom)
    return by_range


def _atoms(model: ModelDemand) -> list[Atom]:
    d = model.lengths
    columns = (d.length, d.probability, d.output, d.output_square)
    return [Atom(*map(float, row)) for row in zip(*columns, strict=True)]


def mean_by_range(model: ModelDemand, cost: Callable[[FloatArray], FloatArray]) -> list[float]:
    """Return E[cost(l) | range j], of a range without requests at its middle, in units of cost."""
    means = []
    for atoms in _with_stand_ins(model):
        lengths = np.array([atom.length for atom in atoms])
        costs = np.broadcast_to(cost(lengths), lengths.shape).tolist()
        total = sum(atom.probability for atom in atoms)
        weighted = sum(a.probability * value for a, value in zip(atoms, costs, strict=True))
        means.append(weighted / total)
    return means


def decoding(model: ModelDemand) -> list[Decoding]:
    """Return o_j = E[o | j] and k_j = E[o l + o^2/2 | j] / E[o | j] of every range."""
    loads = []
    for atoms in _with_stand_ins(model):
        total = sum(a.probability for a in atoms)
        output = sum(a.probability * a.output for a in atoms) / total
        area = sum(a.probability * (a.output * a.length + a.output_square / 2) for a in atoms)
        loads.append(Decoding(output, area / total / output if output > 0 else 0.0))
    return loads


def _with_stand_ins(model: ModelDemand) -> list[list[Atom]]:
    """Return atoms by range; an empty range gets one at its middle, with the mix's outputs."""
    every = _atoms(model)
    output = sum(a.probability * a.output for a in every)
    square = sum(a.probability * a.output_square for a in every)
    return [
        atoms
        if sum(atom.probability for atom in atoms) > 0
        else [Atom((span.min + span.max - 1) / 2, 1.0, output, square)]
        for span, atoms in zip(model.ranges, atoms_by_range(model), strict=True)
    ]


def measured(
    island: PerformanceModel, model: str, calibrations: Sequence[Calibration]
) -> PerformanceModel:
    """Return the performance model corrected by its accelerators' calibrations for ``model``.

    Not by those of another engine than the island's.
    """
    corrections: list[Correction] = []
    if not isinstance(island, Refittable):
        return island
    engine, version = island.settings.engine, island.settings.version
    for accelerator in island.accelerators:
        candidates = [
            c
            for c in calibrations
            if c.accelerator == accelerator.name
            and not _differ(c.engine, engine)
            and not _differ(c.version, version)
        ]
        best = [c for c in candidates if model in c.models] or [
            c for c in candidates if not c.models
        ]
        if best and isinstance(island, Refittable):  # a refitted one is as well
            island = island.refitted(accelerator, best[0].fit(accelerator).values())
            learnt = [best[0].learnt(model, phase) for phase in PHASES]
            corrections += [each for each in learnt if each is not None]
    return Calibrated(island, corrections) if corrections else island


def _differ(one: str, other: str) -> bool:
    """Return whether two names cannot be of one engine, or two versions of one version."""
    return ANY not in (one, other) and one != other


def domains(pool: Pool) -> dict[str, Domain]:
    """Return the domains of a pool with nodes by the prefix of their nodes' names."""
    size = pool.gpus_per_node or 1
    by_prefix = {f"{pool.name}-{domain.name}": domain for domain in pool.domains}
    if not by_prefix:
        by_prefix[pool.name] = Domain(pool.name, pool.count // size)
    rentable = (pool.available - pool.count) // size
    if rentable > 0:
        by_prefix[f"{pool.name}-{RENTED}"] = Domain(RENTED, rentable, pool.classes[0])
    return by_prefix


def domain_of(pool: Pool, node: str) -> Domain | None:
    """Return the domain of a node; None if the pool has no such node."""
    prefix, _, number = node.rpartition("-")
    if not (number.isascii() and number.isdigit() and str(int(number)) == number):
        return None
    domain = domains(pool).get(prefix)
    return domain if domain and int(number) < domain.node_count else None


def free_gpus(pool: Pool, node: str, node_gpus: int) -> int:
    """Return the GPUs of a node; of one that the pool does not have, those of a whole node."""
    domain = domain_of(pool, node)
    return domain.free(int(node.rpartition("-")[2]), node_gpus) if domain else node_gpus


def wrong_parts(group: Group, layers: int) -> Iterator[str]:
    """Yield what is wrong with the parts of a pipeline; ``layers``: of its model."""
    if not group.parts:
        return
    split = group.parallelism
    pools = [part.pool for part in group.parts]
    if len(set(pools)) != len(pools) or len(pools) == 1:
        yield f"{len(pools)} of {', '.join(pools)}; an island has one part of each of its pools"
    if "+".join(pools) != group.pool:
        yield f"of {'+'.join(pools)}, the group is of {group.pool}"
    if sum(part.gpus for part in group.parts) != group.gpus:
        yield f"{sum(part.gpus for part in group.parts)} GPUs, the group states {group.gpus}"
    if (split.dp, split.ep) != (1, 1):
        yield f"{split} for a pipeline over several pools, which is one copy without dp or ep"
    for part in group.parts:
        if part.gpus % split.tp:
            yield f"{part.gpus} GPUs of {part.pool} are no whole stages of {split.tp} GPUs"
        elif part.layers < part.gpus // split.tp:
            stages = part.gpus // split.tp
            yield f"{part.layers} layers in {stages} stages of {part.pool}; each holds at least one"
    if sum(part.layers for part in group.parts) != layers:
        yield f"{sum(part.layers for part in group.parts)} layers, the model has {layers}"


TOLERANCE = 1e-6
"""Relative slack of comparisons of rates and times: a thousand times the document's precision."""


def misstated(
    place: str, stated: object, computed: object, source: str = "it is", unit: str = ""
) -> Iterator[str]:
    """Yield the finding if a stated value is not the computed one; floats may differ by rounding.

    ``source``: words before the computed value.
    """
    if isinstance(stated, (int, float)) and isinstance(computed, float):
        same = math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=1e-12)
    else:
        same = stated == computed
    if not same:
        yield f"{place}: {_text(stated)}{unit} stated, {source} {_text(computed)}"


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return repr(value) if type(value) is str else str(value)


Placed: TypeAlias = "Sequence[tuple[Pool, Part]]"
"""The pools of an island, each with its part."""
Build: TypeAlias = "Callable[[Placed, ModelDemand, Parallelism], PerformanceModel]"
"""Function that makes the performance model of an island."""


def roofline(placed: Placed, model: ModelDemand, parallelism: Parallelism) -> PerformanceModel:
    """Make the performance model that plans are made with.

    Raises:
        PerfModelError: such an island cannot exist, e.g. the weights do not fit.
    """
    if len(placed) > 1:
        sections = [
            Section(pool.accelerator, part.gpus, part.layers, pool.gpus_per_node)
            for pool, part in placed
        ]
        return Pipeline(
            sections,
            model.architecture,
            parallelism.tp,
            model.max_sequences,
            settings=model.settings,
        )
    pool = placed[0][0]
    return Roofline(
        pool.accelerator,
        model.architecture,
        parallelism,
        gpus_per_node=pool.gpus_per_node,
        max_sequences=model.max_sequences,
        settings=model.settings,
    )


@dataclass(frozen=True)
class PlacedPart:
    """The part of an island in one pool: its GPUs and their nodes."""

    island: Island
    group: Group
    gpus: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PlanIndex:
    """A problem, its plan, and the performance model to judge by, with names looked up."""

    problem: PlanningProblem
    plan: Plan
    build: Build = roofline

    @cached_property
    def pools(self) -> dict[str, Pool]:
        """Pools of the problem by name."""
        return {pool.name: pool for pool in self.problem.pools}

    @cached_property
    def models(self) -> dict[str, ModelDemand]:
        """Models of the problem by name."""
        return {model.name: model for model in self.problem.models}

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Groups of the plan by name."""
        return {group.name: group for group in self.plan.groups}

    @cached_property
    def valid_groups(self) -> list[Group]:
        """Groups whose model, pools and parts are valid; ``structure`` reports the others."""
        return [
            group
            for group in self.plan.groups
            if group.model in self.models
            and all(part.pool in self.pools for part in group.sections)
            and not any(wrong_parts(group, self.models[group.model].architecture.layers))
        ]

    @cached_property
    def possible_groups(self) -> list[tuple[Group, PerformanceModel]]:
        """Valid groups whose islands can exist, with the performance model of one of them.

        ``promise`` reports the others.
        """
        groups = []
        for group in self.valid_groups:
            with suppress(PerfModelError):
                groups.append((group, self.performance(group)))
        return groups

    @cached_property
    def parts(self) -> dict[str, list[PlacedPart]]:
        """Placed parts by pool, without islands of unknown groups and pools.

        The nodes of an island belong to its parts in turn; the last part has the rest.
        """
        parts: dict[str, list[PlacedPart]] = {name: [] for name in self.pools}
        for island in self.plan.islands:
            if (group := self.groups.get(island.group)) is None:
                continue
            sections, rest = group.sections, island.nodes
            for part in sections:
                pool = self.pools.get(part.pool)
                size = pool and pool.gpus_per_node
                count = -(-part.gpus // size) if size else 0
                nodes, rest = rest[:count], rest[count:]
                if pool:
                    nodes = nodes + rest if part is sections[-1] else nodes
                    parts[pool.name].append(PlacedPart(island, group, part.gpus, nodes))
        return parts

    @cached_property
    def links(self) -> dict[frozenset[str], float]:
        """Bandwidth of each link between two classes, in either direction [B/s]."""
        return {frozenset(link.classes): link.bytes_per_second for link in self.problem.links}

    def linked(self, source: str, target: str) -> bool:
        """Return whether KV caches can move from one class to the other."""
        return source == target or frozenset((source, target)) in self.links

    def performance(self, group: Group) -> PerformanceModel:
        """Return the performance model of one island; raises what ``build`` raises."""
        placed = [(self.pools[part.pool], part) for part in group.sections]
        model = self.models[group.model]
        plain = self.build(placed, model, group.parallelism)
        return measured(plain, model.architecture.name, self.problem.calibrations)

    def island_rates(self, group: Group) -> list[float]:
        """Return the requests per second of one island by range, from theta and the weights.

        theta times the model's rate or weight, times the range's probability, times the part that
        the routes give this group, divided among its islands.
        """
        model = self.models[group.model]
        column = {span: j for j, span in enumerate(model.ranges)}
        weights = [0] * len(model.ranges)
        for route in self.plan.routes:
            if route.model == group.model and route.range in column:
                for pair in route.pairs:
                    if group.name in (pair.prefill, pair.decode):
                        weights[column[route.range]] += pair.weight
        offered = self.plan.theta * self.problem.weight(model) / group.islands
        shares = self.shares[group.model]
        return [offered * p * w / MILLION for p, w in zip(shares, weights, strict=True)]

    def is_routed(self, group: Group) -> bool:
        """Return whether a route names a group, be it of a range of probability 0."""
        pairs = (pair for route in self.plan.routes for pair in route.pairs if pair.weight)
        return any(group.name in (pair.prefill, pair.decode) for pair in pairs)

    @cached_property
    def shares(self) -> dict[str, list[float]]:
        """Probability of every range of every model."""
        return {
            name: [sum(atom.probability for atom in atoms) for atoms in atoms_by_range(model)]
            for name, model in self.models.items()
        }
