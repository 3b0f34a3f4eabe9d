"""Rename the nodes of a routing table: from the planner's names to the cluster's, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Content: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Renamed:
    """Routing content with other node names.

    Attributes:
        content: A copy; islands of ``unmapped`` keep their node names.
        unmapped: Names of the islands, in their order, with a node that has no other name: it is
            lost, or not of the plan.
    """

    content: dict[str, Any]
    unmapped: tuple[str, ...]


def to_real(content: Content, names: Mapping[str, str]) -> Renamed:
    """Return content of the planner with the node names of the cluster; empty ``names``: as is."""
    return _renamed(content, lambda node, _: names.get(node), names)


def to_generic(content: Content, names: Mapping[str, str]) -> Renamed:
    """Return published content with the node names of the planner; empty ``names``: as is."""
    generic_names: dict[str, list[str]] = {}
    for generic, real in names.items():
        generic_names.setdefault(real, []).append(generic)

    def rename(node: str, pool: str) -> str | None:
        """Prefer a name of the pool: a real name may also be the name of a counted pool's node."""
        candidates = generic_names.get(node, [])
        of_pool = (name for name in candidates if name.startswith(f"{pool}-"))
        return next(of_pool, None) or next(iter(candidates), None)

    return _renamed(content, rename, names)


def _renamed(
    content: Content, rename: Callable[[str, str], str | None], names: Mapping[str, str]
) -> Renamed:
    if not names:
        return Renamed(dict(content), ())
    islands, unmapped = [], []
    for island in content["islands"]:
        renamed = _island(island, rename)
        islands.append(dict(island) if renamed is None else renamed)
        if renamed is None:
            unmapped.append(island["name"])
    return Renamed({**content, "islands": islands}, tuple(unmapped))


def _island(
    island: Mapping[str, Any], rename: Callable[[str, str], str | None]
) -> dict[str, Any] | None:
    """Return the island with other node names; None if one of its nodes has no other name."""
    parts = [{**part, "nodes": _nodes(part, rename)} for part in island.get("parts") or ()]
    nodes = [node for part in parts for node in part["nodes"]] or _nodes(island, rename)
    if None in nodes:
        return None
    return {**island, "nodes": nodes, **({"parts": parts} if parts else {})}


def _nodes(holder: Mapping[str, Any], rename: Callable[[str, str], str | None]) -> list[str | None]:
    return [rename(node, holder["pool"]) for node in holder["nodes"]]
