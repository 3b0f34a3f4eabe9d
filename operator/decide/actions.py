"""Actions as values with reasons; the log, the metrics and the tests read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from archipelago.planner.table.shards import Piece

    from ..resources.live import ReplanKind
    from ..resources.names import Identity
    from ..resources.objects import ConfigMapObject, ShardObject
    from ..resources.status import Reason, Status


class EventType(StrEnum):
    """The types of Kubernetes events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class _Bare:
    """An action with nothing but its reason."""

    reason: str


@dataclass(frozen=True)
class StartPlanning:
    """Start a planner process on the inputs."""

    inputs_hash: str
    reason: str


class CancelPlanning(_Bare):
    """Cancel planning: its result is not needed any more."""


@dataclass(frozen=True)
class WriteStatus:
    """Apply the status. ``reserves``: the sequence it reserves for the next table; 0 for none.

    ``faults``: fields that were changed because the schema does not take them.
    """

    status: Status
    reason: str
    reserves: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class WriteTable:
    """Create the table, or apply it to the observed version.

    With ``pieces`` the shards are stored already, and this is the pointer to them. ``origin``: how
    the table of a live plan came to be; empty for a static plan.
    """

    identity: Identity
    content: str
    reason: str
    pieces: tuple[Piece, ...] = ()
    origin: str = ""

    @property
    def sequence(self) -> int:
        """Return the sequence of the table."""
        return self.identity.sequence


@dataclass(frozen=True)
class WriteShards:
    """Store shards of the content for the pointer of that sequence, which follows."""

    content: str
    pieces: tuple[Piece, ...]
    sequence: int
    reason: str


@dataclass(frozen=True)
class RemoveShards:
    """Delete these versions of our shards, unless the stored table has changed."""

    shards: tuple[ShardObject, ...]
    reason: str


@dataclass(frozen=True)
class RemoveLocked:
    """Delete these versions of our ConfigMaps, which nobody can change, to make them anew."""

    objects: tuple[ConfigMapObject, ...]
    reason: str


@dataclass(frozen=True)
class WriteKnowledge:
    """Create or apply the ConfigMap of what the plan has learnt, with this text."""

    text: str
    reason: str


class ReadFiles(_Bare):
    """Read the files that the plan names in ConfigMaps: no watch reports them."""


@dataclass(frozen=True)
class ReadTable:
    """Read the object with the table's name: no watch reports objects of others.

    ``shard``: read the object of this name instead.
    """

    reason: str
    shard: str | None = None


@dataclass(frozen=True)
class EmitEvent:
    """Emit a Kubernetes event about the plan."""

    type: EventType
    reason: Reason
    message: str


class AdoptTable(_Bare):
    """Adopt the stored table: re-planning made it of the same inputs."""


class ReadIslands(_Bare):
    """Read the islands of a live plan's table in shards: no watch reports them."""


@dataclass(frozen=True)
class StartIslands:
    """Bring the workloads of a plan that owns them to its table.

    ``stored``: to the stored one; else to the one that is to be stored first.
    """

    reason: str
    stored: bool = True


@dataclass(frozen=True)
class StartReplan:
    """Start a request about a live plan's table."""

    kind: ReplanKind
    reason: str


@dataclass(frozen=True)
class Requeue:
    """Reconcile again after that many seconds."""

    seconds: float
    reason: str


class RefreshInventory(_Bare):
    """Take the plan's current nodes at once instead of at its turn."""


class Forget(_Bare):
    """Drop a deleted plan; Kubernetes collects its table by the owner reference."""


Action: TypeAlias = (
    StartPlanning
    | CancelPlanning
    | WriteStatus
    | WriteTable
    | WriteShards
    | RemoveShards
    | RemoveLocked
    | WriteKnowledge
    | ReadFiles
    | ReadTable
    | AdoptTable
    | ReadIslands
    | StartIslands
    | StartReplan
    | EmitEvent
    | RefreshInventory
    | Requeue
    | Forget
)
"""At most one action of a decision writes objects; the next decision sees the result."""
