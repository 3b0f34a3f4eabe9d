"""Turn a spec whose pools select nodes into one whose pools state counts; pure.

``plan_selector`` reads the selectors, ``resolve_inventory`` of ``pools`` applies them, and
``resolved_spec`` puts the counts into the spec. The planner, its checker and the inputs hash see
counts as if a person had written them.

The planner numbers nodes: ``<pool>-<domain>-0`` and so on. The n-th of a domain stands for the n-th
of its real nodes in alphabetical order (``node_names``). Routing content has the real names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.errors import UnknownName
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import DEFAULT_CLASS, MAX_DOMAINS, RENTED, domain_classes
from archipelago.planner.templates.packing import node_name

from ..resources.names import Key
from .ownership import PlanSelector, PoolSelector

if TYPE_CHECKING:  # pools imports pydantic
    from .pools import PlanInventory, PoolInventory

Body: TypeAlias = dict[str, Any]

_SELECTOR_FIELDS: Final = frozenset({"nodeSelector", "domainLabel"})


class NoPoolError(SpecError):
    """No pool of the plan has a node now; what runs stays as it is."""


def plan_selector(
    key: Key, uid: str, created: datetime, spec: Mapping[str, Any]
) -> PlanSelector | None:
    """Return the selectors of a plan; None if all its pools state counts.

    Args:
        key: Namespace and name of the plan.
        uid: Of its object.
        created: creationTimestamp of its object: of two plans that select a node, the older has it.
        spec: As stored in the API server.
    """
    pools = []
    for pool in _selecting(spec):
        try:
            name = accelerator(pool["accelerator"]).name  # nodes have the catalogue's spelling
        except UnknownName:
            name = pool["accelerator"]
        pools.append(
            PoolSelector(
                name=pool["name"],
                accelerator=name,
                selector=dict(pool["nodeSelector"]),
                gpus_per_node=pool.get("gpusPerNode"),
                domain_label=pool.get("domainLabel"),
            )
        )
    return PlanSelector(key, uid, created, tuple(pools)) if pools else None


def resolved_spec(spec: Mapping[str, Any], inventory: PlanInventory) -> Body:
    """Return the spec with counts instead of selectors; equal inventories give equal specs.

    A pool that no island fits into is removed, with the pipelines that use it and the links to
    classes without a domain. So are island sizes above the pool's count.

    Raises:
        NoPoolError: no pool is left to plan with.
        SpecError: an accelerator is not in the catalogue, or a pool has too many domains.
    """
    inventories = {pool.pool.name: pool for pool in inventory.pools}
    if problems := list(_problems(spec, inventories)):
        raise SpecError(problems)
    pools = [body for pool in spec["pools"] if (body := _counted(pool, inventories)) is not None]
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
        names_left = {pool["name"] for pool in pools}
        resolved["pipelines"] = [p for p in pipelines if names_left.issuperset(p["pools"])]
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


def node_names(spec: Mapping[str, Any], inventory: PlanInventory) -> dict[str, str]:
    """Return the real name of every node by the planner's name, each once.

    Nodes of a pool with a count keep the planner's names. So a node without a name here is a node
    that the plan does not have.

    Args:
        spec: The resolved spec (``resolved_spec``).
        inventory: The inventory that it was resolved with.
    """
    by_pool = {pool.pool.name: pool.nodes for pool in inventory.pools}
    names: dict[str, str] = {}
    for pool in spec["pools"]:
        domains = by_pool.get(pool["name"])
        if domains is None:
            names.update((name, name) for name in _stated_nodes(pool))
            continue
        for domain, nodes in domains.items():
            for index, real in enumerate(sorted(nodes)):
                names[node_name(pool["name"], domain or None, index)] = real
    return names


def _selecting(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (pool for pool in spec.get("pools") or () if pool.get("nodeSelector"))


def _stated_nodes(pool: Mapping[str, Any]) -> Iterator[str]:
    """Yield the nodes that are counted or may be rented, named as by ``packing.nodes_of``."""
    size = pool.get("gpusPerNode")
    if not size:
        return
    stated = [(domain["name"], domain["nodes"]) for domain in pool.get("domains") or ()]
    rented = (pool.get("maxCount", pool["count"]) - pool["count"]) // size
    for domain, nodes in [*(stated or [(None, pool["count"] // size)]), (RENTED, rented)]:
        yield from (node_name(pool["name"], domain, index) for index in range(nodes))


def _problems(
    spec: Mapping[str, Any], inventories: Mapping[str, PoolInventory]
) -> Iterator[tuple[str, str]]:
    """Yield problems that would otherwise look like missing nodes, or name a field not written."""
    for index, pool in enumerate(spec["pools"]):
        if not pool.get("nodeSelector"):
            continue
        try:
            accelerator(pool["accelerator"])
        except UnknownName as error:
            yield f"spec.pools[{index}].accelerator", str(error)
        inventory = inventories.get(pool["name"])
        domains = len(inventory.nodes) if inventory else 0
        if domains > MAX_DOMAINS:
            message = (
                f"{pool.get('domainLabel')} has {domains} values on the nodes of the pool, at most "
                f"{MAX_DOMAINS} domains are planned with: name a label of larger domains, or make "
                "several pools"
            )
            yield f"spec.pools[{index}].domainLabel", message


def _counted(pool: Mapping[str, Any], inventories: Mapping[str, PoolInventory]) -> Body | None:
    """Return the pool with its count; None if no island fits into its nodes."""
    if not pool.get("nodeSelector"):
        return dict(pool)
    inventory = inventories.get(pool["name"])
    if inventory is None or not inventory.count:
        return None
    rest = {field: value for field, value in pool.items() if field not in _SELECTOR_FIELDS}
    counted = rest | inventory.fields()
    if sizes := pool.get("islandSizes"):
        counted["islandSizes"] = [size for size in sizes if size <= inventory.count]
        return counted if counted["islandSizes"] else None
    return counted
