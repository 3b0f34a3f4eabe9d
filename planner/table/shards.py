"""Cut the content of a table that is too large for one ConfigMap into shards, and join them.

The canonical JSON of the content, which is ASCII, is cut at fixed distances: equal contents give
equal shards, and an edit changes no shard before its place. The ConfigMap of the table then holds a
*pointer*: the same document with ``shards`` instead of ``content``.
docs/reference/routing-table.md describes this for readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import PlanFileError

TABLE_BYTES = 900 * 1024
"""Largest content, and largest shard of a larger one [bytes]: etcd refuses about 1.5 MiB, and a
ConfigMap may hold others' keys."""
MOST_SHARDS = 32
"""Shards of one table: 28 MiB, some 100,000 islands of one GPU each."""
POINTER = ("contentBytes", "contentHash", "shards")
"""Fields of the pointer, instead of ``content``."""


@dataclass(frozen=True)
class Piece:
    """Part of a content's text, from ``start`` up to ``stop``. ``digest``: its SHA-256 [hex]."""

    start: int
    stop: int
    digest: str

    def of(self, text: str) -> str:
        """Return the piece of the text."""
        return text[self.start : self.stop]


def split(text: str, limit: int) -> tuple[Piece, ...]:
    """Return pieces of at most ``limit`` bytes; none if the whole text fits."""
    if len(text) <= limit:
        return ()
    cuts = [*range(0, len(text), limit), len(text)]
    return tuple(Piece(start, stop, digest(text[start:stop])) for start, stop in pairwise(cuts))


def digest(text: str) -> str:
    """Return the SHA-256 [hex] of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_pointer(table: Mapping[str, Any]) -> bool:
    """Return whether the content is in shards."""
    return "shards" in table


def assemble(table: Mapping[str, Any], read: Callable[[str], str]) -> dict[str, Any]:
    """Return the whole table of a pointer; a whole table is returned as it is.

    Args:
        table: the stored document; a pointer must be valid (``validate_table``).
        read: returns the text of the shard of that name.

    Raises:
        PlanFileError: a shard is not the one that the pointer names.
    """
    if not is_pointer(table):
        return dict(table)
    texts = []
    for shard in table["shards"]:
        texts.append(read(shard["name"]))
        if digest(texts[-1]) != shard["hash"]:
            raise PlanFileError(f"shard {shard['name']} does not hold what its hash names")
    text = "".join(texts)
    if digest(text) != table["contentHash"]:
        raise PlanFileError("the shards together are not the content that contentHash names")
    whole = {key: value for key, value in table.items() if key not in POINTER}
    return {**whole, "content": json.loads(text)}
