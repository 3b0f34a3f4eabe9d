"""A table too large for one ConfigMap: its content cut into shards, and put together again.

The content's canonical JSON, which is ASCII, is cut every so many bytes: equal contents give equal
shards, and an edit leaves the shards before its place as they are. What is stored under the
table's own name is then a *pointer*: the same document with ``shards`` in place of ``content``.
docs/routing-table.md has the reader's side.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from archipelago.planner.errors import PlanFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_SHARDS = 32
"""Shards of one table: 28 MiB, some 100,000 islands of one GPU each."""
POINTER = ("contentBytes", "contentHash", "shards")
"""Fields that stand in the pointer where a small table has ``content``."""


@dataclass(frozen=True)
class Piece:
    """Part of a content's text, from ``start`` up to ``stop``. ``digest``: its sha256 [hex]."""

    start: int
    stop: int
    digest: str

    def of(self, text: str) -> str:
        """The piece itself."""
        return text[self.start : self.stop]


def split(text: str, limit: int) -> tuple[Piece, ...]:
    """Pieces of at most ``limit`` bytes; none where the whole text fits."""
    if len(text) <= limit:
        return ()
    cuts = [*range(0, len(text), limit), len(text)]
    return tuple(Piece(start, stop, digest(text[start:stop])) for start, stop in pairwise(cuts))


def digest(text: str) -> str:
    """sha256 [hex] of a text; content is ASCII, and what is not is somebody else's."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_pointer(table: Mapping[str, Any]) -> bool:
    """Whether the content lies in shards."""
    return "shards" in table


def assemble(table: Mapping[str, Any], read: Callable[[str], str]) -> dict[str, Any]:
    """The whole table, of a pointer or of a table that is whole already.

    Args:
        table: what is stored under the table's name; a pointer must be valid (``validate_table``).
        read: gives the text of the shard of that name.

    Raises:
        PlanFileError: a shard is not the one that the pointer names.
    """
    if not is_pointer(table):
        return dict(table)
    text = "".join(_verified(shard, read(shard["name"])) for shard in table["shards"])
    if digest(text) != table["contentHash"]:
        raise PlanFileError("the shards together are not the content that contentHash names")
    whole = {key: value for key, value in table.items() if key not in POINTER}
    return {**whole, "content": json.loads(text)}


def _verified(shard: Mapping[str, Any], text: str) -> str:
    if digest(text) != shard["hash"]:
        raise PlanFileError(f"shard {shard['name']} does not hold what its hash names")
    return text
