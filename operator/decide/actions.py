"""Actions: values that say what to do and why; the log line, the metric and the test read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from archipelago.operator.conditions import Reason
    from archipelago.operator.livefacts import Ask
    from archipelago.operator.manifests import Identity
    from archipelago.operator.observe import SeenShard
    from archipelago.operator.status import Status
    from archipelago.planner.shards import Piece


class EventType(StrEnum):
    """The two that Kubernetes knows."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class StartPlanning:
    """Give the inputs to a planner process."""

    inputs_hash: str
    reason: str


@dataclass(frozen=True)
class CancelPlanning:
    """Nobody wants the answer any more."""

    reason: str


@dataclass(frozen=True)
class WriteStatus:
    """Apply the status. ``reserves``: the table's next sequence that it promises; 0 for none."""

    status: Status
    reason: str
    reserves: int = 0


@dataclass(frozen=True)
class WriteTable:
    """Create the table, or apply it to the version that was seen.

    With ``pieces`` their shards are stored, and what is written is the pointer to them. ``mark``:
    how the table of a live plan came to be.
    """

    identity: Identity
    content: str
    reason: str
    pieces: tuple[Piece, ...] = ()
    mark: str = ""

    @property
    def sequence(self) -> int:
        """What the table will be numbered."""
        return self.identity.sequence


@dataclass(frozen=True)
class WriteShards:
    """Store shards of the content for the pointer of that sequence, which is written after them."""

    content: str
    pieces: tuple[Piece, ...]
    sequence: int
    reason: str


@dataclass(frozen=True)
class RemoveShards:
    """Delete these very versions of our own shards, unless the stored table has changed."""

    shards: tuple[SeenShard, ...]
    reason: str


@dataclass(frozen=True)
class ReadTable:
    """Look at what lies under the table's name; no watch tells us about others' objects.

    ``shard``: under that name instead.
    """

    reason: str
    shard: str | None = None


@dataclass(frozen=True)
class EmitEvent:
    """Tell the people who look at the plan."""

    type: EventType
    reason: Reason
    message: str


@dataclass(frozen=True)
class TakeTable:
    """Take the stored table for the answer: it is what re-planning made of the same inputs."""

    reason: str


@dataclass(frozen=True)
class ReadIslands:
    """Read where the islands of a live plan's table stand: of one in shards no watch tells it."""

    reason: str


@dataclass(frozen=True)
class AskLive:
    """Ask a planner process what to do about a live plan's table."""

    kind: Ask
    reason: str


@dataclass(frozen=True)
class Wait:
    """Look again after that many seconds."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class Forget:
    """The plan is gone; its table is collected through its owner reference."""

    reason: str


Action: TypeAlias = (
    StartPlanning
    | CancelPlanning
    | WriteStatus
    | WriteTable
    | WriteShards
    | RemoveShards
    | ReadTable
    | TakeTable
    | ReadIslands
    | AskLive
    | EmitEvent
    | Wait
    | Forget
)
"""At most one of a decision's actions writes objects; the next decision sees what came of it."""
