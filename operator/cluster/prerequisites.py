"""Prerequisites in the API server: the custom resource, and the operator's permissions.

The operator may start before its custom resource is installed, and waits for it. Permissions are
reviewed at the start and after every refusal. A missing one stops nothing: it is shown in the log,
by ``/readyz`` and in a metric, and reviewed again until it is granted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import ClusterError
from ..logs import Outages
from ..resources.names import API_VERSION, GROUP, PLURAL, Permission
from ..resources.workloads import rights
from ..settings import OFF
from .lease import LEASE_GROUP, LEASES

if TYPE_CHECKING:
    from ..metrics import Metrics
    from .client import ApiCluster


PERIOD: Final = 2.0
KIND: Final = f"{PLURAL}.{GROUP}"

log = logging.getLogger(__name__)


class CrdReady:
    """Whether the custom resource is installed; several tasks may wait, one requests."""

    def __init__(self, cluster: ApiCluster) -> None:
        self._cluster = cluster
        self._outages = Outages()
        self._lock = asyncio.Lock()
        self._absent = False

    def findings(self) -> list[str]:
        """Return a message while it is not installed."""
        return [f"{KIND} is not installed"] * self._absent

    async def wait(self) -> None:
        """Wait until the API server serves the kind."""
        async with self._lock:
            while True:
                try:
                    served = await self._cluster.serves_plans()
                except ClusterError as error:
                    self._outages.failed("reading the installed kinds", str(error))
                else:
                    self._outages.works("reading the installed kinds")
                    if served and self._absent:
                        log.info("%s is installed now", KIND)
                    elif not served and not self._absent:
                        message = "%s (%s) is not installed; waiting until crds/ is applied"
                        log.error(message, KIND, API_VERSION)
                    self._absent = not served
                    if served:
                        return
                await asyncio.sleep(PERIOD)


NEEDED: Final = (
    Permission("list", GROUP, PLURAL),
    Permission("watch", GROUP, PLURAL),
    Permission("patch", GROUP, f"{PLURAL}/status"),
    Permission("get", "", "configmaps"),
    Permission("list", "", "configmaps"),
    Permission("watch", "", "configmaps"),
    Permission("create", "", "configmaps"),
    Permission("patch", "", "configmaps"),
    Permission("delete", "", "configmaps"),
    Permission("create", "events.k8s.io", "events"),
)
"""In every served namespace. Together with ``PODS`` and ``NODES``: deploy/base/rbac.yaml."""
LEASE: Final = tuple(Permission(verb, LEASE_GROUP, LEASES) for verb in ("get", "create", "update"))
"""In the operator's own namespace, unless ``ARCHIPELAGO_LEADER_ELECTION=Off``."""
PODS: Final = (Permission("list", "", "pods"), Permission("watch", "", "pods"))
"""In every served namespace, unless ``ARCHIPELAGO_INVENTORY=Off``."""
NODES: Final = (Permission("list", "", "nodes"), Permission("watch", "", "nodes"))
"""In the cluster. Without them pools with a nodeSelector have no nodes; all else works."""
REVIEWS: Final = (
    Permission("create", "authentication.k8s.io", "tokenreviews"),
    Permission("create", "authorization.k8s.io", "subjectaccessreviews"),
)
"""In the cluster, if metrics are for those alone whom the API server lets read them."""
RECHECK: Final = 15.0
"""Time until a missing permission is reviewed again [s]."""
RECHECK_NODES: Final = 120.0
"""The same for those of nodes, which may be missing on purpose [s]."""
PAUSE: Final = 5.0
"""Shortest time between two reviews [s], however often the API server refuses."""
AT_ONCE: Final = 8
"""Reviews at the same time: the watches wait for the first answers."""
MOST_NAMED: Final = 10


@dataclass(frozen=True, order=True)
class MissingPermission:
    """A permission that is not granted in a namespace; "" if it is needed in all."""

    permission: Permission
    namespace: str

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.permission} {where}"


