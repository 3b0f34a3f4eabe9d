"""Types of a replanning decision: its input, its result, and the state between windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..plan import Plan
    from ..problem import PlanningProblem


HOUR = 3600.0
"""Interval of ``Limits.per_hour`` [s]."""
NO_MOVE = "no GPU needs to move for it"
"""Note of a reshape for which the planner found a plan of a lower level."""


class Level(IntEnum):
    """How much a change disrupts, least first."""

    KEEP = 0
    REROUTE = 1  # other weights, no restart
    FLIP = 2  # islands change phase
    RESHAPE = 3  # GPUs move to new islands


class Trigger(StrEnum):
    """Reason of a change."""

    NONE = "None"
    REPAIR = "Repair"
    SAFETY = "Safety"
    GAIN = "Gain"
    ROLLBACK = "Rollback"


COST: Final = "Cost"
"""Reason of a change, in budgets: a cheaper plan."""


class Mode(StrEnum):
    """Who approves changes. A repair is made in every mode."""

    AUTO = "Auto"
    ADVISE = "Advise"
    OFF = "Off"


class RoleSwitch(StrEnum):
    """How a model's engine changes phase."""

    ONLINE = "online"
    RESTART = "restart"
    NONE = "none"  # not at all


@dataclass(frozen=True)
class ChangeCost:
    """Costs of two plans [$/h], and the value of GPUs out of service during the change [$]."""

    now: float
    then: float
    lost: float

    @property
    def saves(self) -> float:
        """What the change saves [$/h]."""
        return self.now - self.then

    def pays(self, horizon: float) -> bool:
        """Return whether the change pays within so many seconds."""
        return self.saves * horizon / HOUR > self.lost

    def text(self, horizon: float) -> str:
        """Return the comparison in words."""
        within = self.saves * horizon / HOUR
        verb = "pays" if self.pays(horizon) else "does not pay"
        return (
            f"the change saves ${self.saves:.2f}/h, ${within:.2f} within {horizon:.0f} s, and "
            f"{verb} for ${self.lost:.2f} of GPUs out of service"
        )


@dataclass(frozen=True)
class Limits:
    """Limits of a plan. Times in seconds, gains and headrooms dimensionless.

    ``carried``: somebody changes the pods; else changes of phases and islands are proposals.
    ``target``: utilisation that the demand may reach (rho); headroom below 1 / target is unsafe.
    ``required``: headroom of a plan of least cost (minHeadroom), its target in place of 1 / target;
    None: headroom is maximised. ``ample``: headroom from which on no island restarts for a gain.
    ``tolerance``: least gain that is worth a change; ``windows`` k of the last n must show it.
    ``confirm``: consecutive unsafe windows before an island restarts. ``hysteresis``: share by
    which headroom must exceed 1 / target before the table is safe again, and least improvement that
    is worth a change if nothing restores safety. ``online``, ``restart``: how long an island is out
    of service when it changes phase online, or starts.
    ``pinned``: islands that must not be changed by choice. ``allowed``: how many islands may change
    now by trigger (``COST``: a gain of a plan of least cost), and the budget that says so.
    """

    mode: Mode = Mode.AUTO
    carried: bool = True
    target: float = 0.8
    required: float | None = None
    ample: float = 2.0
    tolerance: float = 0.05
    hysteresis: float = 0.02
    windows: tuple[int, int] = (3, 5)
    confirm: int = 2
    horizon: float = 1800.0
    cool_down: float = 300.0
    dwell: float = 900.0
    per_hour: int = 6
    flips: int = 4
    moved_gpus: int = 16
    online: float = 13.0
    restart: float = 157.0
    expires: float = HOUR
    pinned: frozenset[str] = frozenset()
    allowed: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def reason_to_hold(self, candidate: Candidate, trigger: Trigger) -> str | None:
        """Return why an administrator does not want a candidate now; None if none says so."""
        if candidate.level <= Level.REROUTE:
            return None
        if pinned := self.pinned & candidate.changed:
            return f"island {min(pinned)} has the annotation do-not-disrupt"
        cheaper = trigger is Trigger.GAIN and self.required is not None
        budget = self.allowed.get(COST if cheaper else trigger)
        islands, message = budget or (len(candidate.changed), "")
        return message if len(candidate.changed) > islands else None

    @property
    def safe(self) -> float:
        """Headroom from which on a table is safe again."""
        return (1 + self.hysteresis) / self.target if self.required is None else self.required

    def is_unsafe(self, keep: Candidate, before: int) -> bool:
        """Return whether a table has too little headroom; ``before``: windows in which it had.

        Hysteresis ends a row of unsafe windows. A plan of least cost has no headroom to spare, so
        it is unsafe only if it misses what is required by more than the tolerance.
        """
        if self.required is not None:
            return keep.theta * (1 + self.tolerance) < self.required
        return keep.low < (1 + self.hysteresis if before else 1.0) / self.target


