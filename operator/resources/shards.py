"""What a shard of a large routing table is: its name, its labels, its ConfigMap, its pointer; pure.

A shard is named after what it holds and is immutable, so equal contents share shards, and nobody
can change one under a reader. It is written before the pointer that names it, each time with the
sequence of that pointer: a shard that lay there unused gets a new version by that, and whoever is
about to remove it as spare sees that it is wanted again.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from archipelago.operator.manifests import (
    API_VERSION,
    GROUP,
    MUST_NOT_EXIST,
    NAME_LENGTH,
    Identity,
    Manifest,
    owner_reference,
    short_name,
    table_labels,
    table_name,
    timestamp,
)
from archipelago.planner.canonical import canonical_bytes
from archipelago.planner.shards import POINTER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from archipelago.operator.observe import SeenPlan, SeenShard
    from archipelago.planner.shards import Piece

SHARD_KEY: Final = "shard.txt"
SHARD_LABEL: Final = f"{GROUP}/shard-of"
WANTED: Final = f"{GROUP}/wanted-by-sequence"

_HASH_LENGTH: Final = 16
_NAME: Final = re.compile(rf"(.+)-[0-9a-f]{{{_HASH_LENGTH}}}")


class Shard(NamedTuple):
    """One shard as a pointer names it."""

    name: str
    hash: str
    bytes: int


def shards_of(plan: str, pieces: Iterable[Piece]) -> tuple[Shard, ...]:
    """The shards of a plan's table, in order."""
    stem = shard_stem(plan)
    return tuple(
        Shard(f"{stem}-{piece.digest[:_HASH_LENGTH]}", piece.digest, piece.stop - piece.start)
        for piece in pieces
    )


def shard_stem(plan: str) -> str:
    """What the names of all shards of a plan begin with: no table and no other plan has it."""
    return short_name(table_name(plan), NAME_LENGTH - _HASH_LENGTH - 1)


def stem_of(name: str) -> str | None:
    """The stem in a shard's name; None where no shard is ever named so. Tables end in words."""
    found = _NAME.fullmatch(name)
    return found.group(1) if found else None


def shard_labels(plan: str) -> dict[str, str]:
    """Those of the table, which our watch goes by, and one that says whose shard it is."""
    return table_labels(plan) | {
        "app.kubernetes.io/name": "routing-table-shard",
        SHARD_LABEL: table_name(plan),
    }


def shard_manifest(
    plan: SeenPlan, seen: SeenShard | None, shard: Shard, text: str, sequence: int
) -> Manifest:
    """The ConfigMap of a shard; with ``seen`` it holds only if that very version is there."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": shard.name,
            "namespace": plan.key.namespace,
            "resourceVersion": seen.resource_version if seen else MUST_NOT_EXIST,
            "labels": shard_labels(plan.key.name),
            "annotations": {WANTED: str(sequence)},
            "ownerReferences": [owner_reference(plan)],
        },
        "data": {SHARD_KEY: text},
        "immutable": True,
    }


def pointer(shards: Iterable[Shard], content_hash: str) -> dict[str, Any]:
    """What stands in the table in place of its content."""
    listed = [shard._asdict() for shard in shards]
    total = sum(shard["bytes"] for shard in listed)
    return {"contentBytes": total, "contentHash": content_hash, "shards": listed}


def pointer_text(identity: Identity, named: Mapping[str, Any], time: datetime) -> str:
    """The pointer as it is stored: canonical JSON."""
    who = identity._asdict() | {"time": timestamp(time)}
    table = {"apiVersion": API_VERSION, "identity": who, "kind": "RoutingTable", **named}
    return canonical_bytes(table).decode()


def pointer_hash(table: Mapping[str, Any]) -> str:
    """Names everything in a pointer that readers go by."""
    return hashlib.sha256(canonical_bytes({key: table[key] for key in POINTER})).hexdigest()


def read_shards(table: Mapping[str, Any]) -> tuple[Shard, ...]:
    """The shards that a pointer names.

    Raises:
        ValueError, TypeError, KeyError: it is none.
    """
    if not table["shards"]:
        raise ValueError(json.dumps(table["shards"]))
    return tuple(
        Shard(str(item["name"]), str(item["hash"]), int(item["bytes"])) for item in table["shards"]
    )
