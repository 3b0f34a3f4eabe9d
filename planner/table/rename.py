"""Rename the nodes of a routing table: from the planner's names to the cluster's, and back.

An island with a node that has no other name (it is lost, or not of the plan) keeps its names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..documents import MISFITS

Content: TypeAlias = Mapping[str, Any]


def to_real(content: Content, names: Mapping[str, str]) -> dict[str, Any]:
    """Return content of the planner with the node names of the cluster; empty ``names``: as is."""
    return _renamed(content, lambda node, _: names.get(node)) if names else dict(content)


def to_generic(content: Content, names: Mapping[str, str]) -> dict[str, Any]:
    """Return published content with the node names of the planner; empty ``names``: as is.

    What is no content of a table stays as it is: ``plan_of`` says what is wrong with it.
    """
    generic_names: dict[str, list[str]] = {}
    for generic, real in names.items():
        generic_names.setdefault(real, []).append(generic)

    def rename(node: str, pool: str) -> str | None:
        """Prefer a name of the pool: a real name may also be the name of a counted pool's node."""
        candidates = generic_names.get(node, [])
        of_pool = (name for name in candidates if name.startswith(f"{pool}-"))
        return next(of_pool, None) or next(iter(candidates), None)

    try:
        return _renamed(content, rename) if names else dict(content)
    except MISFITS:
        return dict(content)


def _renamed(content: Content, rename: Callable[[str, str], str | None]) -> dict[str, Any]:
    def nodes_of(holder: Content) -> list[str | None]:
        return [rename(node, holder["pool"]) for node in holder["nodes"]]

    islands = []
    for island in content["islands"]:
        parts = [{**part, "nodes": nodes_of(part)} for part in island.get("parts") or ()]
        nodes = [node for part in parts for node in part["nodes"]] or nodes_of(island)
        renamed = {**island, "nodes": nodes, **({"parts": parts} if parts else {})}
        islands.append(dict(island) if None in nodes else renamed)
    return {**content, "islands": islands}
