"""Between the planner's names of nodes and the cluster's; pure.

The planner counts nodes: ``<pool>-<domain>-0`` and so on. Where a pool's nodes were found, the
n-th of a domain is the n-th of its real nodes in alphabetical order. Routing content holds real
names; it is translated back for a question to the planner, and what runs on a node that the plan
no longer has is reported, not renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from archipelago.planner.packing import node_name
from archipelago.planner.problem import RENTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archipelago.operator.stock import LiveInventory

Content: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Renamed:
    """Routing content under other names of nodes.

    Attributes:
        content: A copy; islands of ``strangers`` keep the names they had.
        strangers: Names of the islands, in their order, with a node that has no other name: it is
            lost, or not of the plan.
    """

    content: dict[str, Any]
    strangers: tuple[str, ...]


def names(spec: Mapping[str, Any], inventory: LiveInventory) -> dict[str, str]:
    """Real name by the planner's name, of every node that the planner may name, each once.

    A counted pool has no other names: its nodes stand under their own, so that a node without a
    name here is one that the plan does not have.

    Args:
        spec: The resolved one (``livepools.resolved_spec``).
        inventory: What it was resolved with.
    """
    stocks = {stock.pool.name: stock.nodes for stock in inventory.stocks}
    found: dict[str, str] = {}
    for pool in spec["pools"]:
        live = stocks.get(pool["name"])
        found.update(_own_names(pool) if live is None else _of_nodes(pool["name"], live))
    return found


def to_real(content: Content, names: Mapping[str, str]) -> Renamed:
    """Content of the planner with the names of the cluster; without names as it is."""
    return _renamed(content, lambda node, _: names.get(node), names)


def to_generic(content: Content, names: Mapping[str, str]) -> Renamed:
    """Published content with the names of the planner; without names as it is."""
    known: dict[str, list[str]] = {}
    for generic, real in names.items():
        known.setdefault(real, []).append(generic)

    def of(node: str, pool: str) -> str | None:
        """A counted pool's name for its node may be the real name of a node of another pool."""
        candidates = known.get(node, [])
        own = (name for name in candidates if name.startswith(f"{pool}-"))
        return next(own, None) or next(iter(candidates), None)

    return _renamed(content, of, names)


def _of_nodes(pool: str, nodes: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for domain, real in nodes.items():
        for index, name in enumerate(sorted(real)):
            yield node_name(pool, domain or None, index), name


def _own_names(pool: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of nodes that are counted or may be rented, as ``packing.nodes_of`` gives them."""
    size = pool.get("gpusPerNode")
    if not size:
        return
    stated = [(domain["name"], domain["nodes"]) for domain in pool.get("domains") or ()]
    rented = (pool.get("maxCount", pool["count"]) - pool["count"]) // size
    for domain, nodes in [*(stated or [(None, pool["count"] // size)]), (RENTED, rented)]:
        for index in range(nodes):
            name = node_name(pool["name"], domain, index)
            yield name, name


def _renamed(
    content: Content, rename: Callable[[str, str], str | None], names: Mapping[str, str]
) -> Renamed:
    if not names:
        return Renamed(dict(content), ())
    islands, strangers = [], []
    for island in content["islands"]:
        renamed = _island(island, rename)
        islands.append(dict(island) if renamed is None else renamed)
        if renamed is None:
            strangers.append(island["name"])
    return Renamed({**content, "islands": islands}, tuple(strangers))


def _island(
    island: Mapping[str, Any], rename: Callable[[str, str], str | None]
) -> dict[str, Any] | None:
    """The island under other names; None where one of its nodes has none."""
    parts = [{**part, "nodes": _nodes(part, rename)} for part in island.get("parts") or ()]
    nodes = [node for part in parts for node in part["nodes"]] or _nodes(island, rename)
    if None in nodes:
        return None
    return {**island, "nodes": nodes, **({"parts": parts} if parts else {})}


def _nodes(holder: Mapping[str, Any], rename: Callable[[str, str], str | None]) -> list[str | None]:
    return [rename(node, holder["pool"]) for node in holder["nodes"]]
