"""Cut the content of a table that is too large for one ConfigMap into shards, and join them.

The canonical JSON of the content, which is ASCII, is cut at fixed distances: equal contents give
equal shards, and an edit changes no shard before its place. A repair keeps the cuts (`excise`), so
that a shard without a lost island stays as it is. The ConfigMap of the table then holds a
*pointer*: the same document with ``shards`` instead of ``content``.
docs/reference/routing-table.md describes this for readers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..documents import read_json
from ..errors import PlanFileError

TABLE_BYTES = 900 * 1024
"""Largest content, and largest shard of a larger one [bytes]: etcd refuses about 1.5 MiB, and a
ConfigMap may hold others' keys."""
MOST_SHARDS = 32
"""Shards of one table: 28 MiB, some 100,000 islands of one GPU each."""
SMALL_SHARD = 256 * 1024
"""Shards are no larger [bytes] unless there would be too many: less is written for a small loss."""
MANY_SHARDS = 24
"""From this number on shards are larger instead of more."""
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
    size = min(limit, max(SMALL_SHARD, -(-len(text) // MANY_SHARDS)))
    return cut(text, [*range(0, len(text), size), len(text)])


def cut(text: str, cuts: Iterable[int]) -> tuple[Piece, ...]:
    """Return the pieces between these places, without empty ones."""
    places = sorted(set(cuts))
    return tuple(Piece(start, stop, digest(text[start:stop])) for start, stop in pairwise(places))


def digest(text: str) -> str:
    """Return the SHA-256 [hex] of a text, which may be no Unicode: nothing of ours has its hash."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def is_pointer(table: Mapping[str, Any]) -> bool:
    """Return whether the content is in shards."""
    return "shards" in table


def assemble(table: Mapping[str, Any], read: Callable[[str], str]) -> dict[str, Any]:
    """Return the whole table of a pointer; a whole table is returned as it is.

    Args:
        table: the stored document; a pointer must be valid (``validate_table``).
        read: returns the text of the shard of that name.

    Raises:
        PlanFileError: a shard is not the one that the pointer names, or together they are no JSON.
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
    return {**whole, "content": read_json(text).value}
