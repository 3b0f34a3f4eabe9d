"""What every check reads: the problem and the plan side by side, with their names looked up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from archipelago.perfmodel.pipeline import Pipeline, Section
from archipelago.perfmodel.roofline import Roofline
from archipelago.planner.checks.lengths import atoms_by_range
from archipelago.planner.checks.measured import measured
from archipelago.planner.checks.parts import wrong_parts
from archipelago.planner.plan import MILLION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.perfmodel.parallelism import Parallelism
    from archipelago.planner.plan import Group, Island, Part, Plan
    from archipelago.planner.problem import ModelDemand, PlanningProblem, Pool

TOLERANCE = 1e-6
"""Relative slack of every comparison of rates and times: a thousand times the document's digits."""


Placed: TypeAlias = "Sequence[tuple[Pool, Part]]"
"""The pools of an island, each with what it gives."""
Build: TypeAlias = "Callable[[Placed, ModelDemand, Parallelism], PerformanceModel]"
"""How the model of times of an island is made."""


def roofline(placed: Placed, model: ModelDemand, parallelism: Parallelism) -> PerformanceModel:
    """The model of times that plans are made with.

    Raises:
        PerfModelError: such an island cannot exist, e.g. the weights do not fit.
    """
    if len(placed) > 1:
        sections = [
            Section(pool.accelerator, part.gpus, part.layers, pool.gpus_per_node)
            for pool, part in placed
        ]
        return Pipeline(sections, model.architecture, parallelism.tp, model.max_sequences)
    pool = placed[0][0]
    return Roofline(
        pool.accelerator,
        model.architecture,
        parallelism,
        gpus_per_node=pool.gpus_per_node,
        max_sequences=model.max_sequences,
    )


@dataclass(frozen=True)
class Stand:
    """Where an island stands in one pool: its GPUs there and their nodes."""

    island: Island
    group: Group
    gpus: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Facts:
    """A problem, the plan that claims to solve it, and the model of times to judge it by."""

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
    def known_groups(self) -> list[Group]:
        """Groups whose model and pools the problem has and whose parts add up.

        ``structure`` reports the others.
        """
        return [
            group
            for group in self.plan.groups
            if group.model in self.models
            and all(part.pool in self.pools for part in group.sections)
            and not any(wrong_parts(group, self.models[group.model].architecture.layers))
        ]

    @cached_property
    def stands(self) -> dict[str, list[Stand]]:
        """Where islands stand, by pool; islands of unknown groups and pools are left out."""
        found: dict[str, list[Stand]] = {name: [] for name in self.pools}
        for island in self.plan.islands:
            group = self.groups.get(island.group)
            for part, nodes in self._split(island, group) if group is not None else ():
                if group is not None and part.pool in found:
                    found[part.pool].append(Stand(island, group, part.gpus, nodes))
        return found

    def _split(self, island: Island, group: Group) -> list[tuple[Part, tuple[str, ...]]]:
        """Nodes of every part in turn; the last one has what is left."""
        left, found = island.nodes, []
        for part in group.sections[:-1]:
            count = self.nodes_needed(part)
            found.append((part, left[:count]))
            left = left[count:]
        return [*found, (group.sections[-1], left)]

    def nodes_needed(self, part: Part) -> int:
        """Nodes that the GPUs of a part take; 0 where its pool does not count in nodes."""
        pool = self.pools.get(part.pool)
        size = pool.gpus_per_node if pool else None
        return -(-part.gpus // size) if size else 0

    @cached_property
    def links(self) -> dict[frozenset[str], float]:
        """What each link between two classes carries in either direction [B/s]."""
        return {frozenset(link.classes): link.bytes_per_second for link in self.problem.links}

    def linked(self, one: str, other: str) -> bool:
        """Whether a cache can go from one class to the other."""
        return one == other or frozenset((one, other)) in self.links

    def performance(self, group: Group) -> PerformanceModel:
        """The model of times of one island of a known group; raises what ``build`` raises."""
        placed = [(self.pools[part.pool], part) for part in group.sections]
        model = self.models[group.model]
        plain = self.build(placed, model, group.parallelism)
        return measured(plain, model.architecture.name, self.problem.calibrations)

    def island_rates(self, group: Group) -> list[float]:
        """Requests per second of one island, per range, from theta and the integer weights.

        theta times the model's rate or weight, times the range's probability, times the part that
        the routes give this group, divided among its islands.
        """
        model = self.models[group.model]
        index = {span: j for j, span in enumerate(model.ranges)}
        weights = [0] * len(model.ranges)
        for route in self.plan.routes:
            if route.model == group.model and route.range in index:
                for pair in route.pairs:
                    if group.name in (pair.prefill, pair.decode):
                        weights[index[route.range]] += pair.weight
        offered = self.plan.theta * self.problem.weight(model) / group.islands
        shares = self.shares[group.model]
        return [offered * p * w / MILLION for p, w in zip(shares, weights, strict=True)]

    @cached_property
    def shares(self) -> dict[str, list[float]]:
        """Probability of every range of every model."""
        return {
            name: [sum(atom.probability for atom in atoms) for atoms in atoms_by_range(model)]
            for name, model in self.models.items()
        }
