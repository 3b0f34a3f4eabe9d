"""The newest version of every object we look at; filled by watches, lists and our own writes.

Each source may be late, so an older version never replaces a newer one: resource versions of one
resource are numbers that grow with time. A list also tells what is gone, which a watch that was
cut off for a while does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from archipelago.operator.manifests import Key, table_name
from archipelago.operator.observe import Observation, SeenPlan, SeenTable

if TYPE_CHECKING:
    from collections.abc import Callable


class Seen(Protocol):
    """What the cache needs to know of an object."""

    @property
    def key(self) -> Key:
        """Namespace and name."""

    @property
    def uid(self) -> str:
        """Of the object: a namesake has another."""

    @property
    def resource_version(self) -> str:
        """A number that grows with every change."""


S = TypeVar("S", bound=Seen)


class Store(Generic[S]):
    """Objects of one kind by key."""

    def __init__(self) -> None:
        self._objects: dict[Key, S] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> S | None:
        """Return the newest version seen, or None."""
        return self._objects.get(key)

    def keys(self) -> tuple[Key, ...]:
        """Return the keys of all objects."""
        return tuple(self._objects)

    def see(self, seen: S) -> bool:
        """Take in a version; False where a newer one is known already."""
        known = self._objects.get(seen.key)
        if known is not None and _version(known) >= _version(seen):
            return False
        self._objects[seen.key] = seen
        return True

    def drop(self, key: Key, uid: str | None = None) -> bool:
        """Forget an object; with a uid, only that one and not a younger namesake."""
        known = self._objects.get(key)
        if known is None or uid not in (None, known.uid):
            return False
        del self._objects[key]
        return True

    def list_ended(
        self,
        listed: set[Key],
        version: str,
        namespace: str | None,
        covers: Callable[[S], bool] = lambda _seen: True,
    ) -> tuple[Key, ...]:
        """Forget what a list of the namespace, taken at ``version``, does not hold.

        Objects that are younger than the list stay, and those that it does not cover: a list by
        label says nothing about objects without it. Returns the keys of what was forgotten.
        """
        gone = [
            key
            for key, seen in self._objects.items()
            if key not in listed
            and namespace in (None, key.namespace)
            and _version(seen) <= int(version)
            and covers(seen)
        ]
        for key in gone:
            del self._objects[key]
        return tuple(gone)


class Cache:
    """Plans and tables, and which table is whose."""

    def __init__(self) -> None:
        self.plans: Store[SeenPlan] = Store()
        self.tables: Store[SeenTable] = Store()
        self._plan_of_table: dict[Key, Key] = {}

    def see_plan(self, plan: SeenPlan) -> Key | None:
        """Take in a plan; returns the key to look at, None where nothing is new."""
        self._plan_of_table[_table_key(plan.key)] = plan.key
        return plan.key if self.plans.see(plan) else None

    def drop_plan(self, key: Key, uid: str | None = None) -> Key | None:
        """Forget a plan; returns the key to look at."""
        return key if self.plans.drop(key, uid) else None

    def see_table(self, table: SeenTable) -> Key | None:
        """Take in a table; returns the key of its plan, None where nothing is new for a plan."""
        return self._plan_of_table.get(table.key) if self.tables.see(table) else None

    def drop_table(self, key: Key, uid: str | None = None) -> Key | None:
        """Forget a table; returns the key of its plan."""
        return self._plan_of_table.get(key) if self.tables.drop(key, uid) else None

    def forget(self, key: Key) -> None:
        """Forget what belongs to a plan that is gone, except a table that is still there."""
        self._plan_of_table.pop(_table_key(key), None)

    def observe(self, key: Key) -> Observation:
        """Everything that a decision about this key can see."""
        return Observation(key, self.plans.get(key), self.tables.get(_table_key(key)))


def _table_key(plan: Key) -> Key:
    return Key(plan.namespace, table_name(plan.name))


def _version(seen: Seen) -> int:
    return int(seen.resource_version)
