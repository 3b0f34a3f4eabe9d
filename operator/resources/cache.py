"""The newest version of every object, filled by watches, lists and our own writes.

Each source may be late, so an older version never replaces a newer one, nor what was deleted after
it: resource versions are numbers that grow with time. A list also shows what is gone, which an
interrupted watch does not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from archipelago.planner.servingplan.own import OwnCatalogue

from .deletions import Deletions
from .files import FileSource, FileText
from .knowledge import knowledge_key
from .live import TableIslands
from .names import Key, table_key
from .objects import (
    ConfigMapObject,
    KnowledgeObject,
    Observation,
    OurObject,
    PlanObject,
    ShardObject,
    TableObject,
)
from .shards import shard_stem, stem_of
from .status import Status

S = TypeVar("S", bound=PlanObject | ConfigMapObject)


class Store(Generic[S]):
    """Objects of one kind by key."""

    def __init__(self) -> None:
        self._objects: dict[Key, S] = {}
        self._deleted: Deletions[Key] = Deletions()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> S | None:
        """Return the newest version, or None."""
        return self._objects.get(key)

    def versions(self) -> dict[tuple[str, str], int]:
        """Return the version of every object that our lists show, by namespace and name."""
        return {
            (key.namespace, key.name): _version(item)
            for key, item in self._objects.items()
            if not isinstance(item, ConfigMapObject) or item.is_selected()
        }

    def keys(self) -> tuple[Key, ...]:
        """Return the keys of all objects."""
        return tuple(self._objects)

    def update(self, item: S) -> bool:
        """Store a version; return False if there is a newer one, or it was deleted since."""
        stored = self._objects.get(item.key)
        if stored is not None and _version(stored) >= _version(item):
            return False
        if self._deleted.outdate(item.key, _version(item)):
            return False
        self._objects[item.key] = item
        return True

    def delete(self, key: Key, uid: str | None = None, version: str = "0") -> bool:
        """Delete an object; with a uid, not a younger object of the same name.

        ``version``: of the deletion, if known. An object that only left the selection of the watch
        has that version itself, so it may still be read. Without uid and version the known one
        may be read again: an answer that there is none may be older than what the watch has told.
        """
        stored, gone = self._objects.get(key), int(version)
        if stored is not None:
            if uid not in (None, stored.uid) or 0 < gone < _version(stored):
                return False
            del self._objects[key]
            gone = gone or _version(stored) + (uid is not None)
        self._deleted.note(key, gone)
        return stored is not None

    def delete_unlisted(
        self,
        listed: set[Key],
        version: str,
        namespace: str | None,
        covers: Callable[[S], bool] = lambda _item: True,
    ) -> tuple[Key, ...]:
        """Delete what a list of the namespace, taken at ``version``, does not hold.

        Objects that are younger than the list stay, and those that it does not cover: a list by
        label does not show objects without it. Returns the deleted keys.
        """
        deleted = [
            key
            for key, item in self._objects.items()
            if key not in listed
            and namespace in (None, key.namespace)
            and _version(item) <= int(version)
            and covers(item)
        ]
        for key in deleted:  # without its label it may still be read
            self._deleted.note(key, _version(self._objects.pop(key)) + 1)
        return tuple(deleted)


class LargeContent(NamedTuple):
    """The content of a live plan's table in shards: canonical JSON, and its islands."""

    text: str
    islands: TableIslands