@dataclass(frozen=True, eq=False)
class Observation:
    """One window of one plan.

    ``problem``: the plan's problem with the observed lengths and rates, every model with a rate.
    ``plan``: the published one. ``draws``, shape (draws, ranges of all models by name): arrival
    rates [req/s] from the posterior of the demand; None: the rates are certain. ``lost``: islands
    on lost nodes. ``demand_trusted``, ``nodes_trusted``: whether the source can be trusted.
    ``inputs``: hash of the spec and inventory behind the plan. ``approved``: hash of the approved
    proposal. ``levels``: candidates in order of their levels; empty if none were evaluated.
    """

    problem: PlanningProblem
    plan: Plan
    draws: FloatArray | None = None
    lost: frozenset[str] = frozenset()
    demand_trusted: bool = True
    nodes_trusted: bool = True
    inputs: str = ""
    approved: str | None = None
    levels: tuple[Candidate, ...] = ()


@dataclass(frozen=True, eq=False)
class Candidate:
    """A table for one level, evaluated on the observed demand.

    ``theta``: headroom on the mean demand, ``low`` and ``high`` the ends of its 90 % interval.
    ``gain`` and ``gain_low``: the same for theta over that of ``KEEP``, less 1. ``disruption``: out
    of service meanwhile [GPU-s]. ``changed``: islands that change phase, move, start or stop.
    ``bound_only``: theta is a proven upper bound; nothing was planned. ``unserved``: share of the
    observed requests without a route. ``plan``: the table; None if there is none, for the reason in
    ``note``. That of ``KEEP`` is as published, for the demand of that time (see ``restate``).
    ``dollars``: of a plan of least cost, what it costs and saves.
    """

    level: Level
    theta: float
    low: float
    gain: float = 0.0
    gain_low: float = 0.0
    disruption: float = 0.0
    changed: frozenset[str] = frozenset()
    unserved: float = 0.0
    bound_only: bool = False
    plan: Plan | None = None
    note: str = ""
    high: float = math.inf
    dollars: ChangeCost | None = None


@dataclass(frozen=True)
class Change:
    """A change that was made at ``at`` [s]."""

    at: float
    level: Level
    trigger: Trigger
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Proposal:
    """A change that waits for approval by its hash; it is void once ``base`` changes."""

    hash: str
    base: str
    at: float
    candidate: Candidate
    trigger: Trigger


@dataclass(frozen=True, eq=False)
class PolicyState:
    """State between decisions. If it is lost, n windows rebuild it.

    ``gainful``: levels whose gain was beyond doubt, for each of the last windows. ``unsafe``:
    consecutive windows with too little headroom. ``changes``: of the last hour, or of the dwell
    time if longer. ``last_solve``: when the planner was last requested [s]. ``headrooms``: theta
    and low of the published table in each of the last windows.
    """

    gainful: tuple[frozenset[Level], ...] = ()
    unsafe: int = 0
    changes: tuple[Change, ...] = ()
    proposal: Proposal | None = None
    last_solve: float = -math.inf
    headrooms: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, eq=False)
class Decision:
    """What to do now, and what the candidate of each level.

    ``plan``: the table to publish; None keeps the published one. ``state``: for the next window.
    ``degraded``: share of the demand that fits, if no level restores safety. ``proposal``: waits
    for approval. ``requested_level``: to evaluate before the next decision. ``regret``:
    1 - theta / bound, if a bound is known. ``held``: change that is worth it and not allowed now.
    """

    level: Level
    trigger: Trigger
    plan: Plan | None
    state: PolicyState
    candidates: tuple[Candidate, ...] = ()
    message: str = ""
    degraded: float | None = None
    proposal: Proposal | None = None
    requested_level: Level | None = None
    regret: float | None = None
    held: str = ""
