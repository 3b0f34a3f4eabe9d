"""What every check reads: the problem and the plan side by side, with their names looked up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from archipelago.perfmodel.roofline import Roofline
from archipelago.planner.checks.lengths import atoms_by_range
from archipelago.planner.plan import MILLION

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.perfmodel.parallelism import Parallelism
    from archipelago.planner.plan import Group, Island, Plan
    from archipelago.planner.problem import ModelDemand, PlanningProblem, Pool

TOLERANCE = 1e-6
"""Relative slack of every comparison of rates and times: a thousand times the document's digits."""


Build: TypeAlias = "Callable[[Pool, ModelDemand, Parallelism], PerformanceModel]"
"""How the model of times of an island is made."""


def roofline(pool: Pool, model: ModelDemand, parallelism: Parallelism) -> PerformanceModel:
    """The model of times that plans are made with.

    Raises:
        PerfModelError: such an island cannot exist, e.g. the weights do not fit.
    """
    return Roofline(
        pool.accelerator,
        model.architecture,
        parallelism,
        gpus_per_node=pool.gpus_per_node,
        max_sequences=model.max_sequences,
    )


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
        """Groups whose model and pool the problem has; ``structure`` reports the others."""
        return [g for g in self.plan.groups if g.model in self.models and g.pool in self.pools]

    @cached_property
    def islands_by_pool(self) -> dict[str, list[tuple[Island, Group]]]:
        """Islands with their group, by pool; an island of an unknown group is left out."""
        found: dict[str, list[tuple[Island, Group]]] = {name: [] for name in self.pools}
        for island in self.plan.islands:
            group = self.groups.get(island.group)
            if group is not None and group.pool in found:
                found[group.pool].append((island, group))
        return found

    def performance(self, group: Group) -> PerformanceModel:
        """The model of times of one island of a group; raises what ``build`` raises."""
        return self.build(self.pools[group.pool], self.models[group.model], group.parallelism)

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