class Cache:
    """Plans, tables and shards; the name of a table or shard gives its plan, whoever made it."""

    def __init__(self) -> None:
        self.plans: Store[PlanObject] = Store()
        self.tables: Store[OurObject] = Store()
        self._written: dict[Key, Status] = {}  # by plan whose status is being written
        self._plan_of_table: dict[Key, Key] = {}  # by table, and by the stem of its shards
        self._contents: dict[Key, dict[str, LargeContent]] = {}  # by table and hash
        self._refused: dict[Key, str] = {}  # pointer to what is no table, by table
        self._files: dict[Key, _Files] = {}  # by plan
        self._whole: dict[Key, _Whole] = {}  # by plan
        self.catalogue = OwnCatalogue()
        """The administrator's catalogue."""
        self._shards: dict[Key, set[Key]] = {}  # by stem; some may be gone already

    def update_plan(self, plan: PlanObject) -> Key | None:
        """Store a plan; return the key to reconcile, None if nothing is new.

        The status that is being written is not: its watch event can be here before the answer.
        """
        self._plan_of_table[table_key(plan.key)] = plan.key
        self._plan_of_table[_stem_key(plan.key)] = plan.key
        self._plan_of_table[knowledge_key(plan.key)] = plan.key
        before, written = self.plans.get(plan.key), self._written.get(plan.key)
        if not self.plans.update(plan):
            return None
        if before is None or written is None or not written.says_the_same(plan.status):
            return plan.key
        same = replace(plan, status=before.status, resource_version=before.resource_version)
        return None if same == before else plan.key

    @contextmanager
    def writing(self, key: Key, status: Status) -> Iterator[None]:
        """Take that status of the plan for no news, while it is written."""
        self._written[key] = status
        try:
            yield
        finally:
            del self._written[key]

    def delete_plan(self, key: Key, uid: str | None = None, version: str = "0") -> Key | None:
        """Delete a plan; return the key to reconcile."""
        return key if self.plans.delete(key, uid, version) else None

    def update_table(self, table: OurObject) -> Key | None:
        """Store one; return the key of its plan, None if nothing is new."""
        if isinstance(table, ShardObject):
            self._shards.setdefault(_home(table.key), set()).add(table.key)
        return self._plan_of_table.get(_home(table.key)) if self.tables.update(table) else None

    def update_content(self, key: Key, content_hash: str, content: LargeContent) -> None:
        """Store the content of a table in shards, or of one that is about to be stored there."""
        self._contents.setdefault(key, {})[content_hash] = content

    def has_content(self, key: Key, content_hash: str) -> bool:
        """Return whether a content of that hash is kept for the table."""
        return content_hash in self._contents.get(key, {})

    def refuse_content(self, table: TableObject) -> None:
        """Note that the shards of a table are no table together: it is observed as modified."""
        self._refused[table.key] = table.stored_hash or ""

    def content(self, table: TableObject) -> LargeContent | None:
        """Return the content of a table in shards, if it has been read; drop earlier ones."""
        contents, wanted = self._contents.get(table.key, {}), table.content_hash
        if wanted is None or wanted not in contents:
            return None
        while (first := next(iter(contents))) != wanted:
            del contents[first]
        return contents[wanted]

    def update_files(self, plan: Key, files: Iterable[FileText]) -> None:
        """Store the files that a plan names."""
        read = {file.source: file for file in files}
        if read != self._files.get(plan):
            self._files[plan] = read

    def delete_table(self, key: Key, uid: str | None = None, version: str = "0") -> Key | None:
        """Delete a table or shard; return the key of its plan."""
        if not self.tables.delete(key, uid, version):
            return None
        self._contents.pop(key, None)
        self._refused.pop(key, None)
        home = _home(key)
        shards = self._shards.get(home, set())
        shards.discard(key)
        if not shards:
            self._shards.pop(home, None)
        return self._plan_of_table.get(home)

    def forget(self, key: Key) -> None:
        """Drop a deleted plan, except a table that is still there."""
        self._files.pop(key, None)
        self._whole.pop(key, None)
        self._contents.pop(table_key(key), None)
        self._refused.pop(table_key(key), None)
        self._plan_of_table.pop(table_key(key), None)
        self._plan_of_table.pop(_stem_key(key), None)
        self._plan_of_table.pop(knowledge_key(key), None)

    def observe(self, key: Key) -> Observation:
        """Return all objects that a decision about this key needs."""
        table = self.tables.get(table_key(key))
        if not isinstance(table, TableObject):
            table = None
        elif table.shards and self._refused.get(table.key) == table.stored_hash:
            table = replace(table, stored_hash=None)
        elif table.shards:
            content = self.content(table)
            if content is not None:
                table = replace(table, islands=content.islands)
        shards = map(self.tables.get, sorted(self._shards.get(_stem_key(key), ())))
        by_name = {shard.key.name: shard for shard in shards if isinstance(shard, ShardObject)}
        kept = self.tables.get(knowledge_key(key))
        knowledge = kept if isinstance(kept, KnowledgeObject) else None
        return Observation(key, self.plan(key), table, by_name, knowledge)

    def plan(self, key: Key) -> PlanObject | None:
        """Return a plan with the files that it names, and what it uses of the catalogue.

        It is asked for several times a second, and put together anew if one of the three is new.
        """
        plan = self.plans.get(key)
        if plan is None:
            return None
        parts, before = (plan, self._files.get(key), self.catalogue), self._whole.get(key)
        if before is None or any(map(operator.is_not, parts, before.parts)):
            self._whole[key] = before = _Whole(parts, _whole(*parts))
        return before.plan


_Files: TypeAlias = dict[FileSource, FileText]


class _Whole(NamedTuple):
    """A plan with files and catalogue, and the very objects that it was put together of."""

    parts: tuple[PlanObject, _Files | None, OwnCatalogue]
    plan: PlanObject


def _whole(plan: PlanObject, read: _Files | None, catalogue: OwnCatalogue) -> PlanObject:
    named = {source: read[source] for source in plan.sources if source in read} if read else {}
    return (plan.with_files(named) if named else plan).with_catalogue(catalogue)


def _home(key: Key) -> Key:
    """Return what identifies the plan of a ConfigMap: its name, or the stem of a shard's."""
    return Key(key.namespace, stem_of(key.name) or key.name)


def _stem_key(plan: Key) -> Key:
    return Key(plan.namespace, shard_stem(plan.name))


def _version(item: PlanObject | ConfigMapObject) -> int:
    return int(item.resource_version)
