"""Requests to a planner process and its replies: one model each, as one line of JSON.

The operator and the planner process both import this module, so it needs neither numpy nor the
solver. ``kind`` names the model. Infinities are strings; unknown fields are ignored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from archipelago.perfmodel.errors import ArchipelagoError

from ..demand.counters import Quantity
from ..demand.window import ObservedWindow
from ..plan import Wait

T = TypeVar("T")

CONFIG: Final = ConfigDict(
    alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="strings"
)


class MessageError(ArchipelagoError):
    """A line on the pipe between operator and planner process is no message."""


NEEDS_DEMAND: Final = frozenset(
    {"throughput", "headroom", "bound", "gap", "ttftMilliseconds", "tpotMilliseconds"}
)
"""Fields of a summary that mean nothing without a demand."""


class Message:
    """Base of all messages: camel case in JSON."""

    __pydantic_config__ = CONFIG


class FailureReason(StrEnum):
    """Why there is no plan. The operator uses the value as the reason of a condition."""

    INFEASIBLE = "Infeasible"
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_ACCELERATOR = "UnknownAccelerator"
    UNKNOWN_MODEL = "UnknownModel"
    PLANNER_OOM = "PlannerOOM"
    PLANNER_CRASHED = "PlannerCrashed"
    SOLVER_FAILED = "SolverFailed"
    CHECK_FAILED = "CheckFailed"


@dataclass(frozen=True, kw_only=True)
class ResourceRequest(Message):
    """What every request says of a ServingPlan and its islands.

    ``nodes``: the cluster's name of a node by the planner's. ``lost``: islands on nodes that are
    gone. ``unready``: islands whose pods are not ready. ``state``: of the last re-planning reply,
    ``age`` seconds old. ``spent``: of the plan's time limit, before the request was sent [s].
    ``calibration``: text of the calibration file that the resource names; empty for none.
    ``expected``: the rates of the resource are to be served from now on, whatever is observed: a
    window of its schedule is open or near.
    """

    resource: dict[str, Any]
    nodes: dict[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    age: Quantity = 0.0
    spent: Quantity = 0.0
    calibration: str = ""
    expected: bool = False


@dataclass(frozen=True, kw_only=True)
class PlanRequest(ResourceRequest):
    """Plan a ServingPlan, beside its published table ``content`` if it has one.

    ``follows``: rates follow a schedule; one that ends is no reason to serve less than is observed.
    """

    kind: Literal["plan"] = "plan"
    content: str | None = None
    follows: bool = False


@dataclass(frozen=True, kw_only=True)
class Allowance(Message):
    """How many islands may change at once for a reason, and the budget that says so."""

    islands: Annotated[int, Field(ge=0)]
    message: str


@dataclass(frozen=True, kw_only=True)
class ReplanRequest(ResourceRequest):
    """Decide about one window, or about lost islands, of one plan.

    ``content``: the published table. ``inputs``: hash of spec and inventory. ``seed``: of the
    demand's draws. ``window`` None: nothing was observed. ``solve``: let the planner solve
    for the level ``RESHAPE``. ``approved``: hash of the proposal that the user approved.
    ``repaired``: how long ago lost islands left the table, if ``state`` does not have it [s].
    ``goal``: content of the table to go back to, as the pods of a change did not become ready.
    ``avoid``: changes of which that is known (`ReplanReply.change`).
    ``pinned``: islands that must not be changed by choice. ``allowed``: by trigger, how many may.
    """

    kind: Literal["replan"] = "replan"
    content: str
    inputs: str
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    window: ObservedWindow | None = None
    solve: bool = False
    approved: str | None = None
    repaired: float | None = None
    goal: str | None = None
    avoid: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    allowed: dict[str, Allowance] = field(default_factory=dict)


Request: TypeAlias = PlanRequest | ReplanRequest


@dataclass(frozen=True, kw_only=True)
class TableStep(Message):
    """One table of a rollout, as canonical JSON, and what it waits for.

    ``islands``: those to wait for. ``nodes``: that its islands stand on.
    """

    content: str
    wait: Wait = Wait.NONE
    islands: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    message: str = ""

    @cached_property
    def content_hash(self) -> str:
        """Return the hash by which the stored table is recognised."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class FailureReply(Message):
    """There is no plan and no decision, and why."""

    kind: Literal["failed"] = "failed"
    reason: FailureReason
    message: str


