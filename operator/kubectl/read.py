"""Read a plan, its table and lists with the user's kubeconfig; never write.

Requests are sent one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from archipelago.planner.documents import Node, read_json
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.table.shards import assemble
from archipelago.planner.table.validate import validate_table

from ..cluster.client import ApiCluster
from ..errors import Forbidden, NotFound
from ..resources import crd
from ..resources.names import TABLE_KEY, Key, table_key
from ..resources.objects import PlanObject, TableObject, read_shard


@dataclass(frozen=True)
class ClusterTarget:
    """The cluster and namespace of a command; None: as in the kubeconfig, else "default"."""

    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False
    operator_namespace: str = "archipelago-system"


@asynccontextmanager
async def connected(target: ClusterTarget) -> AsyncIterator[tuple[ApiCluster, str]]:
    """Yield the cluster and the namespace."""
    logging.getLogger().addHandler(logging.NullHandler())  # errors of the client are printed by us
    api, default = await ApiCluster.connect_as_user(target.context)
    try:
        yield api, target.namespace or default
    finally:
        await api.close()


async def plan_body(api: ApiCluster, namespace: str, name: str) -> Mapping[str, Any]:
    """Return the plan as stored in the API server.

    Raises:
        InputError: there is no plan of that name.
    """
    try:
        return await api.read(plans_path(namespace) + f"/{name}")
    except NotFound:
        raise InputError(
            f"no ServingPlan {name} in namespace {namespace}; `kubectl get splan -A` lists all"
        ) from None


async def table_content(api: ApiCluster, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the content of the plan's table with its shards; None if it cannot be read."""
    pointer = await stored_table(api, body)
    if pointer is None:
        return None
    try:
        table = read_json(Node(pointer).field("data").field(TABLE_KEY).text())
        if validate_table(table.value):
            return None
        whole = assemble(table.value, (await stored_shards(api, pointer)).__getitem__)
        return Node(whole).field("content").mapping()
    except (KeyError, PlanFileError):
        return None


async def items_of(api: ApiCluster, path: str, selector: str = "") -> list[Mapping[str, Any]]:
    """Return all items of a list, or those with these labels, read page by page."""
    query = {"labelSelector": selector} if selector else {}
    return [item async for page in api.pages(path, query) for item in page.get("items", ())]


async def stored_table(api: ApiCluster, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the ConfigMap of a plan's table; None without one, or without permission."""
    key = PlanObject.from_body(body).key
    try:
        return await api.read_table(table_key(key))
    except (NotFound, Forbidden):
        return None


async def stored_shards(api: ApiCluster, pointer: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the texts of a table's shards, without those that cannot be read."""
    texts: dict[str, str] = {}
    if pointer is None:
        return texts
    table = TableObject.from_body(pointer)
    for shard in table.shards:
        with suppress(NotFound, Forbidden, PlanFileError):
            body = await api.read_table(Key(table.key.namespace, shard.name))
            texts[shard.name] = read_shard(body)
    return texts


def plans_path(namespace: str | None) -> str:
    """Return the path of the plans of a namespace, or (None) of all."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{crd.GROUP}/{crd.VERSION}{scope}/{crd.PLURAL}"
