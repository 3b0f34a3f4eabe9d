"""Shards of a large routing table: names, labels and the pointer to them; pure.

A shard is named after its content and is immutable: equal contents share shards, and nobody can
change one under a reader. It is written before each pointer that names it, with the sequence of
that pointer. So a spare shard gets a new version, and an operator that is about to remove it sees
that it is needed again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from archipelago.planner.documents import Node, canonical_bytes
from archipelago.planner.kubernetes.labels import short_name
from archipelago.planner.table.shards import MOST_SHARDS, POINTER, Piece

from .names import GROUP, NAME_LENGTH, table_labels, table_name

SHARD_KEY: Final = "shard.txt"
SHARD_LABEL: Final = f"{GROUP}/shard-of"
NEEDED_BY: Final = f"{GROUP}/wanted-by-sequence"

_HASH_LENGTH: Final = 16
_NAME: Final = re.compile(rf"(.+)-[0-9a-f]{{{_HASH_LENGTH}}}")


class Shard(NamedTuple):
    """One shard as a pointer names it."""

    name: str
    hash: str
    bytes: int


def shards_of(plan: str, pieces: Iterable[Piece]) -> tuple[Shard, ...]:
    """Return the shards of a plan's table, in order."""
    stem = shard_stem(plan)
    return tuple(
        Shard(f"{stem}-{piece.digest[:_HASH_LENGTH]}", piece.digest, piece.stop - piece.start)
        for piece in pieces
    )


def shard_stem(plan: str) -> str:
    """Return the prefix of all shard names of a plan: no table and no other plan has it."""
    return short_name(table_name(plan), NAME_LENGTH - _HASH_LENGTH - 1)


def stem_of(name: str) -> str | None:
    """Return the stem of a shard's name; None if it is not the name of a shard."""
    match = _NAME.fullmatch(name)
    return match.group(1) if match else None


def shard_labels(plan: str) -> dict[str, str]:
    """Return the labels of the table, which our watch selects, and one that names the table."""
    return table_labels(plan) | {
        "app.kubernetes.io/name": "routing-table-shard",
        SHARD_LABEL: table_name(plan),
    }


def pointer(shards: Iterable[Shard], content_hash: str) -> dict[str, Any]:
    """Return the part of a table that replaces its content."""
    listed = [shard._asdict() for shard in shards]
    total = sum(shard["bytes"] for shard in listed)
    return {"contentBytes": total, "contentHash": content_hash, "shards": listed}


def pointer_hash(table: Mapping[str, Any]) -> str:
    """Return the hash of everything in a pointer that readers use."""
    return hashlib.sha256(canonical_bytes({key: table[key] for key in POINTER})).hexdigest()


def read_shards(table: Node) -> tuple[Shard, ...]:
    """Return the shards that a pointer names.

    Raises:
        PlanFileError: it is not a pointer.
    """
    table.field("contentHash").sha256()
    table.field("contentBytes").integer(1)
    shards = tuple(
        Shard(
            item.field("name").text(), item.field("hash").sha256(), item.field("bytes").integer(1)
        )
        for item in table.field("shards").items()
    )
    if not 0 < len(shards) <= MOST_SHARDS:
        raise table.field("shards").refuse(f"a list of 1 to {MOST_SHARDS} shards")
    return shards
