"""PlanningProblem: everything a plan depends on, as frozen facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.lengths import LengthDistribution, Range


class Phase(StrEnum):
    """What an island does."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class Domain:
    """Nodes that reach each other at full speed (rack, NVLink domain, zone)."""

    name: str
    nodes: int


@dataclass(frozen=True)
class Pool:
    """GPUs of one accelerator type with one price and one set of nodes.

    ``gpus_per_node`` None means that the GPUs come one by one and any island size fits.
    ``domains`` empty means one domain of all nodes. ``island_sizes`` empty means the default
    chain: 1, 2, 4 ... a node, then 1, 2, 4 ... nodes, as far as the pool and 128 GPUs go.
    """

    name: str
    accelerator: Accelerator
    count: int
    price_per_gpu_hour: Decimal = Decimal(0)
    gpus_per_node: int | None = None
    domains: tuple[Domain, ...] = ()
    island_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Targets:
    """Latency targets [s]; None means no target."""

    ttft: float | None = None
    tpot: float | None = None


@dataclass(frozen=True)
class ModelDemand:
    """One model, what is asked of it, and the input-length ranges it is planned in.

    ``rate`` is the stated request rate [req/s]; where every model has one the objective is
    headroom, else ``weight`` says how the throughput splits between models.
    """

    name: str
    architecture: ModelArchitecture
    lengths: LengthDistribution
    ranges: tuple[Range, ...]
    rate: float | None = None
    weight: float = 1.0
    targets: Targets = Targets()
    max_sequences: int = 1024


TIME_LIMITS: Final = {"exact": 10.0, "bayesian-divider": 600.0}
"""Longest time to plan by strategy, where none is stated [s]."""


class Objective(StrEnum):
    """What theta means; the two are never mixed."""

    THROUGHPUT = "throughput"  # req/s, split by weights
    HEADROOM = "headroom"  # multiple of the stated rates


@dataclass(frozen=True)
class SolverSettings:
    """Knobs of a strategy. ``time_limit`` [s]; ``gap`` is what is published at most."""

    strategy: str = "exact"
    time_limit: float = 10.0
    gap: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class PlanningProblem:
    """One input of the planner. Equal problems give byte-identical plan content."""

    name: str
    models: tuple[ModelDemand, ...]
    pools: tuple[Pool, ...]
    budget_per_hour: Decimal | None = None
    min_headroom: float | None = None
    max_unservable: float = 0.001
    solver: SolverSettings = field(default_factory=SolverSettings)

    @property
    def objective(self) -> Objective:
        """Headroom when every model states a rate, else throughput by weights."""
        stated = all(model.rate is not None for model in self.models)
        return Objective.HEADROOM if stated else Objective.THROUGHPUT

    def weight(self, model: ModelDemand) -> float:
        """w_m: requests per second of this model at theta = 1.

        Under headroom the stated rate; under throughput the model's share of the weights, so that
        theta is the throughput of all models together [req/s].
        """
        if self.objective is Objective.HEADROOM and model.rate is not None:
            return model.rate
        return model.weight / sum(m.weight for m in self.models)
