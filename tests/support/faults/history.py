"""Everything that was ever stored: versions of plans, tables and events in the order of storage.

A version is the user's where its number is among ``users``; every other version of a plan or a
table is the operator's doing, except that deletions follow from owners (garbage collection).
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

T = TypeVar("T")

PLAN: Final = "servingplans"
TABLE: Final = "configmaps"
EVENT: Final = "events"
POD: Final = "pods"
TABLE_KEY: Final = "table.json"
SYSTEM: Final = frozenset({"kube-root-ca.crt"})  # ConfigMaps of Kubernetes itself
DELETED: Final = "DELETED"


@dataclass(frozen=True)
class Version:
    """An object as it was stored at ``number`` (one count for all kinds); ``at`` [monotonic s]."""

    kind: str
    change: str  # ADDED, MODIFIED, DELETED
    number: int
    at: float
    body: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def uid(self) -> str:
        uid: str = self.body["metadata"]["uid"]
        return uid

    @property
    def plan(self) -> str:
        """Name of the plan that it is, or belongs to by its name."""
        if self.kind == EVENT:
            return str(self.body["regarding"]["name"])
        return self.name.removesuffix("-routing") if self.kind == TABLE else self.name

    @property
    def generation(self) -> int:
        return int(self.body["metadata"].get("generation", 0))

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.body.get("status") or {}
        return status

    @property
    def observed(self) -> int:
        return int(self.status.get("observedGeneration", 0))

    @property
    def conditions(self) -> dict[str, dict[str, Any]]:
        return {item["type"]: item for item in self.status.get("conditions", ())}

    @property
    def ready(self) -> tuple[str, str, int]:
        """Status, reason and generation of Ready; nothing where it was not said yet."""
        found = self.conditions.get("Ready", {})
        return (
            found.get("status", ""), found.get("reason", ""), found.get("observedGeneration", 0)
        )  # fmt: skip

    @property
    def is_owned(self) -> bool:
        """Whether a ServingPlan owns it."""
        return any(
            owner["kind"] == "ServingPlan"
            for owner in self.body["metadata"].get("ownerReferences", ())
        )

    @property
    def table(self) -> dict[str, Any] | None:
        """The routing table; None where what is stored is none."""
        try:
            found = json.loads(self.body["data"][TABLE_KEY])
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and "identity" in found else None


@dataclass
class History:
    """What the recorder saw and the user did. ``changed`` guards it, and tells of news.

    ``rest``: periods [monotonic s] in which nothing may be written. ``exits``: ends of the operator
    that nobody asked for. ``processes``: how often an operator was started.
    """

    versions: list[Version] = field(default_factory=list)
    users: set[int] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)  # uids of what the user deleted
    rest: list[tuple[float, float]] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)
    processes: int = 1
    gaps: int = 0  # lists that had to be taken anew: versions in between may be missing
    changed: threading.Condition = field(default_factory=threading.Condition)
    _known: set[tuple[str, str, int]] = field(default_factory=set)

    def add(self, version: Version) -> None:
        """Take in a version, once."""
        with self.changed:
            key = (version.kind, version.uid, version.number)
            if key not in self._known:
                self._known.add(key)
                self.versions.append(version)
                self.changed.notify_all()

    def wait(self, condition: Callable[["History"], T], within: float, what: str = "") -> T:
        """Return what the condition gives once that is true; fail where it never is."""
        deadline = time.monotonic() + within
        with self.changed:
            while not (found := condition(self)):
                left = deadline - time.monotonic()
                assert left > 0, f"not within {within:g} s: {what or condition}"
                self.changed.wait(min(left, 0.5))
            return found

    def of(self, *plans: str) -> "History":
        """The history of these plans alone."""
        with self.changed:
            mine = [version for version in self.versions if version.plan in plans]
            return replace(self, versions=mine, changed=threading.Condition())

    def last(self, kind: str, plan: str) -> Version | None:
        """The newest version of a plan or its table; None where it is gone or never was."""
        with self.changed:
            mine = [v for v in self.versions if v.kind == kind and v.plan == plan]
        newest = max(mine, key=lambda version: version.number, default=None)
        return None if newest is None or newest.change == DELETED else newest

    def ordered(self, kind: str) -> list[Version]:
        """Versions of one kind in the order of storage."""
        with self.changed:
            mine = [version for version in self.versions if version.kind == kind]
        return sorted(mine, key=lambda version: version.number)

    def is_operators(self, version: Version) -> bool:
        """Whether the operator wrote it."""
        return (
            version.number not in self.users
            and version.change != DELETED
            and version.name not in SYSTEM
        )
