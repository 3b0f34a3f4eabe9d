"""Full lists of nodes and of pods: at the start, with every resync, after a gap in their watches.

Nodes are listed too for labels that were not kept. Lists go to the fleet and not to the cache. A
right that is missing fails nothing here: the rest of the operator goes on, and ``rights`` says
what is missing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from archipelago.operator.errors import ClusterError, Forbidden
from archipelago.operator.nodefacts import read_versioned
from archipelago.operator.outages import Outages
from archipelago.operator.podfacts import read_pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from archipelago.operator.fleet import Fleet
    from archipelago.operator.podfacts import SeenPod
    from archipelago.planner.nodes import SeenNode

PAUSE: Final = 5.0
"""Seconds after a list that failed before the next."""


class NodeSource(Protocol):
    """What is asked of the API server here."""

    def nodes(self) -> AsyncIterator[Mapping[str, Any]]:
        """List all nodes, page by page."""

    def pods(self, namespace: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """List all pods that are not over, page by page; None: of the whole cluster."""


class NodeLists:
    """Lists into a fleet. ``namespaces``: of the pods; nodes have none, and may be forbidden."""

    def __init__(
        self,
        cluster: NodeSource,
        fleet: Fleet,
        namespaces: tuple[str, ...],
        may_see_nodes: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._may_see_nodes = may_see_nodes
        self._outages = Outages()
        self._one_at_a_time = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._pods_too = False

    def missed(self) -> None:
        """A watch of pods or nodes began anew: nobody told what went meanwhile."""
        self._pods_too = True
        self._wanted.set()

    def soon(self) -> None:
        """List the nodes: labels are asked for that were not kept, or they may be listed now."""
        self._wanted.set()

    async def once(self) -> None:
        """List pods and nodes; where that is not allowed, nothing is known of them.

        Raises:
            ClusterError: a list failed; what was listed before that is taken in.
        """
        for namespace in self._namespaces:
            await self._pods(namespace)
        await self._nodes()

    async def run(self) -> None:
        """List the nodes where that was asked for, and the pods, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            pods_too, self._pods_too = self._pods_too, False
            try:
                await (self.once() if pods_too else self._nodes())
            except ClusterError as error:
                self._outages.failed("the list of nodes", str(error))
                self._pods_too |= pods_too
                self._wanted.set()
                await asyncio.sleep(PAUSE)
            else:
                self._outages.works("the list of nodes")

    async def _nodes(self) -> None:
        if not self._may_see_nodes():
            return
        async with self._one_at_a_time:
            self._fleet.begin_list()
            names: set[str] = set()
            try:
                async for page in self._cluster.nodes():
                    version = int(page["metadata"]["resourceVersion"])
                    for node, at in await asyncio.to_thread(_read_nodes, page):
                        self._fleet.see_node(node, at)
                        names.add(node.name)
            except Forbidden:
                return
            self._fleet.nodes_listed(names, version)

    async def _pods(self, namespace: str | None) -> None:
        uids: set[str] = set()
        try:
            async for page in self._cluster.pods(namespace):
                version = int(page["metadata"]["resourceVersion"])
                for pod in await asyncio.to_thread(_read_pods, page):
                    self._fleet.see_pod(pod)
                    uids.add(pod.uid)
        except Forbidden:
            return
        self._fleet.pods_listed(uids, version, namespace)


def _read_nodes(page: Mapping[str, Any]) -> list[tuple[SeenNode, int]]:
    return [read_versioned(body) for body in page["items"]]


def _read_pods(page: Mapping[str, Any]) -> list[SeenPod]:
    return [pod for pod in map(read_pod, page["items"]) if pod]
