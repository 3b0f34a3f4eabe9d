"""Plan and PlanningOutcome: what the planner answers, as frozen facts.

``document.py`` turns a plan into the JSON or YAML that people and the operator store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.problem import DEFAULT_CLASS

if TYPE_CHECKING:
    from decimal import Decimal

    from archipelago.perfmodel.lengths import Range
    from archipelago.perfmodel.parallelism import Parallelism
    from archipelago.planner.problem import Objective, Phase

MILLION = 1_000_000


@dataclass(frozen=True)
class Part:
    """The GPUs that one pool gives to an island: one or more pipeline stages.

    ``layers``: of the model, which these stages hold; 0 where the island is of one pool alone and
    holds all of them.
    """

    pool: str
    gpus: int
    layers: int = 0


@dataclass(frozen=True)
class Island:
    """GPUs that together hold one copy (or ``dp`` copies) of one model.

    ``nodes``: those of the first part come first. Empty where the pools do not say how many GPUs
    a node has.
    """

    name: str
    group: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Islands of equal template: interchangeable, equal weight inside the group.

    ``pool``: where the GPUs come from; for islands of several pools their names joined by ``+``,
    and ``parts`` says how many of which. ``domain_class``: where in the network the islands stand.
    ``rates``: requests per second that the whole group serves of each of its model's ranges at
    the plan's theta, shape (ranges,). ``max_batch``: sequences an island decodes at once at most
    (1 for prefill). ``utilisation``: the largest used share of its capacity rows, and
    ``binding`` that row's name. ``step_time`` [s] (time per output token; on a mixed island with
    the prompts in between), ``sequences`` and ``kv_tokens``: the evaluated fixed point of one
    decode or mixed island at theta (0 for prefill). ``times_within``: factor either way within
    which its times, and so its rates, lie with 90 % probability; 1 where nothing is known of that.
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

    @property
    def sections(self) -> tuple[Part, ...]:
        """The parts of one island, also where it is of one pool alone."""
        return self.parts or (Part(self.pool, self.gpus),)

    def gpus_of(self, pool: str) -> int:
        """GPUs that one island takes from a pool."""
        return sum(part.gpus for part in self.sections if part.pool == pool)


@dataclass(frozen=True)
class Pair:
    """Requests of one route: prefilled in one group, decoded in another.

    A mixed group stands on both sides: such a request stays on the island where it started.
    """

    prefill: str
    decode: str
    weight: int  # requests per million of the route


@dataclass(frozen=True)
class Route:
    """Where the requests of one model and one range go; weights sum to 1,000,000."""

    model: str
    range: Range
    share: float  # of the model's requests
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Exclusion:
    """A template that was left out, and why (with the numbers that decided)."""

    template: str
    reason: str


@dataclass(frozen=True)
class Unservable:
    """Share of a model's requests that no template can hold."""

    model: str
    share: float
    above: int  # input length [tokens] from which on requests are unservable


@dataclass(frozen=True)
class Certificate:
    """The proof of a plan: bound and gap are on the objective, in the rate model.

    ``bound`` is proven by the solver: no plan over the same templates has a larger theta, or,
    under the cost objective, a smaller cost [$/h] at the headroom asked for.
    ``gap`` = (bound - theta) / bound, or (cost - bound) / cost. ``complete`` is False when a limit
    ended the search, and ``reason`` says which.
    """

    bound: float
    gap: float
    complete: bool
    reason: str = ""


@dataclass(frozen=True)
class ThetaInterval:
    """What theta may be with 90 % probability, if times are as uncertain as they say.

    ``low`` and ``high`` in the unit of theta, for the plan as it stands: islands and routes stay.
    ``dominated_by``: the accelerator whose times, if they were known, would raise ``low`` most.
    """

    low: float
    high: float
    dominated_by: str


@dataclass(frozen=True)
class Changes:
    """What a plan asks of the cluster that runs now, by island name (of the running plan).

    ``kept`` stay where they are. ``moved``: islands of an unchanged kind that must go to other
    nodes because the new ones would not fit otherwise. ``moved_gpus``: GPUs of the islands that
    start anew or move [GPUs].
    """

    kept: tuple[str, ...]
    started: tuple[str, ...]
    stopped: tuple[str, ...]
    moved: tuple[str, ...]
    moved_gpus: int


@dataclass(frozen=True)
class Plan:
    """Templates with counts, rates per range, routes, and the certificate.

    ``rented``: GPUs beyond those that exist, by pool. ``changes``: None where no running plan was
    given. ``interval``: None where the performance model says nothing of its uncertainty.
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

    def used(self, pool: str) -> int:
        """GPUs of a pool that islands stand on."""
        return sum(group.gpus_of(pool) * group.islands for group in self.groups)

    def members(self) -> dict[str, list[str]]:
        """Names of the islands of every group."""
        found: dict[str, list[str]] = {group.name: [] for group in self.groups}
        for island in self.islands:
            found[island.group].append(island.name)
        return found


@dataclass(frozen=True)
class Relaxation:
    """The smallest change of one kind that would make the problem feasible."""

    kind: str  # e.g. "ttft", "tpot", "gpus:H20", "budget", "rate"
    value: float
    unit: str
    models: tuple[str, ...]
    text: str


class InfeasibleReason(StrEnum):
    """What stands in the way."""

    NO_TEMPLATE = "NoTemplate"  # a (model, range, phase) has no template
    HEADROOM = "HeadroomTooLow"
    UNSERVABLE = "TooMuchUnservable"
    NO_ROOM = "NoRoom"  # templates exist, but not enough GPUs or budget for one of each phase


@dataclass(frozen=True)
class Infeasible:
    """No plan exists; the answer says what binds and what would help."""

    reason: InfeasibleReason
    message: str
    relaxations: tuple[Relaxation, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A plan, how long it took, and the branch-and-bound nodes of the solve that proved it.

    Neither seconds nor nodes are part of the plan's content.
    """

    plan: Plan
    seconds: float
    nodes: int = 0


PlanningOutcome: TypeAlias = Planned | Infeasible
