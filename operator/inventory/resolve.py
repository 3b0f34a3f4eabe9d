"""Turn a spec whose pools select nodes into one whose pools state counts; pure.

``plan_selector`` reads the selectors, ``resolve_inventory`` of ``pools`` applies them, and
``resolved_spec`` puts the counts into the spec. The planner, its checker and the inputs hash see
counts as if a person had written them.

The planner numbers nodes: ``<pool>-<domain>-0`` and so on. The n-th of a domain stands for the n-th
of its real nodes: the whole ones in alphabetical order, then those shared with pods of others
(``node_names``). Routing content has the real names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.errors import UnknownName
from archipelago.planner.errors import SpecError
from archipelago.planner.kubernetes.nodes import folded
from archipelago.planner.problem import DEFAULT_CLASS, MAX_DOMAINS, RENTED, domain_classes
from archipelago.planner.templates.packing import node_name

from ..resources.names import Key
from .ownership import PlanSelector, PoolSelector

if TYPE_CHECKING:  # pools imports pydantic
    from .pools import PlanInventory

Body: TypeAlias = dict[str, Any]

_SELECTOR_FIELDS: Final = frozenset({"nodeSelector", "domainLabel"})


class NoPoolError(SpecError):
    """No pool of the plan has a node now; what runs stays as it is."""


def plan_selector(key: Key, uid: str, created: datetime, spec: Mapping[str, Any]) -> PlanSelector:
    """Return what a plan claims.

    Args:
        key: Namespace and name of the plan.
        uid: Of its object.
        created: creationTimestamp of its object.
        spec: As stored in the API server.
    """
    pools, stated, own = list[PoolSelector](), Counter[str](), spec.get("accelerators") or ()
    for pool in spec.get("pools") or ():
        name, products = _named(pool["accelerator"], own)
        if not pool.get("nodeSelector"):
            stated[name] += pool.get("count", 0)
            continue
        pools.append(
            PoolSelector(
                name=pool["name"],
                accelerator=name,
                selector=dict(pool["nodeSelector"]),
                gpus_per_node=pool.get("gpusPerNode"),
                domain_label=pool.get("domainLabel"),
                smallest_island=(
                    min(pool.get("islandSizes") or [1])
                    if pool.get("billing", "PerGPU") == "PerGPU"
                    else None
                ),
                products=products,
            )
        )
    priority, suspended = spec.get("priority", 0), bool(spec.get("suspend", False))
    return PlanSelector(key, uid, created, tuple(pools), priority, suspended, stated)


def _named(name: str, own: Iterable[Mapping[str, Any]]) -> tuple[str, frozenset[str]]:
    """Return the name of an accelerator as nodes have it, and the labels of one of the plan's own.

    The nodes of an accelerator of the catalogue have its spelling, whatever figures a plan gives.
    """
    mine = _entry(name, own)
    labels = frozenset(map(folded, mine.get("productLabels") or ())) if mine else frozenset[str]()
    try:
        return accelerator(name).name, labels
    except UnknownName:
        return name, labels


def _entry(name: str, own: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((each for each in own if each["name"].casefold() == name.casefold()), None)


def resolved_spec(spec: Mapping[str, Any], inventory: PlanInventory) -> Body:
    """Return the spec with counts instead of selectors; equal inventories give equal specs.

    A pool that no island fits into is removed, with the pipelines that use it and the links to
    classes without a domain. So are island sizes above the pool's count.

    Raises:
        NoPoolError: no pool is left to plan with.
        SpecError: an accelerator is not in the catalogue, or a pool has too many domains.
    """
    inventories = {pool.pool.name: pool for pool in inventory.pools}
    pools, problems, own = list[Body](), list[tuple[str, str]](), spec.get("accelerators") or ()
    for index, pool in enumerate(spec["pools"]):
        if not pool.get("nodeSelector"):
            pools.append(dict(pool))
            continue
        # Problems that would otherwise look like missing nodes, or name a field not written.
        problems += _unknown(pool["accelerator"], f"spec.pools[{index}].accelerator", own)
        stock = inventories.get(pool["name"])
        if stock and len(stock.in_order()) > MAX_DOMAINS:
            message = (
                f"{pool.get('domainLabel')} has {len(stock.in_order())} values on the nodes of the "
                f"pool, at most {MAX_DOMAINS} domains are planned with: name a label of larger "
                "domains, or make several pools"
            )
            problems.append((f"spec.pools[{index}].domainLabel", message))
        if stock and stock.count:
            counted = {k: v for k, v in pool.items() if k not in _SELECTOR_FIELDS} | stock.fields()
            if sizes := pool.get("islandSizes"):
                counted["islandSizes"] = [size for size in sizes if size <= stock.count]
            if not sizes or counted["islandSizes"]:
                pools.append(counted)
    if problems:
        raise SpecError(problems)
    if not pools:
        names = ", ".join(sorted(pool["name"] for pool in _selecting(spec)))
        message = (
            f"no node can be planned with at the moment in pool {names}: the condition "
            "InventoryResolved has the reason; correct nodeSelector or accelerator, or bring nodes "
            "back"
        )
        raise NoPoolError([("spec.pools", message)])
    resolved = {**spec, "pools": pools}
    if pipelines := spec.get("pipelines"):
        remaining = {pool["name"] for pool in pools}
        resolved["pipelines"] = [p for p in pipelines if remaining.issuperset(p["pools"])]
    network = spec.get("network") or {}
    if links := network.get("links"):
        classes = {
            name
            for pool in pools
            for name in domain_classes(
                domain.get("class", DEFAULT_CLASS) for domain in pool.get("domains") or ()
            )
        }
        usable = [link for link in links if classes.issuperset(link["classes"])]
        resolved["network"] = {**network, "links": usable}
    return resolved


def _unknown(name: str, place: str, own: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the problem of an accelerator that neither the plan nor the catalogue has."""
    if _entry(name, own):
        return
    try:
        accelerator(name)
    except UnknownName as error:
        yield place, str(error)


def node_names(spec: Mapping[str, Any], inventory: PlanInventory) -> dict[str, str]:
    """Return the real name of every node by the planner's name, each once.

    Nodes of a pool with a count keep the planner's names. So a node without a name here is a node
    that the plan does not have.

    Args:
        spec: The resolved spec (``resolved_spec``).
        inventory: The inventory that it was resolved with.
    """
    by_pool = {pool.pool.name: pool for pool in inventory.pools}
    names: dict[str, str] = {}
    for pool in spec["pools"]:
        stock = by_pool.get(pool["name"])
        if stock is not None:
            for domain, nodes in stock.in_order().items():
                for index, real in enumerate(nodes):
                    names[node_name(pool["name"], domain or None, index)] = real
        elif size := pool.get("gpusPerNode"):  # named as by ``packing.nodes_of``
            stated = [(domain["name"], domain["nodes"]) for domain in pool.get("domains") or ()]
            rented = (pool.get("maxCount", pool["count"]) - pool["count"]) // size
            for name, count in [*(stated or [(None, pool["count"] // size)]), (RENTED, rented)]:
                stated_nodes = [node_name(pool["name"], name, index) for index in range(count)]
                names.update(zip(stated_nodes, stated_nodes, strict=True))
    return names


def _selecting(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (pool for pool in spec.get("pools") or () if pool.get("nodeSelector"))
