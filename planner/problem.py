"""PlanningProblem: everything a plan depends on, as frozen facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.calibration import Calibration
    from archipelago.perfmodel.lengths import LengthDistribution, Range
    from archipelago.perfmodel.parallelism import Parallelism


class Phase(StrEnum):
    """What an island does. ``MIXED``: both stages of a request on the same island, "collocated"."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def stages(self) -> tuple[Phase, ...]:
        """Stages of a request's life that an island of this phase serves."""
        return STAGES if self is Phase.MIXED else (self,)


STAGES: Final = (Phase.PREFILL, Phase.DECODE)
"""What happens to every request, in this order."""

DEFAULT_CLASS: Final = "default"
"""Class of domains that state none."""

RENTED: Final = "rented"
"""Domain of the nodes that a pool does not have yet but may rent (``max_count``)."""


@dataclass(frozen=True)
class Domain:
    """Nodes that reach each other at full speed (rack, NVLink domain, zone).

    Between domains of one class KV caches move freely, as far as the NICs go; between classes a
    ``Link`` must carry them.
    """

    name: str
    nodes: int
    domain_class: str = DEFAULT_CLASS


@dataclass(frozen=True)
class Link:
    """What the network between two domain classes carries in each direction [B/s].

    Classes without a link exchange no KV caches: no request is prefilled in one and decoded in
    the other.
    """

    classes: tuple[str, str]  # in alphabetical order
    bytes_per_second: float


class Billing(StrEnum):
    """What is paid for: the GPUs of islands, or every node that an island stands on."""

    PER_GPU = "PerGPU"
    PER_NODE = "PerNode"


@dataclass(frozen=True)
class Pool:
    """GPUs of one accelerator type with one price and one set of nodes.

    ``count`` GPUs exist; up to ``max_count`` in all may be used, the rest being rented at the same
    price. ``gpus_per_node`` None means that the GPUs come one by one and any island size fits.
    ``domains`` empty means one domain of all nodes. ``island_sizes`` empty means the default
    chain: 1, 2, 4 ... a node, then 1, 2, 4 ... nodes, as far as the pool and 128 GPUs go.
    ``nic_per_gpu``: what the network adapters move per GPU and direction [B/s]; None: no limit.
    """

    name: str
    accelerator: Accelerator
    count: int
    price_per_gpu_hour: Decimal = Decimal(0)
    gpus_per_node: int | None = None
    domains: tuple[Domain, ...] = ()
    island_sizes: tuple[int, ...] = ()
    max_count: int | None = None
    billing: Billing = Billing.PER_GPU
    nic_per_gpu: float | None = None

    @property
    def available(self) -> int:
        """GPUs that a plan may use, existing and rentable [GPUs]."""
        return self.count if self.max_count is None else self.max_count


@dataclass(frozen=True)
class Targets:
    """Latency targets [s]; None means no target."""

    ttft: float | None = None
    tpot: float | None = None


@dataclass(frozen=True)
class ModelDemand:
    """One model, what is asked of it, and the input-length ranges it is planned in.

    ``rate`` is the stated request rate [req/s]; where every model has one the objective is
    headroom, else ``weight`` says how the throughput splits between models. ``phases``: what its
    islands may do. ``max_utilisation``: share of every capacity row that a plan may use.
    """

    name: str
    architecture: ModelArchitecture
    lengths: LengthDistribution
    ranges: tuple[Range, ...]
    rate: float | None = None
    weight: float = 1.0
    targets: Targets = Targets()
    max_sequences: int = 1024
    phases: tuple[Phase, ...] = STAGES
    max_utilisation: float = 1.0


TIME_LIMITS: Final = {"exact": 10.0, "bayesian-divider": 600.0}
"""Longest time to plan by strategy, where none is stated [s]."""


class Objective(StrEnum):
    """What is optimised. It also says what theta means; the two meanings are never mixed."""

    THROUGHPUT = "throughput"  # theta: req/s, split by weights
    HEADROOM = "headroom"  # theta: multiple of the stated rates
    COST = "cost"  # least $/h at theta >= minHeadroom; theta as under headroom


@dataclass(frozen=True)
class SolverSettings:
    """Knobs of a strategy. ``time_limit`` [s]; ``gap`` is what is published at most."""

    strategy: str = "exact"
    time_limit: float = 10.0
    gap: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class Running:
    """An island that runs now, which a new plan should rather keep than replace.

    It is kept where the plan wants an island of equal model, pools, GPUs, phase and parallelism;
    the largest batch is the engine's admission limit and needs no new island.
    """

    name: str
    model: str
    phase: Phase
    parallelism: Parallelism
    parts: tuple[tuple[str, int], ...]  # (pool, GPUs), in the order of the pipeline
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanningProblem:
    """One input of the planner. Equal problems give byte-identical plan content.

    ``pipelines``: pools (two or more names each) whose GPUs may together form one island.
    ``running``: what stands now; among plans of equal value the one that changes least is taken.
    ``calibrations``: what measurements say of engines, in place of the catalogue.
    """

    name: str
    models: tuple[ModelDemand, ...]
    pools: tuple[Pool, ...]
    budget_per_hour: Decimal | None = None
    min_headroom: float | None = None
    max_unservable: float = 0.001
    solver: SolverSettings = field(default_factory=SolverSettings)
    minimise_cost: bool = False
    links: tuple[Link, ...] = ()
    pipelines: tuple[tuple[str, ...], ...] = ()
    running: tuple[Running, ...] = ()
    calibrations: tuple[Calibration, ...] = ()

    @property
    def objective(self) -> Objective:
        """Cost where it is asked for, headroom when every model states a rate, else throughput."""
        if self.minimise_cost:
            return Objective.COST
        stated = all(model.rate is not None for model in self.models)
        return Objective.HEADROOM if stated else Objective.THROUGHPUT

    def weight(self, model: ModelDemand) -> float:
        """w_m: requests per second of this model at theta = 1.

        Under headroom and cost the stated rate; under throughput the model's share of the weights,
        so that theta is the throughput of all models together [req/s].
        """
        if self.objective is not Objective.THROUGHPUT and model.rate is not None:
            return model.rate
        return model.weight / sum(m.weight for m in self.models)
