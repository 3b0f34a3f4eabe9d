"""PlanningProblem: everything a plan depends on, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from archipelago.perfmodel.calibration.corrections import Calibration
    from archipelago.perfmodel.catalogue.accelerators import Accelerator
    from archipelago.perfmodel.catalogue.architectures import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.perfmodel.roofline.kv_transfer import CacheLayout
    from archipelago.perfmodel.roofline.parallelism import Parallelism, Splits
    from archipelago.perfmodel.roofline.settings import EngineSettings
    from archipelago.perfmodel.workload.lengths import LengthDistribution, Range


class Phase(StrEnum):
    """Stages that an island serves. ``MIXED``: both stages of a request, "collocated"."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def stages(self) -> tuple[Phase, ...]:
        """Stages of a request that an island of this phase serves."""
        return STAGES if self is Phase.MIXED else (self,)


STAGES: Final = (Phase.PREFILL, Phase.DECODE)
"""Stages of every request, in this order."""

DEFAULT_CLASS: Final = "default"
"""Class of domains without a stated one."""

RENTED: Final = "rented"
"""Domain of the nodes that a pool does not have yet but can rent (``max_count``)."""


MAX_DOMAINS: Final = 64
"""Largest number of domains that a pool of a ServingPlan may have."""
MAX_SHARED: Final = 16
"""Different numbers of free GPUs that the shared nodes of a domain may have."""


def domain_classes(stated: Iterable[str]) -> tuple[str, ...]:
    """Return the classes of a pool's domains in alphabetical order; the default one without any."""
    return tuple(sorted(set(stated) or {DEFAULT_CLASS}))


@dataclass(frozen=True)
class Domain:
    """Nodes that reach each other at full speed (rack, NVLink domain, zone).

    Between domains of one class only the network adapters limit KV transfers; between classes a
    ``Link`` must carry them.

    ``nodes``: whole ones, numbered from 0. ``shared``: free GPUs of each further node, of which
    others hold the rest [GPUs]; they are numbered after the whole ones.
    """

    name: str
    nodes: int
    domain_class: str = DEFAULT_CLASS
    shared: tuple[int, ...] = ()

    @property
    def node_count(self) -> int:
        """Whole and shared nodes [nodes]."""
        return self.nodes + len(self.shared)

    def free(self, index: int, node_gpus: int) -> int:
        """Return the GPUs of the node with that number; ``node_gpus``: of a whole one [GPUs]."""
        return node_gpus if index < self.nodes else self.shared[index - self.nodes]


@dataclass(frozen=True)
class Link:
    """The network between two domain classes: bandwidth in each direction [B/s], latency [s].

    Classes without a link exchange no KV caches: no request is prefilled in one and decoded in
    the other. ``latency`` None: that between any two nodes.
    """

    classes: tuple[str, str]  # in alphabetical order
    bytes_per_second: float
    latency: float | None = None


class Billing(StrEnum):
    """What is paid for: the GPUs of islands, or every node with an island."""

    PER_GPU = "PerGPU"
    PER_NODE = "PerNode"


