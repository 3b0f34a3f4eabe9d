"""Plan and PlanningOutcome: the results of the planner, as frozen values.

``formats/plan_file.py`` writes a plan as JSON or YAML.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .errors import SolverError
from .problem import DEFAULT_CLASS, Objective, Phase, RunningIsland

if TYPE_CHECKING:
    from archipelago.perfmodel.roofline.parallelism import Parallelism
    from archipelago.perfmodel.workload.lengths import Range


MILLION = 1_000_000


class IslandClass(NamedTuple):
    """What makes islands interchangeable: operating points of one class need no restart.

    ``parts``: (pool, GPUs), in the order of the pipeline. ``phase`` None: of any phase.
    """

    model: str
    domain_class: str
    parts: tuple[tuple[str, int], ...]
    phase: Phase | None
    parallelism: Parallelism
    started: str = ""

    @property
    def without_phase(self) -> IslandClass:
        """The class of the islands that these can become by a change of phase."""
        return self._replace(phase=None)


@dataclass(frozen=True)
class Part:
    """The GPUs of an island in one pool: one or more pipeline stages.

    ``layers``: of the model in these stages; 0 if the island is of one pool and holds all layers.
    """

    pool: str
    gpus: int
    layers: int = 0


@dataclass(frozen=True)
class Island:
    """GPUs that together hold one copy (or ``dp`` copies) of one model.

    ``nodes``: those of the first part come first. Empty if the pools have no nodes.
    """

    name: str
    group: str
    nodes: tuple[str, ...] = ()


class IslandKind:
    """What the islands of one group, or of one template, have in common.

    ``started``: what the engine is started with (`started.py`); empty if the spec states nothing of
    it. Islands that were started with something else are of another class.
    """

    model: str
    pool: str
    phase: Phase
    gpus: int
    parallelism: Parallelism
    domain_class: str
    parts: tuple[Part, ...]
    started: str

    @property
    def sections(self) -> tuple[Part, ...]:
        """The parts of one island; one part if it is of one pool."""
        return self.parts or (Part(self.pool, self.gpus),)

    def gpus_of(self, pool: str) -> int:
        """Return the GPUs that one island takes from a pool."""
        return sum(part.gpus for part in self.sections if part.pool == pool)

    @property
    def island_class(self) -> IslandClass:
        """The class of the islands."""
        parts = tuple((part.pool, part.gpus) for part in self.sections)
        split, started = self.parallelism, self.started
        return IslandClass(self.model, self.domain_class, parts, self.phase, split, started)


@dataclass(frozen=True)
class Group(IslandKind):
    """Islands of equal template: interchangeable, of equal weight.

    ``pool``: name of their pool; names joined by ``+`` if ``parts`` are of several pools.
    ``domain_class``: of their nodes. ``rates``: of the whole group at the plan's theta [req/s],
    shape (ranges,). ``max_batch``: sequences that an island decodes at once (1 for prefill).
    ``utilisation``: largest used share of its capacity rows; ``binding``: name of that row.
    ``step_time`` [s] (time per output token; on a mixed island with the prompts in between),
    ``sequences`` and ``kv_tokens``: steady state of one decode or mixed island at theta (0 for
    prefill). ``times_within``: factor either way within which its times, and so its rates, lie
    with 90 % probability; 1 if unknown.
    """

    name: str
    model: str
    pool: str
    phase: Phase
    gpus: int  # per island
    parallelism: Parallelism
    max_batch: int
    islands: int
    rates: tuple[float, ...]
    utilisation: float
    binding: str
    step_time: float = 0.0
    sequences: float = 0.0
    kv_tokens: float = 0.0
    kv_capacity: int = 0
    domain_class: str = DEFAULT_CLASS
    parts: tuple[Part, ...] = ()
    times_within: float = 1.0
    started: str = ""


@dataclass(frozen=True)
class Pair:
    """Requests of one route that one group prefills and another one decodes.

    A mixed group is on both sides: its requests stay on the island where they start.
    """

    prefill: str
    decode: str
    weight: int  # requests per million of the route


@dataclass(frozen=True)
class Route:
    """The groups that serve one model and range; weights sum to 1,000,000."""

    model: str
    range: Range
    share: float  # of the model's requests
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Exclusion:
    """A template that was excluded, and the reason with its numbers."""

    template: str
    reason: str


@dataclass(frozen=True)
class Unservable:
    """Share of a model's requests that no template can serve."""

    model: str
    share: float
    above: int  # input length [tokens] from which on requests are unservable


class Unfinished(StrEnum):
    """Why a search ended without proof that its plan is within the requested gap."""

    TIME_LIMIT = "time limit"
    NODE_LIMIT = "node limit"
    TARGET = "target"
    UNKNOWN = "unknown"
    ROUNDING = "rounding of shares"
    NO_PROOF = "a search proves nothing"
    DEPLOYED = "the deployed islands stay: a cheaper plan would not pay for its changes"
    AS_DEPLOYED = "islands as they stand: no bound"
    READ_BACK = "read back from a table"


