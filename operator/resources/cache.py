"""The newest version of every object we look at; filled by watches, lists and our own writes.

Each source may be late, so an older version never replaces a newer one: resource versions of one
resource are numbers that grow with time. A list also tells what is gone, which a watch that was
cut off for a while does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from archipelago.operator.manifests import Key, table_name
from archipelago.operator.observe import Observation, SeenPlan, SeenShard, SeenTable
from archipelago.operator.sharding import shard_stem, stem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from archipelago.operator.livefacts import SeenIsland


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
    """Plans, tables and shards, and whose they are: their names say it, whoever made them."""

    def __init__(self) -> None:
        self.plans: Store[SeenPlan] = Store()
        self.tables: Store[SeenTable | SeenShard] = Store()
        self._plan_of_table: dict[Key, Key] = {}  # by table, and by the stem of its shards
        self._islands: dict[Key, tuple[str | None, Mapping[str, SeenIsland]]] = {}  # by table
        self._shards: dict[Key, set[Key]] = {}  # by stem; some may be gone already

    def see_plan(self, plan: SeenPlan) -> Key | None:
        """Take in a plan; returns the key to look at, None where nothing is new."""
        self._plan_of_table[_table_key(plan.key)] = plan.key
        self._plan_of_table[_stem_key(plan.key)] = plan.key
        return plan.key if self.plans.see(plan) else None

    def drop_plan(self, key: Key, uid: str | None = None) -> Key | None:
        """Forget a plan; returns the key to look at."""
        return key if self.plans.drop(key, uid) else None

    def see_table(self, table: SeenTable | SeenShard) -> Key | None:
        """Take in a table or shard; returns the key of its plan, None where it has no news."""
        if isinstance(table, SeenShard):
            self._shards.setdefault(_home(table.key), set()).add(table.key)
        return self._plan_of_table.get(_home(table.key)) if self.tables.see(table) else None

    def learn(self, table: SeenTable, islands: Mapping[str, SeenIsland]) -> None:
        """Keep where the islands of a table in shards stand, as long as its content is the same."""
        self._islands[table.key] = (table.content_hash, islands)

    def drop_table(self, key: Key, uid: str | None = None) -> Key | None:
        """Forget a table or shard; returns the key of its plan."""
        if not self.tables.drop(key, uid):
            return None
        self._islands.pop(key, None)
        self._unlink(key)
        return self._plan_of_table.get(_home(key))

    def forget(self, key: Key) -> None:
        """Forget what belongs to a plan that is gone, except a table that is still there."""
        self._islands.pop(_table_key(key), None)
        self._plan_of_table.pop(_table_key(key), None)
        self._plan_of_table.pop(_stem_key(key), None)

    def observe(self, key: Key) -> Observation:
        """Everything that a decision about this key can see."""
        table = self.tables.get(_table_key(key))
        return Observation(
            key,
            self.plans.get(key),
            self._with_islands(table) if isinstance(table, SeenTable) else None,
            self._shards_under(_stem_key(key)),
        )

    def _with_islands(self, table: SeenTable) -> SeenTable:
        of, islands = self._islands.get(table.key, (None, {}))
        known = table.shards and of == table.content_hash
        return replace(table, islands=islands) if known else table

    def _shards_under(self, stem: Key) -> dict[str, SeenShard]:
        found = {key.name: self.tables.get(key) for key in sorted(self._shards.get(stem, ()))}
        return {name: seen for name, seen in found.items() if isinstance(seen, SeenShard)}

    def _unlink(self, key: Key) -> None:
        known = self._shards.get(_home(key), set())
        known.discard(key)
        if not known:
            self._shards.pop(_home(key), None)


def _home(key: Key) -> Key:
    """By what a ConfigMap finds its plan: a shard by the stem of its name."""
    return Key(key.namespace, stem_of(key.name) or key.name)


def _stem_key(plan: Key) -> Key:
    return Key(plan.namespace, shard_stem(plan.name))


def _table_key(plan: Key) -> Key:
    return Key(plan.namespace, table_name(plan.name))


def _version(seen: Seen) -> int:
    return int(seen.resource_version)