@dataclass(frozen=True, kw_only=True)
class PlanReply(Message):
    """A checked plan: the tables that lead to it, the last one being the plan's.

    ``summary``: fields of ``status.summary``. ``idle``: islands without requests, as they are not
    ready. ``disrupts``: islands that serve now and change.
    """

    kind: Literal["planned"] = "planned"
    steps: tuple[TableStep, ...]
    summary: dict[str, Any]
    message: str
    idle: tuple[str, ...] = ()
    disrupts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LevelReply(Message):
    """What one level would reach; decimal strings, None if there is no figure."""

    level: str
    theta: str | None = None
    low: str | None = None
    gain: str | None = None
    gain_low: str | None = None
    disruption_gpu_seconds: str | None = None
    changed: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ProposalReply(Message):
    """A change that waits for approval by its hash."""

    hash: str
    level: str
    trigger: str
    gain: str | None
    message: str


@dataclass(frozen=True, kw_only=True)
class DemandReply(Message):
    """The observed demand of one model: requests per second and mean tokens, decimal strings."""

    requests_per_second: str
    mean_input: str
    mean_output: str
    censored: bool


@dataclass(frozen=True, kw_only=True)
class ReplanReply(Message):
    """A decision; no ``steps``: the published table stays.

    ``headroom``, ``headroom_low``: of the table in force. ``regret``: 1 - theta / bound.
    ``degraded``: share of the demand that fits, if not all of it does. ``requested_level``: to
    request next. ``reasons``: names of faults of the window. ``state``: for the next request.
    ``change``: names what ``steps`` change, to avoid it if its pods do not become ready.
    ``held``: change that is worth it and not allowed now, and why.
    """

    kind: Literal["replanned"] = "replanned"
    level: str
    trigger: str
    message: str
    summary: dict[str, Any]
    state: dict[str, Any]
    steps: tuple[TableStep, ...] = ()
    change: str = ""
    headroom: str | None = None
    headroom_low: str | None = None
    regret: str | None = None
    degraded: str | None = None
    levels: tuple[LevelReply, ...] = ()
    proposal: ProposalReply | None = None
    requested_level: str | None = None
    held: str = ""
    reasons: tuple[str, ...] = ()
    demand: dict[str, DemandReply] = field(default_factory=dict)
    calibration: tuple[dict[str, str], ...] = ()


Figure: TypeAlias = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$", max_length=32)]
"""A decimal that the status can hold."""


@dataclass(frozen=True, kw_only=True)
class SearchProgress(Message):
    """What a search has found so far; any number of them comes before its reply.

    ``trials`` of at most ``of`` layouts were tried. ``best``: theta of the best one, None while
    none serves the workload. ``bound``: on theta of any plan.
    """

    kind: Literal["searching"] = "searching"
    trials: Annotated[int, Field(ge=0, lt=2**31)]
    of: Annotated[int, Field(ge=0, lt=2**31)]
    best: Figure | None = None
    bound: Figure


@dataclass(frozen=True, kw_only=True)
class Spent(Message):
    """Processor time that the request took [s]; comes before its reply."""

    kind: Literal["spent"] = "spent"
    processor_seconds: Annotated[float, Field(ge=0, lt=1e9)]


Reply: TypeAlias = PlanReply | ReplanReply | FailureReply
Line: TypeAlias = Reply | SearchProgress | Spent
"""What a planner process writes."""

REQUEST: Final = TypeAdapter[Request](
    Annotated[Request, Field(discriminator="kind")], config=CONFIG
)
REPLY: Final = TypeAdapter[Reply](Annotated[Reply, Field(discriminator="kind")], config=CONFIG)
LINE: Final = TypeAdapter[Line](Annotated[Line, Field(discriminator="kind")], config=CONFIG)


def encode_request(request: Request) -> bytes:
    """Return the request as one line of JSON."""
    return REQUEST.dump_json(request, by_alias=True)


def decode_request(line: bytes | str) -> Request:
    """Read a request.

    Raises:
        MessageError: it is none.
    """
    return _decoded(REQUEST, line)


def encode_line(line: Line) -> bytes:
    """Return a reply, or what comes before it, as one line of JSON."""
    return LINE.dump_json(line, by_alias=True)


def decode_reply(line: bytes | str) -> Reply:
    """Read a reply.

    Raises:
        MessageError: it is none.
    """
    return _decoded(REPLY, line)


def decode_line(line: bytes | str) -> Line:
    """Read a line of a planner process.

    Raises:
        MessageError: it is neither a reply nor what comes before one.
    """
    return _decoded(LINE, line)


def _decoded(adapter: TypeAdapter[T], line: bytes | str) -> T:
    """Return the message; the error names at most three fields that are wrong."""
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        places = [".".join(map(str, e["loc"])) or "message" for e in error.errors()[:3]]
        raise MessageError(f"no message of a planner process: {', '.join(places)}") from None
