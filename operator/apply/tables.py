"""Tables and their shards on the API server: written, read, removed; what is found is seen.

Where another version lies there than was seen, that one is read instead; the next decision looks at
it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from archipelago.operator.errors import Conflict, NotFound
from archipelago.operator.manifests import (
    TABLE_KEY,
    Key,
    Manifest,
    holding,
    marked,
    table_manifest,
    table_name,
)
from archipelago.operator.observe import SeenPlan, SeenShard, SeenTable, islands_of, seen_map
from archipelago.operator.sharding import (
    SHARD_KEY,
    pointer,
    pointer_hash,
    pointer_text,
    shard_manifest,
    shards_of,
)
from archipelago.planner.canonical import canonical_bytes
from archipelago.planner.shards import digest

if TYPE_CHECKING:
    from datetime import datetime

    from archipelago.operator.actions import RemoveShards, WriteShards, WriteTable
    from archipelago.operator.cache import Cache
    from archipelago.operator.cluster import Cluster
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.observe import Observation


class Tables:
    """Carries out what was decided about one plan's table."""

    def __init__(self, cluster: Cluster, cache: Cache, metrics: Metrics) -> None:
        self._cluster = cluster
        self._cache = cache
        self._metrics = metrics

    async def write(
        self, plan: SeenPlan, table: SeenTable | None, action: WriteTable, time: datetime
    ) -> bool:
        """Store the table, or the pointer to its shards; False where another version lies there.

        Raises:
            Refused: the API server does not take it.
        """
        manifest = marked(_manifest(plan, table, action, time), action.mark, plan.spec_hash)
        return await self._apply(manifest, "table")

    async def write_shards(self, plan: SeenPlan, seen: Observation, action: WriteShards) -> None:
        """Store one shard after the other, up to one that lies there in another version.

        Raises:
            Refused: the API server does not take one.
        """
        shards = shards_of(plan.key.name, action.pieces)
        for shard, piece in zip(shards, action.pieces, strict=True):
            known, text = seen.shards.get(shard.name), piece.of(action.content)
            manifest = shard_manifest(plan, known, shard, text, action.sequence)
            if not await self._apply(manifest, "shard"):
                return

    async def remove_shards(self, plan: SeenPlan, seen: Observation, action: RemoveShards) -> None:
        """Delete them, if the table that does not name them is still the stored one."""
        await self.read(Key(plan.key.namespace, table_name(plan.key.name)))
        if self._cache.observe(plan.key).table == seen.table:
            for shard in action.shards:
                await self._remove(shard)

    async def read(self, key: Key) -> None:
        """Look at what lies under that name."""
        try:
            body = await self._cluster.read_table(key)
        except NotFound:
            self._cache.drop_table(key)
        else:
            self._cache.see_table(await asyncio.to_thread(seen_map, body))

    async def content(self, plan: SeenPlan, table: SeenTable) -> str | None:
        """The stored content's text, if it is still the one that was seen; else that is seen now.

        Of a table in shards as well.
        """
        key = Key(plan.key.namespace, table_name(plan.key.name))
        try:
            body = await self._cluster.read_table(key)
        except NotFound:
            self._cache.drop_table(key)
            return None
        now = await asyncio.to_thread(seen_map, body)
        self._cache.see_table(now)
        if not isinstance(now, SeenTable) or now.content_hash != table.content_hash:
            return None
        if not now.shards:
            return await asyncio.to_thread(_content, body["data"][TABLE_KEY])
        return await self._joined(plan, now)

    async def _joined(self, plan: SeenPlan, table: SeenTable) -> str | None:
        """What the shards hold together; None where one is gone or is another one."""
        texts = []
        for shard in table.shards:
            try:
                body = await self._cluster.read_table(Key(plan.key.namespace, shard.name))
            except NotFound:
                return None
            texts.append((body.get("data") or {}).get(SHARD_KEY, ""))
        joined = "".join(texts)
        if digest(joined) != table.content_hash:
            return None
        if table.mark is not None:
            content = await asyncio.to_thread(json.loads, joined)
            self._cache.learn(table, islands_of(content))
        return joined

    async def _apply(self, manifest: Manifest, kind: str) -> bool:
        meta = manifest["metadata"]
        try:
            body = await self._cluster.apply_table(manifest)
        except (Conflict, NotFound):
            await self.read(Key(meta["namespace"], meta["name"]))
            return False
        finally:
            self._metrics.write(kind)
        self._cache.see_table(await asyncio.to_thread(seen_map, body))
        return True

    async def _remove(self, shard: SeenShard) -> None:
        try:
            await self._cluster.remove_shard(shard.key, shard.uid, shard.resource_version)
        except Conflict:
            return await self.read(shard.key)
        except NotFound:
            pass
        finally:
            self._metrics.write("shard")
        self._cache.drop_table(shard.key, shard.uid)
        return None


def _content(text: str) -> str:
    return canonical_bytes(json.loads(text)["content"]).decode("ascii")


def _manifest(
    plan: SeenPlan, table: SeenTable | None, action: WriteTable, time: datetime
) -> Manifest:
    if not action.pieces:
        return table_manifest(plan, table, action.identity, action.content, time)
    named = pointer(shards_of(plan.key.name, action.pieces), digest(action.content))
    text = pointer_text(action.identity, named, time)
    return holding(plan, table, text, pointer_hash(named))