@dataclass(frozen=True)
class Pool:
    """GPUs of one accelerator type with one price and one set of nodes.

    ``count``: existing GPUs. ``max_count``: GPUs in all, the others rented at the same price; None:
    none can be rented. ``gpus_per_node``: None if GPUs come one by one and any island size fits.
    ``domains``: empty for one domain of all nodes. ``island_sizes``: empty for the default chain
    1, 2, 4 ... a node, then 1, 2, 4 ... nodes, up to the pool and 128 GPUs. ``nic_per_gpu``:
    bandwidth of the network adapters per GPU and direction [B/s]; None: no limit.
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
        """GPUs that a plan can use, existing and rentable [GPUs]."""
        return self.count if self.max_count is None else self.max_count

    @property
    def classes(self) -> tuple[str, ...]:
        """Domain classes of the pool in alphabetical order."""
        return domain_classes(domain.domain_class for domain in self.domains)


@dataclass(frozen=True)
class Targets:
    """Latency targets [s]; None means no target."""

    ttft: float | None = None
    tpot: float | None = None


def _default_settings() -> EngineSettings:
    """Return the settings of an engine of which nothing is stated; the operator has no numpy."""
    from archipelago.perfmodel.roofline.settings import EngineSettings  # noqa: PLC0415

    return EngineSettings()


def _any_split() -> Splits:
    from archipelago.perfmodel.roofline.parallelism import ANY_SPLIT  # noqa: PLC0415

    return ANY_SPLIT


@dataclass(frozen=True)
class ModelDemand:
    """The demand of one model, with the ranges of input lengths of its plan.

    ``rate``: stated request rate [req/s]; if every model has one, the objective is headroom, else
    the throughput is divided by ``weight``. ``phases``: of its islands. ``max_utilisation``: share
    of every capacity row that a plan may use. ``settings``: of the engine; ``splits``: of its
    islands that are admitted; ``stated``: fields of the spec's engine that are no defaults.
    ``started``: what its pods are started with (`IslandKind.started`). ``wire``: the cache as its
    connector sends it; None: as it is stored.
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
    settings: EngineSettings = field(default_factory=_default_settings)
    splits: Splits = field(default_factory=_any_split)
    stated: frozenset[str] = frozenset()
    started: str = ""
    wire: CacheLayout | None = None

    def sent_bytes(self, island: PerformanceModel) -> Callable[[FloatArray], FloatArray]:
        """Return the function of bytes [B] that the caches of prompts [tokens] are on the wire."""
        return island.kv_bytes if self.wire is None else self.wire.size


TIME_LIMITS: Final = {"exact": 10.0, "bayesian-divider": 600.0}
"""Default time limit by strategy [s]."""
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "exact": (),
    "bayesian-divider": ("ax", "botorch", "torch", "pulp"),
}
"""What a strategy imports beyond what every installation has: the extra ``bayes``."""


def missing_packages(strategy: str) -> tuple[str, ...]:
    """Return what a strategy needs and is not installed; nothing is imported to find out."""
    return tuple(name for name in PACKAGES[strategy] if find_spec(name) is None)


class Objective(StrEnum):
    """What is optimised; it also defines theta."""

    THROUGHPUT = "throughput"  # theta: req/s, split by weights
    HEADROOM = "headroom"  # theta: multiple of the stated rates
    COST = "cost"  # least $/h at theta >= minHeadroom; theta as under headroom


@dataclass(frozen=True)
class SolverSettings:
    """Settings of a strategy. ``time_limit`` [s]; ``gap``: largest published relative gap."""

    strategy: str = "exact"
    time_limit: float = 10.0
    gap: float = 1e-3
    seed: int = 0


@dataclass(frozen=True)
class RunningIsland:
    """An island that runs now, which a new plan keeps if it has one of the same class.

    The largest batch is not part of the class: it is an admission limit of the engine.
    """

    name: str
    model: str
    phase: Phase
    parallelism: Parallelism
    parts: tuple[tuple[str, int], ...]  # (pool, GPUs), in the order of the pipeline
    nodes: tuple[str, ...] = ()
    started: str = ""


@dataclass(frozen=True)
class PlanningProblem:
    """One input of the planner. Equal problems give byte-identical plan content.

    ``pipelines``: pools (two or more names each) whose GPUs can form one island together.
    ``running``: islands that run now; among plans of equal value, the one with the least change is
    chosen. ``calibrations``: measured corrections of the performance model.
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
    running: tuple[RunningIsland, ...] = ()
    calibrations: tuple[Calibration, ...] = ()

    @property
    def objective(self) -> Objective:
        """Cost if minimised, headroom if every model states a rate, else throughput."""
        if self.minimise_cost:
            return Objective.COST
        stated = all(model.rate is not None for model in self.models)
        return Objective.HEADROOM if stated else Objective.THROUGHPUT

    def weight(self, model: ModelDemand) -> float:
        """Return w_m, the requests per second of a model at theta = 1.

        The stated rate; under the throughput objective the model's share of the weights, so that
        theta is the throughput of all models together [req/s].
        """
        if self.objective is not Objective.THROUGHPUT and model.rate is not None:
            return model.rate
        return model.weight / sum(m.weight for m in self.models)
