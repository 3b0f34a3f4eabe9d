"""Writes, reads and removes tables and their shards on the API server.

If an object has another version than the observed one, it is read into the cache instead; the next
decision uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from archipelago.planner.errors import PlanFileError
from archipelago.planner.table.shards import digest

from ..errors import ClusterError, Conflict, NotFound, Refused
from ..resources.cache import LargeContent
from ..resources.files import FileSource, FileText
from ..resources.live import TableIslands
from ..resources.manifests import knowledge_manifest, shard_manifest, table_manifest
from ..resources.names import GROUP, TABLE_KEY, Key, Manifest, table_key
from ..resources.objects import (
    KnowledgeObject,
    Observation,
    OurObject,
    PlanObject,
    TableObject,
    read_config_map,
    read_content,
    read_islands,
    read_shard,
)
from ..resources.reading import Body, text_under
from ..resources.released import NOTHING, Released, released, to_text, used
from ..resources.shards import SHARD_KEY, Shard, shards_of

_OUR_KEYS: Final = (TABLE_KEY, SHARD_KEY)
_OUR_NAMES: Final = ("app.kubernetes.io/", f"{GROUP}/")

if TYPE_CHECKING:
    from archipelago.planner.table.shards import Piece

    from ..cluster.client import ApiCluster
    from ..decide.actions import RemoveLocked, RemoveShards, WriteShards, WriteTable
    from ..metrics import Metrics
    from ..resources.cache import Cache


T = TypeVar("T")
AT_ONCE: Final = 4
"""Requests for shards at a time."""


class Tables:
    """Executes actions on tables and shards."""

    def __init__(self, cluster: ApiCluster, cache: Cache, metrics: Metrics) -> None:
        self._cluster = cluster
        self._cache = cache
        self._kept: dict[Key, Manifest] = {}  # what others had in a table that is made anew
        self._metrics = metrics

    async def write(
        self, plan: PlanObject, table: TableObject | None, action: WriteTable, time: datetime
    ) -> bool:
        """Store the table, or the pointer to its shards; return False if it has another version.

        Raises:
            Refused: the API server refuses it.
        """
        freed = await asyncio.to_thread(_released, plan, table, action.content)
        manifest = table_manifest(
            plan,
            table,
            action.identity,
            action.content,
            time,
            pieces=action.pieces,
            origin=action.origin,
            released=to_text(freed),
        )
        return await self._apply(manifest)

    async def write_knowledge(
        self, plan: PlanObject, stored: KnowledgeObject | None, text: str
    ) -> None:
        """Store what a plan has learnt; if there is another version, read it instead."""
        manifest = knowledge_manifest(plan, stored, text)
        key = Key(plan.key.namespace, manifest["metadata"]["name"])
        try:
            self._cache.update_table(read_config_map(await self._cluster.apply_table(manifest)))
        except (Conflict, NotFound):
            await self.read(key)
        finally:
            self._metrics.writes.labels("knowledge").inc()

    async def read_files(self, plan: PlanObject) -> None:
        """Read the files that a plan names into the cache."""
        files = [await self._read_file(plan, source) for source in plan.sources]
        self._cache.update_files(plan.key, files)

    async def _read_file(self, plan: PlanObject, source: FileSource) -> FileText:
        """Return a file that a plan names.

        If it is gone or cannot be used, the last good text stays, with the reason. Without an
        answer it stays as it is.
        """
        before = plan.files.get(source) or FileText(source)
        try:
            body = await self._cluster.read_table(Key(plan.key.namespace, source.config_map))
            text = text_under(body, source.key)
            source.check(text)
        except NotFound:
            remedy = f"`kubectl -n {plan.key.namespace} create configmap {source.config_map} "
            remedy += f"--from-file={source.key}`, or remove spec.{source.field}"
            return replace(before, refusal=f"there is no such ConfigMap: {remedy}")
        except (PlanFileError, Refused) as refusal:
            return replace(before, refusal=str(refusal))
        except ClusterError:
            if source not in plan.files:
                raise
            return before
        return FileText(source, text)

    async def write_shards(
        self, plan: PlanObject, observation: Observation, action: WriteShards
    ) -> None:
        """Store the shards, a few at a time; one that has another version is read instead.

        A live plan's content is kept, so that a loss in the next second finds its islands.

        Raises:
            Refused: the API server refuses one.
        """

        async def write(shard: Shard, piece: Piece) -> None:
            stored, text = observation.shards.get(shard.name), piece.of(action.content)
            manifest = shard_manifest(plan, stored, shard, text, action.sequence)
            store = self._cluster.apply_shard if stored else self._cluster.create_shard
            try:
                body = await store(manifest)
            except (Conflict, NotFound):
                await self.read(Key(plan.key.namespace, shard.name))
            else:
                self._cache.update_table(read_config_map({**body, "data": manifest["data"]}))
            finally:
                self._metrics.writes.labels("shard").inc()

        shards = shards_of(plan.key.name, action.pieces)
        writes = [write(*pair) for pair in zip(shards, action.pieces, strict=True)]
        await _some_at_once([self._expect_content(plan, action.content), *writes])

    async def _expect_content(self, plan: PlanObject, content: str) -> None:
        """Keep a live plan's content that is about to be stored, unless a repair made it here."""
        if not plan.is_live:
            return
        table, written = table_key(plan.key), digest(content)
        if not self._cache.has_content(table, written):
            islands = await asyncio.to_thread(read_islands, content)
            self.expect(table, written, LargeContent(content, islands))

    async def remove_shards(
        self, plan: PlanObject, observation: Observation, action: RemoveShards
    ) -> None:
        """Delete the shards, if the table that does not name them is still the stored one."""
        await self.read(table_key(plan.key))
        if self._cache.observe(plan.key).table == observation.table:
            for shard in action.shards:
                try:
                    await self._cluster.remove_config_map(
                        shard.key, shard.uid, shard.resource_version
                    )
                except Conflict:
                    await self.read(shard.key)
                    continue
                except NotFound:
                    pass
                finally:
                    self._metrics.writes.labels("shard").inc()
                self._cache.delete_table(shard.key, shard.uid)

    async def remove_locked(self, action: RemoveLocked) -> None:
        """Delete our ConfigMaps that cannot be changed; what others had in them is kept for later.

        Only the observed versions: of another one the next decision judges.
        """
        for locked in action.objects:
            reply = await self.read(locked.key)
            if reply is None or reply[1].resource_version != locked.resource_version:
                continue
            if isinstance(reply[1], TableObject):
                self._kept[locked.key] = others_parts(reply[0])
            try:
                await self._cluster.remove_config_map(
                    locked.key, locked.uid, locked.resource_version
                )
            except Conflict:
                await self.read(locked.key)
                continue
            except NotFound:
                pass
            finally:
                self._metrics.writes.labels("table").inc()
            if locked.finalizers:
                await self.read(locked.key)  # it is still there, and the condition will say why
            else:
                self._cache.delete_table(locked.key, locked.uid)

    async def read(self, key: Key) -> tuple[Body, OurObject] | None:
        """Read the ConfigMap of that name into the cache; return None if there is none."""
        try:
            body = await self._cluster.read_table(key)
        except NotFound:
            self._cache.delete_table(key)
            return None
        stored = await asyncio.to_thread(read_config_map, body)
        self._cache.update_table(stored)
        return body, stored

    def forget(self, key: Key) -> None:
        """Drop what others had in the table of a deleted plan."""
        self._kept.pop(table_key(key), None)

    def known(self, table: TableObject) -> LargeContent | None:
        """Return the content of a table in shards, if it has been read."""
        return self._cache.content(table) if table.shards else None

    def expect(self, table: Key, content_hash: str, content: LargeContent) -> None:
        """Keep a content that is about to be stored as this table."""
        self._cache.update_content(table, content_hash, content)

    async def content(self, plan: PlanObject, table: TableObject) -> str | None:
        """Return the stored content, joined from its shards if there are any.

        A content in shards that is known is not read again: the shards are observed.

        None if the table has changed since it was observed; the cache has the new one then. None
        too if it is not the content of a table; one in shards is observed as modified from then on,
        so that the next decision writes it anew.
        """
        large = self.known(table)
        if large is not None:
            return large.text
        reply = await self.read(table_key(plan.key))
        if reply is None:
            return None
        body, stored = reply
        if not isinstance(stored, TableObject) or stored.content_hash != table.content_hash:
            return None
        try:
            if not stored.shards:
                return (await asyncio.to_thread(read_content, body))[0]
            keys = (Key(plan.key.namespace, shard.name) for shard in stored.shards)
            bodies = await _some_at_once(self._cluster.read_table(key) for key in keys)
            texts = [read_shard(body) for body in bodies]
        except (NotFound, PlanFileError):
            return None
        if any(
            digest(text) != shard.hash for text, shard in zip(texts, stored.shards, strict=True)
        ):
            return None  # one has changed since: the watch says so
        joined = "".join(texts)
        islands = await asyncio.to_thread(_islands, joined, stored)
        if not islands or stored.content_hash is None:
            self._cache.refuse_content(stored)
            return None
        if stored.origin is not None:
            self._cache.update_content(
                stored.key, stored.content_hash, LargeContent(joined, islands)
            )
        return joined

    async def _apply(self, manifest: Manifest) -> bool:
        meta = manifest["metadata"]
        try:
            body = await self._cluster.apply_table(manifest)
        except (Conflict, NotFound):
            await self.read(Key(meta["namespace"], meta["name"]))
            return False
        finally:
            self._metrics.writes.labels("table").inc()
        key = Key(meta["namespace"], meta["name"])
        # An apply leaves what somebody else added, also under our names.
        forged = {
            name: None
            for name in body["metadata"].get("annotations") or {}
            if name.startswith(_OUR_NAMES) and name not in meta["annotations"]
        }
        with suppress(ClusterError):  # the table is stored, whatever becomes of the rest
            if kept := self._kept.pop(key, {}):
                body = await self._cluster.merge_config_map(key, kept)
            if forged:  # from this version alone: a later one may be another writer's
                version = body["metadata"]["resourceVersion"]
                parts = {"metadata": {"annotations": forged, "resourceVersion": version}}
                body = await self._cluster.merge_config_map(key, parts)
        self._cache.update_table(await asyncio.to_thread(read_config_map, body))
        return True


