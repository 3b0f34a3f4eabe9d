"""What a re-planning decision is made from, and what it says: frozen facts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem

HOUR = 3600.0
"""What ``Limits.per_hour`` counts over [s]."""
NO_MOVE = "no GPU needs to move for it"
"""Note of a reshape, where the planner's answer was a lower rung."""


class Rung(IntEnum):
    """How much is changed, least first."""

    KEEP = 0
    REROUTE = 1  # other weights, nobody restarts
    FLIP = 2  # islands change phase
    RESHAPE = 3  # GPUs move to new islands


class Trigger(StrEnum):
    """Why something is changed."""

    NONE = "None"
    REPAIR = "Repair"
    SAFETY = "Safety"
    GAIN = "Gain"


class Mode(StrEnum):
    """Who decides. A repair is made in every mode."""

    AUTO = "Auto"
    ADVISE = "Advise"
    OFF = "Off"


class RoleSwitch(StrEnum):
    """What a change of phase asks of a model's engine."""

    ONLINE = "online"
    RESTART = "restart"
    NONE = "none"  # it cannot


@dataclass(frozen=True)
class Limits:
    """What a plan allows. Times in seconds, gains and headrooms dimensionless.

    ``target``: share of the capacity that the demand may take (rho); headroom below 1 / target is
    unsafe. ``ample``: headroom from which on nobody restarts for a gain. ``tolerance``: least gain
    worth acting on. ``windows`` k of the last n must show it. ``confirm``: unsafe windows in a row
    before somebody restarts, unless the mean demand itself does not fit. ``hysteresis``: share by
    which headroom must exceed 1 / target before the table counts as safe again, and least
    improvement that is worth a change where nothing restores safety.
    ``online``, ``restart``: how long an island that changes phase, or starts anew, serves nobody.
    """

    mode: Mode = Mode.AUTO
    target: float = 0.8
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

    @property
    def safe(self) -> float:
        """Headroom from which on a table counts as safe again."""
        return (1 + self.hysteresis) / self.target


@dataclass(frozen=True, eq=False)
class Observation:
    """One window of one plan.

    ``problem``: the plan's problem with the observed lengths and rates, every model with a rate.
    ``plan``: what is published. ``draws``, shape (draws, ranges of all models by name): arrival
    rates [req/s] from the posterior of the demand; none means that the rates are certain.
    ``lost``: islands on nodes that are gone. ``demand_trusted``, ``nodes_trusted``: False where the
    source is not to be believed. ``inputs``: hash of the spec and inventory behind the plan.
    ``approved``: the proposal that somebody approved by its hash. ``rungs``: what ``weigh`` and,
    where it was wanted, the planner found, in order; none where nothing was weighed.
    """

    problem: PlanningProblem
    plan: Plan
    draws: FloatArray | None = None
    lost: frozenset[str] = frozenset()
    demand_trusted: bool = True
    nodes_trusted: bool = True
    inputs: str = ""
    approved: str | None = None
    rungs: tuple[Reached, ...] = ()


@dataclass(frozen=True, eq=False)
class Reached:
    """What a rung would reach on the observed demand.

    ``theta``: headroom on the mean demand, ``low`` at the lower end of its 90 % interval.
    ``gain`` and ``gain_low``: the same for theta over that of ``KEEP``, less 1. ``disruption``: out
    of service meanwhile [GPU-s]. ``changed``: islands that change phase, move, start or stop.
    ``bound_only``: theta is a proven bound of what could be reached; nothing was planned.
    ``unserved``: share of the observed requests without a route. ``plan``: the table; None where
    there is none, and ``note`` says why. That of ``KEEP`` is as it was published, for the demand of
    that time (``restate.restated``).
    """

    rung: Rung
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


@dataclass(frozen=True)
class Act:
    """Something that was changed, at ``at`` [s]."""

    at: float
    rung: Rung
    trigger: Trigger
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Proposal:
    """What is proposed and waits for approval by its hash; it is void once ``base`` changes."""

    hash: str
    base: str
    at: float
    reached: Reached
    trigger: Trigger


@dataclass(frozen=True, eq=False)
class State:
    """What a decision remembers. Lost (a restart), it is rebuilt within n windows.

    ``gainful``: of the last windows, the rungs whose gain was beyond doubt. ``unsafe``: windows in
    a row with too little headroom. ``acts``: of the last hour, or of the dwell time if longer.
    ``asked``: when the planner was last wanted [s].
    """

    gainful: tuple[frozenset[Rung], ...] = ()
    unsafe: int = 0
    acts: tuple[Act, ...] = ()
    proposal: Proposal | None = None
    asked: float = -math.inf


@dataclass(frozen=True, eq=False)
class Decision:
    """What is done now, and what each rung would have reached.

    ``plan``: the table to publish; None keeps the published one. ``state``: for the next window.
    ``degraded``: share of the demand that fits, where no rung restores safety. ``proposal``: what
    waits for approval. ``wanted``: solve this rung and ask again. ``regret``: 1 - theta / bound,
    where a bound is known.
    """

    rung: Rung
    trigger: Trigger
    plan: Plan | None
    state: State
    reached: tuple[Reached, ...] = ()
    message: str = ""
    degraded: float | None = None
    proposal: Proposal | None = None
    wanted: Rung | None = None
    regret: float | None = None
