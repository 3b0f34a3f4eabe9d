"""Waits until the API server knows ServingPlans: an operator may be started before they are."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from archipelago.operator.errors import ClusterError
from archipelago.operator.manifests import API_VERSION, GROUP, PLURAL
from archipelago.operator.outages import Outages

if TYPE_CHECKING:
    from archipelago.operator.cluster import Access

PERIOD: Final = 2.0
KIND: Final = f"{PLURAL}.{GROUP}"

log = logging.getLogger(__name__)


class Installed:
    """Whether the custom resource is there; several may wait, one asks."""

    def __init__(self, cluster: Access) -> None:
        self._cluster = cluster
        self._outages = Outages()
        self._asking = asyncio.Lock()
        self._absent = False

    def findings(self) -> list[str]:
        """Words for where it is not there."""
        return [f"{KIND} is not installed"] * self._absent

    async def wait(self) -> None:
        """Return when the kind is served."""
        async with self._asking:
            while not await self._is_served():  # noqa: ASYNC110  # only the server can tell
                await asyncio.sleep(PERIOD)

    async def _is_served(self) -> bool:
        try:
            served = await self._cluster.serves_plans()
        except ClusterError as error:
            self._outages.failed("asking for the kinds that are installed", str(error))
            return False
        self._outages.works("asking for the kinds that are installed")
        if not served and not self._absent:
            log.error("%s (%s) is not installed; waiting until crds/ is applied", KIND, API_VERSION)
        elif served and self._absent:
            log.info("%s is installed now", KIND)
        self._absent = not served
        return served