def _islands(joined: str, table: TableObject) -> TableIslands:
    """Return the islands of the content that a table names; none if it is another, or no table."""
    try:
        return read_islands(joined) if digest(joined) == table.content_hash else TableIslands()
    except PlanFileError:
        return TableIslands()


def _released(plan: PlanObject, table: TableObject | None, content: str) -> Released:
    """Return the GPUs that no island needs any more once this content replaces a live table.

    What others wrote over a table says nothing of GPUs that were in use.
    """
    if table is None or not plan.is_live or not table.belongs_to(plan):
        return NOTHING
    if not table.is_unmodified():
        return table.released
    new, old = (
        used(islands, plan.spec, plan.resolved)
        for islands in (read_islands(content), table.islands)
    )
    return released(table.released, old, new)


async def _some_at_once(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order, of a few requests at a time.

    Raises:
        ClusterError: one failed; those under way have ended.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(request: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await request

    results = await asyncio.gather(*map(one, requests), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)


def others_parts(body: Body) -> Manifest:
    """Return what of one of our ConfigMaps others have added: keys, labels and annotations."""
    parts: Manifest = {
        part: {k: v for k, v in (body.get(part) or {}).items() if k not in _OUR_KEYS}
        for part in ("data", "binaryData")
    }
    notes = {
        part: {
            name: text
            for name, text in (body["metadata"].get(part) or {}).items()
            if not name.startswith(_OUR_NAMES)
        }
        for part in ("labels", "annotations")
    }
    return {**parts, "metadata": notes} if any((*parts.values(), *notes.values())) else {}