@dataclass(frozen=True)
class PricedBound:
    """The bound of a linear relaxation, and the prices of its rows that prove it by weak duality.

    ``bound``: on theta, or on the cost under the cost objective [$/h]. ``prices``: by the name of a
    row, what one more unit of its limit is worth in the unit of the bound; those that are not 0.
    """

    bound: float
    prices: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Certificate:
    """The proof of a plan: bound and gap of the objective, in the rate model.

    ``bound``: No plan over the same templates has a larger theta, or, under the cost objective, a
    smaller cost [$/h] at minHeadroom. ``gap`` = (bound - theta) / bound, or (cost - bound) / cost.
    ``complete``: False if a limit ended the search; ``reason`` names it. ``priced``: the part
    of the bound that anybody can recompute; what ``bound`` is tighter, the solver's search says.
    None if the strategy has no prices.
    """

    bound: float
    gap: float
    complete: bool
    reason: str = ""
    priced: PricedBound | None = None


@dataclass(frozen=True)
class ThetaInterval:
    """The 90 % interval of theta from the uncertainty of times; islands and routes stay.

    ``low`` and ``high`` in the unit of theta. ``dominated_by``: the accelerator whose exact times
    would raise ``low`` most.
    """

    low: float
    high: float
    dominated_by: str


@dataclass(frozen=True)
class Changes:
    """Changes to the running islands, by name.

    ``kept`` stay in place. ``moved``: islands of the same class that go to other nodes, because new
    ones would not fit otherwise. ``moved_gpus``: of islands that start or move [GPUs].
    """

    kept: tuple[str, ...]
    started: tuple[str, ...]
    stopped: tuple[str, ...]
    moved: tuple[str, ...]
    moved_gpus: int


MOST_NAMED = 100_000
"""Largest number of islands that a plan names: one per GPU of the largest benchmark."""


@dataclass(frozen=True)
class Plan:
    """Templates with counts, rates per range, routes, and the certificate.

    ``islands``: empty if there are more than ``MOST_NAMED``; then the groups count them.
    ``rented``: GPUs to rent by pool. ``changes``: None if the problem has no running islands.
    ``interval``: None if the performance model has no uncertainty.
    """

    name: str
    strategy: str
    performance_model: str
    objective: Objective
    theta: float  # headroom [1] or throughput [req/s], after evaluation
    throughput: float  # all models together at theta [req/s]
    certificate: Certificate
    cost_per_hour: Decimal
    groups: tuple[Group, ...]
    islands: tuple[Island, ...]
    routes: tuple[Route, ...]
    unservable: tuple[Unservable, ...]
    exclusions: tuple[Exclusion, ...]
    rented: tuple[tuple[str, int], ...] = ()
    changes: Changes | None = None
    interval: ThetaInterval | None = None

    @property
    def island_count(self) -> int:
        """Islands of all groups, named or not."""
        return sum(group.islands for group in self.groups)

    @property
    def only_counts(self) -> bool:
        """Whether there are too many islands to name: the groups say how many."""
        return not self.islands and self.island_count > MOST_NAMED

    def used(self, pool: str) -> int:
        """Return the GPUs of a pool that islands use."""
        return sum(group.gpus_of(pool) * group.islands for group in self.groups)

    def members(self) -> dict[str, list[str]]:
        """Return the names of the islands of every group."""
        members: dict[str, list[str]] = {group.name: [] for group in self.groups}
        for island in self.islands:
            members[island.group].append(island.name)
        return members


class Wait(StrEnum):
    """What a table of a rollout waits for before it is published."""

    NONE = "None"
    DRAIN = "Drain"  # requests under way on the islands that change have ended
    READY = "Ready"  # the pods of the islands that changed are ready


@dataclass(frozen=True)
class Relaxation:
    """The smallest change of one kind that would make the problem feasible."""

    kind: str  # e.g. "ttft", "tpot", "gpus:H20", "budget", "rate"
    value: float
    unit: str
    models: tuple[str, ...]
    text: str


class InfeasibleReason(StrEnum):
    """Why there is no plan."""

    NO_TEMPLATE = "NoTemplate"  # a (model, range, phase) has no template
    HEADROOM = "HeadroomTooLow"
    UNSERVABLE = "TooMuchUnservable"
    NO_ROOM = "NoRoom"  # templates exist, but not enough GPUs or budget for one of each phase


@dataclass(frozen=True)
class Infeasible:
    """No plan exists: what binds, and what would help."""

    reason: InfeasibleReason
    message: str
    relaxations: tuple[Relaxation, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A plan, its planning time, and the branch-and-bound nodes of its proof.

    Neither seconds nor nodes are part of the plan's content.
    """

    plan: Plan
    seconds: float
    nodes: int = 0


PlanningOutcome: TypeAlias = Planned | Infeasible


def refuse_counts(plan: Plan, use: str) -> None:
    """Refuse a plan without names of islands for a ``use`` that needs every name.

    Raises:
        SolverError: the plan only counts its islands.
    """
    if plan.only_counts:
        raise SolverError(
            f"the plan has {plan.island_count} islands and names none, but {use} need names, at "
            f"most {MOST_NAMED}: allow larger islandSizes, or plan fewer GPUs at a time"
        )


def running_islands(plan: Plan) -> tuple[RunningIsland, ...]:
    """Return the islands of a plan as ``PlanningProblem.running``, in the order of the plan.

    Raises:
        SolverError: the plan only counts its islands.
    """
    refuse_counts(plan, "islands that run")
    groups = {group.name: group for group in plan.groups}
    running = []
    for island in plan.islands:
        model, _, parts, _, parallelism, started = groups[island.group].island_class
        phase, nodes = groups[island.group].phase, island.nodes
        running.append(RunningIsland(island.name, model, phase, parallelism, parts, nodes, started))
    return tuple(running)
