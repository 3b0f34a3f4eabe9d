"""Writes, reads and removes tables and their shards on the API server.

If an object has another version than the observed one, it is read into the cache instead; the next
decision uses it.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import TYPE_CHECKING

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.table.shards import digest

from ..errors import Conflict, NotFound
from ..resources.manifests import shard_manifest, table_manifest
from ..resources.names import TABLE_KEY, Key, Manifest, table_name
from ..resources.objects import (
    Body,
    Observation,
    PlanObject,
    ShardObject,
    TableObject,
    islands_of,
    read_config_map,
)
from ..resources.shards import SHARD_KEY, shards_of

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..decide.actions import RemoveShards, WriteShards, WriteTable
    from ..metrics import Metrics
    from ..resources.cache import Cache


class Tables:
    """Executes actions on tables and shards."""

    def __init__(self, cluster: ApiCluster, cache: Cache, metrics: Metrics) -> None:
        self._cluster = cluster
        self._cache = cache
        self._metrics = metrics

    async def write(
        self, plan: PlanObject, table: TableObject | None, action: WriteTable, time: datetime
    ) -> bool:
        """Store the table, or the pointer to its shards; return False if it has another version.

        Raises:
            Refused: the API server refuses it.
        """
        manifest = table_manifest(
            plan,
            table,
            action.identity,
            action.content,
            time,
            pieces=action.pieces,
            origin=action.origin,
        )
        return await self._apply(manifest, "table")

    async def write_shards(
        self, plan: PlanObject, observation: Observation, action: WriteShards
    ) -> None:
        """Store the shards in order, up to one that has another version.

        Raises:
            Refused: the API server refuses one.
        """
        shards = shards_of(plan.key.name, action.pieces)
        for shard, piece in zip(shards, action.pieces, strict=True):
            stored, text = observation.shards.get(shard.name), piece.of(action.content)
            manifest = shard_manifest(plan, stored, shard, text, action.sequence)
            if not await self._apply(manifest, "shard"):
                return

    async def remove_shards(
        self, plan: PlanObject, observation: Observation, action: RemoveShards
    ) -> None:
        """Delete the shards, if the table that does not name them is still the stored one."""
        await self.read(Key(plan.key.namespace, table_name(plan.key.name)))
        if self._cache.observe(plan.key).table == observation.table:
            for shard in action.shards:
                try:
                    await self._cluster.remove_shard(shard.key, shard.uid, shard.resource_version)
                except Conflict:
                    await self.read(shard.key)
                    continue
                except NotFound:
                    pass
                finally:
                    self._metrics.writes.labels("shard").inc()
                self._cache.delete_table(shard.key, shard.uid)

    async def read(self, key: Key) -> tuple[Body, TableObject | ShardObject] | None:
        """Read the ConfigMap of that name into the cache; return None if there is none."""
        try:
            body = await self._cluster.read_table(key)
        except NotFound:
            self._cache.delete_table(key)
            return None
        stored = await asyncio.to_thread(read_config_map, body)
        self._cache.update_table(stored)
        return body, stored

    async def content(self, plan: PlanObject, table: TableObject) -> str | None:
        """Return the stored content, joined from its shards if there are any.

        None if the table has changed since it was observed; the cache has the new one then.
        """
        reply = await self.read(Key(plan.key.namespace, table_name(plan.key.name)))
        if reply is None:
            return None
        body, stored = reply
        if not isinstance(stored, TableObject) or stored.content_hash != table.content_hash:
            return None
        if not stored.shards:
            return await asyncio.to_thread(_content, body["data"][TABLE_KEY])
        texts = []
        for shard in stored.shards:
            try:
                body = await self._cluster.read_table(Key(plan.key.namespace, shard.name))
            except NotFound:
                return None
            texts.append((body.get("data") or {}).get(SHARD_KEY, ""))
        joined = "".join(texts)
        if digest(joined) != stored.content_hash:
            return None
        if stored.origin is not None:
            content = await asyncio.to_thread(json.loads, joined)
            self._cache.update_islands(stored, islands_of(content))
        return joined

    async def _apply(self, manifest: Manifest, kind: str) -> bool:
        meta = manifest["metadata"]
        try:
            body = await self._cluster.apply_table(manifest)
        except (Conflict, NotFound):
            await self.read(Key(meta["namespace"], meta["name"]))
            return False
        finally:
            self._metrics.writes.labels(kind).inc()
        self._cache.update_table(await asyncio.to_thread(read_config_map, body))
        return True


def _content(text: str) -> str:
    return canonical_bytes(json.loads(text)["content"]).decode("ascii")
