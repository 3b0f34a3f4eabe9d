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
"""Exactly what deploy/base/rbac.yaml grants."""
RECHECK: Final = 15.0
"""Seconds after which a missing right is asked for again."""
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
    """What is missing, kept up to date."""

    def __init__(self, cluster: Access, namespaces: tuple[str, ...], metrics: Metrics) -> None:
        self._cluster = cluster
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._metrics = metrics
        self._outages = Outages()
        self._doubted = asyncio.Event()
        self._missing: tuple[Missing, ...] = ()

    def doubt(self) -> None:
        """The API server said no to something: find out what we may do."""
        self._doubted.set()

    def findings(self) -> list[str]:
        """What is missing, in words."""
        named = [f"missing right: {missing}" for missing in self._missing[:MOST_NAMED]]
        more = len(self._missing) - len(named)
        return [*named, *([f"and {more} more"] if more else [])]

    async def run(self) -> None:
        """Ask, until cancelled: now, when in doubt, and again while something is missing."""
        while True:
            self._doubted.clear()
            await self._check()
            await asyncio.sleep(PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK - PAUSE if self._missing else None):
                    await self._doubted.wait()

    async def _check(self) -> None:
        try:
            found = [
                Missing(right, namespace or "")
                for namespace in self._namespaces
                for right in NEEDED
                if not await self._cluster.may(right, namespace)
            ]
        except ClusterError as error:
            self._outages.failed("asking for our rights", str(error))
            return
        self._outages.works("asking for our rights")
        self._take(tuple(found))

    def _take(self, missing: tuple[Missing, ...]) -> None:
        """Show what is missing; log it where that has changed."""
        for right in NEEDED:
            count = sum(item.right == right for item in missing)
            self._metrics.missing_rights.labels(right.verb, right.resource).set(count)
        before, self._missing = self._missing, missing
        if missing and missing != before:
            said = "; ".join(self.findings())
            log.error("%s; grant what deploy/base/rbac.yaml grants", said)
        elif before and not missing:
            log.info("every right is granted now")
