"""The cluster read with its user's own rights: a plan, its table, lists; nothing is ever written.

Requests go out with the kubeconfig of whoever calls, one after the other.
"""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archipelago.operator import crd
from archipelago.operator.cluster import ApiCluster
from archipelago.operator.errors import Forbidden, NotFound
from archipelago.operator.manifests import TABLE_KEY, Key, table_name
from archipelago.operator.observe import SeenPlan, SeenTable
from archipelago.operator.sharding import SHARD_KEY
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.shards import assemble

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


@dataclass(frozen=True)
class Where:
    """What the user named; None takes what the kubeconfig says, for namespace then "default"."""

    context: str | None = None
    namespace: str | None = None
    everywhere: bool = False
    operator_namespace: str = "archipelago-system"


@asynccontextmanager
async def connected(where: Where) -> AsyncIterator[tuple[ApiCluster, str]]:
    """The cluster and the namespace that is meant."""
    logging.getLogger().addHandler(logging.NullHandler())  # the client's warnings are ours to say
    api, default = await ApiCluster.connect_as_user(where.context)
    try:
        yield api, where.namespace or default
    finally:
        await api.close()


async def plan_body(api: ApiCluster, namespace: str, name: str) -> Mapping[str, Any]:
    """The plan as the API server has it.

    Raises:
        InputError: there is none of that name.
    """
    try:
        return await api.read(plans_path(namespace) + f"/{name}")
    except NotFound:
        raise InputError(
            f"no ServingPlan {name} in namespace {namespace}; `kubectl get splan -A` lists all"
        ) from None


async def table_content(api: ApiCluster, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The content of the plan's stored table, whole; None where it cannot be read as one."""
    pointer = await stored_table(api, body)
    if pointer is None:
        return None
    try:
        table = json.loads((pointer.get("data") or {}).get(TABLE_KEY, ""))
        content = assemble(table, (await stored_shards(api, pointer)).__getitem__)["content"]
    except (ValueError, KeyError, PlanFileError):
        return None
    return content if isinstance(content, dict) else None


async def items_of(api: ApiCluster, path: str) -> list[Mapping[str, Any]]:
    """All items of a list, page by page."""
    plain, _, selector = path.partition("?labelSelector=")
    query = {"labelSelector": selector} if selector else {}
    return [item async for page in api.pages(plain, query) for item in page.get("items", ())]


async def stored_table(api: ApiCluster, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ConfigMap of a plan's table; one that may not be read counts as not there."""
    key = SeenPlan.from_body(body).key
    try:
        return await api.read_table(Key(key.namespace, table_name(key.name)))
    except (NotFound, Forbidden):
        return None


async def stored_shards(api: ApiCluster, pointer: Mapping[str, Any] | None) -> dict[str, str]:
    """Texts of the shards that a table names; one that may not be read counts as not there."""
    found: dict[str, str] = {}
    if pointer is None:
        return found
    table = SeenTable.from_body(pointer)
    for shard in table.shards:
        with suppress(NotFound, Forbidden):
            body = await api.read_table(Key(table.key.namespace, shard.name))
            found[shard.name] = (body.get("data") or {}).get(SHARD_KEY, "")
    return found


def plans_path(namespace: str | None) -> str:
    """Where the plans of that namespace are, or (None) all of them."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{crd.GROUP}/{crd.VERSION}{where}/{crd.PLURAL}"
