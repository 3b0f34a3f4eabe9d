"""Does the API server let us do what we have to? Asked at the start and whenever it says no.

A missing right would otherwise show as retries here and there. It ends nothing: it is named in the
log, by ``/readyz`` and in a metric, and asked for again until it is granted.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from archipelago.operator.errors import ClusterError
from archipelago.operator.manifests import GROUP, PLURAL, Right
from archipelago.operator.outages import Outages

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.operator.cluster import Access
    from archipelago.operator.metrics import Metrics

NEEDED: Final = (
    Right("list", GROUP, PLURAL),
    Right("watch", GROUP, PLURAL),
    Right("patch", GROUP, f"{PLURAL}/status"),
    Right("get", "", "configmaps"),
    Right("list", "", "configmaps"),
    Right("watch", "", "configmaps"),
    Right("create", "", "configmaps"),
    Right("patch", "", "configmaps"),
    Right("delete", "", "configmaps"),
    Right("create", "events.k8s.io", "events"),
)
"""In every namespace that is served; with ``PODS`` and ``NODES`` what deploy/base/rbac.yaml grants.
"""
PODS: Final = (Right("list", "", "pods"), Right("watch", "", "pods"))
"""There, too, unless the operator is told not to look at nodes."""
NODES: Final = (Right("list", "", "nodes"), Right("watch", "", "nodes"))
"""In the cluster. Without them pools with a nodeSelector have no nodes, and all else goes on."""
RECHECK: Final = 15.0
"""Seconds after which a missing right is asked for again."""
RECHECK_NODES: Final = 120.0
"""The same for those of nodes: to do without them may be somebody's intention."""
PAUSE: Final = 5.0
"""Seconds between two rounds of questions at least, however often the API server says no."""
MOST_NAMED: Final = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Missing:
    """A right that is not granted in a namespace; "" where it is needed in all."""

    right: Right
    namespace: str

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.right} {where}"


class Rights:
    """What is missing, kept up to date.

    Args:
        cluster: Whom to ask.
        namespaces: Where; none: everywhere.
        metrics: Where it is shown.
        inventory: Whether nodes and pods are looked at.
    """

    def __init__(
        self,
        cluster: Access,
        namespaces: tuple[str, ...],
        metrics: Metrics,
        *,
        inventory: bool = True,
    ) -> None:
        self._cluster = cluster
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._metrics = metrics
        self._outages = Outages()
        self._doubted = asyncio.Event()
        self._missing: tuple[Missing, ...] = ()
        self._needed = (*NEEDED, *PODS) if inventory else NEEDED
        self._of_nodes = NODES if inventory else ()
        self._without: tuple[Right, ...] = ()
        self._asked = asyncio.Event()
        self.on_nodes: Callable[[tuple[Right, ...]], None] = lambda _missing: None
        """Called with the rights about nodes that are missing, when these are others."""

    def doubt(self) -> None:
        """The API server said no to something: find out what we may do."""
        self._doubted.set()

    def findings(self) -> list[str]:
        """What is missing, in words."""
        named = [f"missing right: {missing}" for missing in self._missing[:MOST_NAMED]]
        more = len(self._missing) - len(named)
        return [*named, *([f"and {more} more"] if more else [])]

    async def asked(self) -> None:
        """Wait until it is known what we may do."""
        await self._asked.wait()

    @property
    def may_see_nodes(self) -> bool:
        """Whether nothing says that we may not; before the answer it is tried."""
        return not self._without

    async def run(self) -> None:
        """Ask, until cancelled: now, when in doubt, and again while something is missing."""
        while True:
            self._doubted.clear()
            await self._check()
            await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_asked_again()):
                    await self._doubted.wait()

    async def _check(self) -> None:
        try:
            found = [
                Missing(right, namespace or "")
                for namespace in self._namespaces
                for right in self._needed
                if not await self._cluster.may(right, namespace)
            ]
            of_nodes = [(right, await self._cluster.may(right, None)) for right in self._of_nodes]
        except ClusterError as error:
            self._outages.failed("asking for our rights", str(error))
            return
        self._outages.works("asking for our rights")
        self._take(tuple(found))
        self._take_nodes(tuple(right for right, granted in of_nodes if not granted))
        self._asked.set()

    def _until_asked_again(self) -> float | None:
        if self._missing:
            return RECHECK - PAUSE
        return RECHECK_NODES - PAUSE if self._without else None

    def _take_nodes(self, without: tuple[Right, ...]) -> None:
        if without == self._without:
            return
        self._without = without
        said = "pools with a nodeSelector have no nodes: not granted in the cluster"
        if without:
            log.warning(said, extra={"rights": ", ".join(map(str, without))})
        else:
            log.info("the nodes of the cluster may be seen now")
        self.on_nodes(without)

    def _take(self, missing: tuple[Missing, ...]) -> None:
        """Show what is missing; log it where that has changed."""
        for right in self._needed:
            count = sum(item.right == right for item in missing)
            self._metrics.missing_rights.labels(right.verb, right.resource).set(count)
        before, self._missing = self._missing, missing
        if missing and missing != before:
            said = "; ".join(self.findings())
            log.error("%s; grant what deploy/base/rbac.yaml grants", said)
        elif before and not missing:
            log.info("every right is granted now")
