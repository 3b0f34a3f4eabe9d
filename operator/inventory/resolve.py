"""From a spec with pools that are found to one in which every pool is counted; pure.

Two steps, with the nodes in between: ``claimant`` says what a plan looks for, ``stock.resolve``
what there is, and ``resolved_spec`` puts that into the spec, so that everything behind it (the
planner, its checker, the inputs hash) sees counts as if somebody had written them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.claims import Claimant, LivePool
from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.errors import UnknownName
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import DEFAULT_CLASS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from archipelago.operator.manifests import Key
    from archipelago.operator.stock import LiveInventory, Stock

Body: TypeAlias = dict[str, Any]

MAX_DOMAINS: Final = 64
"""Domains of a pool, as in ``planner/spec/pools.py``, which imports numpy with its package."""
_ONLY_FOUND: Final = frozenset({"nodeSelector", "domainLabel"})


class NoPoolError(SpecError):
    """No pool of the plan has a node at the moment; what runs stays as it is."""


def claimant(key: Key, uid: str, created: datetime, spec: Mapping[str, Any]) -> Claimant | None:
    """What a plan looks for in the cluster; None: it counts all its GPUs itself.

    Args:
        key: Namespace and name of the plan.
        uid: Of its object.
        created: creationTimestamp of its object: of two plans that select a node, the older has it.
        spec: As the API server has it.
    """
    pools = tuple(_live_pool(pool) for pool in _found(spec))
    return Claimant(key, uid, created, pools) if pools else None


def resolved_spec(spec: Mapping[str, Any], inventory: LiveInventory) -> Body:
    """The spec with counts for selectors; equal inventories give equal specs.

    A pool that no island fits into leaves the spec, with the pipelines that take a part of it and
    the links to classes that nothing is in any more. Sizes of islands above what was found go too.

    Raises:
        NoPoolError: nothing is left to plan with.
        SpecError: an accelerator is not in the catalogue, or a pool has too many domains.
    """
    stocks = {stock.pool.name: stock for stock in inventory.stocks}
    if problems := list(_problems(spec, stocks)):
        raise SpecError(problems)
    pools = [counted for pool in spec["pools"] if (counted := _counted(pool, stocks)) is not None]
    if not pools:
        raise NoPoolError([("spec.pools", _nothing(spec))])
    return {**spec, "pools": pools, **_still_there(spec, pools)}


def _found(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (pool for pool in spec.get("pools") or () if pool.get("nodeSelector"))


def _live_pool(pool: Mapping[str, Any]) -> LivePool:
    return LivePool(
        name=pool["name"],
        accelerator=_catalogued(pool["accelerator"]) or pool["accelerator"],
        selector=dict(pool["nodeSelector"]),
        gpus_per_node=pool.get("gpusPerNode"),
        domain_label=pool.get("domainLabel"),
    )


def _catalogued(name: str) -> str | None:
    """The catalogue's spelling, which nodes are read with; None: it has no such accelerator."""
    try:
        return accelerator(name).name
    except UnknownName:
        return None


def _problems(spec: Mapping[str, Any], stocks: Mapping[str, Stock]) -> Iterator[tuple[str, str]]:
    """What would otherwise look as if there were no nodes, or speak of a field nobody wrote."""
    for index, pool in enumerate(spec["pools"]):
        if not pool.get("nodeSelector"):
            continue
        try:
            accelerator(pool["accelerator"])
        except UnknownName as error:
            yield f"spec.pools[{index}].accelerator", str(error)
        domains = len(stocks[pool["name"]].nodes) if pool["name"] in stocks else 0
        if domains > MAX_DOMAINS:
            yield f"spec.pools[{index}].domainLabel", _too_many(pool, domains)


def _too_many(pool: Mapping[str, Any], domains: int) -> str:
    return (
        f"{pool.get('domainLabel')} has {domains} values on the nodes of the pool, at most "
        f"{MAX_DOMAINS} domains are planned with: name a label of larger domains, or make several "
        "pools"
    )


def _counted(pool: Mapping[str, Any], stocks: Mapping[str, Stock]) -> Body | None:
    """The pool with its count; None: no island fits into what was found."""
    if not pool.get("nodeSelector"):
        return dict(pool)
    stock = stocks.get(pool["name"])
    if stock is None or not stock.count:
        return None
    rest = {field: value for field, value in pool.items() if field not in _ONLY_FOUND}
    counted = rest | stock.fields()
    if sizes := pool.get("islandSizes"):
        counted["islandSizes"] = [size for size in sizes if size <= stock.count]
        return counted if counted["islandSizes"] else None
    return counted


def _still_there(spec: Mapping[str, Any], pools: list[Body]) -> Body:
    """Pipelines and links whose pools and classes are still there."""
    names = {pool["name"] for pool in pools}
    kept: Body = {}
    if pipelines := spec.get("pipelines"):
        kept["pipelines"] = [one for one in pipelines if names.issuperset(one["pools"])]
    network = spec.get("network") or {}
    if links := network.get("links"):
        classes = set(_classes(pools))
        left = [link for link in links if classes.issuperset(link["classes"])]
        kept["network"] = {**network, "links": left}
    return kept


def _classes(pools: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Classes of all domains; a pool without domains is one of the default class."""
    for pool in pools:
        domains = pool.get("domains")
        if not domains:
            yield DEFAULT_CLASS
            continue
        yield from (domain.get("class", DEFAULT_CLASS) for domain in domains)


def _nothing(spec: Mapping[str, Any]) -> str:
    names = ", ".join(sorted(pool["name"] for pool in _found(spec)))
    return (
        f"no node can be planned with at the moment in pool {names}: the condition "
        "InventoryResolved says why not; correct nodeSelector or accelerator, or bring nodes back"
    )