class PermissionCheck:
    """The missing permissions, kept up to date.

    Args:
        cluster: Reviews permissions.
        namespaces: To review; none: all.
        metrics: Where missing permissions are shown.
        inventory: Whether nodes and pods are watched.
        reviews: Whether tokens and users are reviewed.
        home: Namespace of the Lease; None: there is none.
        islands: Workloads that the operator may own (``ARCHIPELAGO_ISLANDS``).
    """

    def __init__(
        self,
        cluster: ApiCluster,
        namespaces: tuple[str, ...],
        metrics: Metrics,
        *,
        inventory: bool = True,
        reviews: bool = False,
        home: str | None = None,
        islands: str = OFF,
    ) -> None:
        self._cluster = cluster
        needed = ((*NEEDED, *PODS) if inventory else NEEDED) + rights(islands)
        self._needed = [(right, where) for where in namespaces or (None,) for right in needed]
        self._needed += [(right, home) for right in LEASE if home]
        self._needed += [(right, None) for right in REVIEWS if reviews]
        self._metrics = metrics
        self._outages = Outages()
        self._due = asyncio.Event()
        self._missing: tuple[MissingPermission, ...] = ()
        self._node_permissions = NODES if inventory else ()
        self._missing_node_permissions: tuple[Permission, ...] = ()
        self.reviewed = asyncio.Event()
        """Set after the first review."""
        self.on_nodes: Callable[[tuple[Permission, ...]], None] = lambda _missing: None
        """Called with the missing permissions about nodes when they change."""

    def recheck(self) -> None:
        """Review the permissions: the API server has refused a request."""
        self._due.set()

    def findings(self) -> list[str]:
        """Return a message for each missing permission, and one for the rest."""
        findings = [f"missing right: {missing}" for missing in self._missing[:MOST_NAMED]]
        more = len(self._missing) - len(findings)
        return [*findings, f"and {more} more"] if more else findings

    @property
    def may_see_nodes(self) -> bool:
        """Whether no permission about nodes is known to be missing."""
        return not self._missing_node_permissions

    async def run(self) -> None:
        """Review until cancelled: now, after refusals, and repeatedly while one is missing."""
        while True:
            self._due.clear()
            await self._review()
            await asyncio.sleep(PAUSE)
            recheck = (
                RECHECK
                if self._missing
                else RECHECK_NODES
                if self._missing_node_permissions
                else None
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(None if recheck is None else recheck - PAUSE):
                    await self._due.wait()

    async def _review(self) -> None:
        """Show what is missing; log it if it has changed."""
        room = asyncio.Semaphore(AT_ONCE)

        async def may(permission: Permission, namespace: str | None) -> bool:
            async with room:
                return await self._cluster.may(permission, namespace)

        try:
            needed = [*self._needed, *((right, None) for right in self._node_permissions)]
            # The first alone: if the credentials are refused, all would be, at each review.
            answers = [await may(*needed[0])]
            answers += await asyncio.gather(*(may(*each) for each in needed[1:]))
        except ClusterError as error:
            self._outages.failed("reviewing our permissions", str(error))
            return
        self._outages.works("reviewing our permissions")
        missing = tuple(
            MissingPermission(permission, namespace or "")
            for (permission, namespace), is_granted in zip(self._needed, answers, strict=False)
            if not is_granted
        )
        for permission in {permission for permission, _ in self._needed}:
            count = sum(item.permission == permission for item in missing)
            self._metrics.missing_rights.labels(permission.verb, permission.resource).set(count)
        granted = zip(self._node_permissions, answers[len(self._needed) :], strict=True)
        before, self._missing = self._missing, missing
        if missing and missing != before:
            log.error("%s; grant what deploy/base/rbac.yaml grants", "; ".join(self.findings()))
        elif before and not missing:
            log.info("every right is granted now")
        missing_for_nodes = tuple(
            permission for permission, is_granted in granted if not is_granted
        )
        if missing_for_nodes != self._missing_node_permissions:
            self._missing_node_permissions = missing_for_nodes
            if missing_for_nodes:
                log.warning(
                    "pools with a nodeSelector have no nodes: rights in the cluster are missing",
                    extra={"rights": ", ".join(map(str, missing_for_nodes))},
                )
            else:
                log.info("the nodes of the cluster may be listed now")
            self.on_nodes(missing_for_nodes)
        self.reviewed.set()
