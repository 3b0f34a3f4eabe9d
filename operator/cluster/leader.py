"""Stand for election: read, claim, renew and release the Lease; ``election`` has the rules.

Whoever asks `Elector.leads` gets the truth of this moment by the monotonic clock: a process that
was stopped for longer than its lease does not lead when it goes on, whatever it did before.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import Backoff, ClusterError, Conflict, NotFound
from ..logs import Outages
from ..resources.names import Key
from .election import Candidate, claim, claimed, decide, released
from .lease import Lease, lease_manifest, read_lease

if TYPE_CHECKING:
    from ..metrics import Metrics
    from .client import ApiCluster

POD_ID: Final = "POD_ID"
POD_NAMESPACE: Final = "POD_NAMESPACE"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ACCOUNT: Final = "system:serviceaccount:"
RELEASE: Final = 2.0
"""Time to give the Lease away at the end [s]."""

LONGEST_PAUSE: Final = 4.0
"""Between two looks of a standby while they fail [s]."""

log = logging.getLogger(__name__)


def identity(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this replica: the pod's; outside of one the machine's and a random part.

    A container that is started again in its pod has the same name, so it goes on with its Lease.
    """
    return environment.get(POD_ID) or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


def home_namespace(token: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the namespace of the operator's pod or service account; None if it has none.

    ``token``: the bearer token. That of a service account names its namespace.
    """
    if named := environment.get(POD_NAMESPACE, "").strip():
        return named
    try:
        return NAMESPACE_FILE.read_text().strip()
    except (OSError, ValueError):
        pass
    try:
        part = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        subject = str(claims["sub"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, binascii.Error):
        return None
    account = subject.removeprefix(_ACCOUNT).split(":")
    return account[0] if subject.startswith(_ACCOUNT) and len(account) == 2 else None  # noqa: PLR2004


class Elector:
    """One candidate.

    Args:
        cluster: Where the Lease is.
        key: Of the Lease.
        candidate: Identity and terms.
        metrics: Show whether this replica leads.
        on_change: Called when this replica begins (True) or stops to lead.
        strategies: Names of those that this replica has, for whoever reads the Lease.
    """

    def __init__(
        self,
        cluster: ApiCluster,
        key: Key,
        candidate: Candidate,
        metrics: Metrics,
        on_change: Callable[[bool], None],
        *,
        strategies: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._candidate = candidate
        self._metrics = metrics
        self._on_change = on_change
        self._strategies = strategies
        self._outages = Outages()
        self._led = False
        self._end: asyncio.TimerHandle | None = None

    def leads(self) -> bool:
        """Return whether this replica leads now."""
        return self._candidate.leads(time.monotonic())

    async def run(self) -> None:
        """Stand for election until cancelled."""
        terms, what = self._candidate.terms, f"the Lease {self._key}"
        failures, backoff = 0, Backoff(terms.retry_period, LONGEST_PAUSE)
        while True:
            self._notice()
            try:
                async with asyncio.timeout(max(1.0, terms.renew_deadline / 2)):
                    await self._turn()
            except (ClusterError, TimeoutError) as error:
                self._outages.failed(what, str(error) or "no answer")
                failures = 0 if self.leads() else failures + 1
            else:
                self._outages.works(what)
                failures = 0
            pause = terms.renewal if self.leads() else terms.retry_period
            await asyncio.sleep(max(pause, backoff.delay(failures)))

    async def release(self) -> None:
        """Give the lead away, so that another replica need not wait; at the end only."""
        seen, led = self._candidate.seen, self.leads()
        if led:
            log.info("the lead is given away", extra={"lease": str(self._key)})
        self._candidate = replace(self._candidate, leads_until=float("-inf"))
        self._notice()
        if not led or seen is None:
            return
        try:
            async with asyncio.timeout(RELEASE):
                try:
                    await self._store(released(self._candidate, datetime.now(UTC)), seen)
                except Conflict:  # by the renewal that was under way
                    seen = read_lease(await self._cluster.read_lease(self._key))
                    if seen.holder == self._candidate.identity:
                        await self._store(released(self._candidate, datetime.now(UTC)), seen)
        except (ClusterError, TimeoutError) as error:
            cause = str(error) or "no answer"
            log.warning("the Lease was not given away: the others wait", extra={"error": cause})

    async def _turn(self) -> None:
        """Renew, or look who leads and claim the Lease if it is free."""
        seen = self._candidate.seen
        if self.leads() and seen is not None:
            try:
                return await self._claim(claim(self._candidate, datetime.now(UTC)), seen)
            except (Conflict, NotFound):
                pass  # somebody changed it: see who
        try:
            stored = read_lease(await self._cluster.read_lease(self._key))
        except NotFound:
            stored = None
        before = self._candidate.seen
        lease, self._candidate = decide(
            stored, self._candidate, time.monotonic(), datetime.now(UTC)
        )
        self._notice()
        if stored is not None and (before is None or stored.holder != before.holder):
            log.info("leader seen", extra={"holder": stored.holder, "lease": str(self._key)})
        if lease is not None:
            try:
                await self._claim(lease, stored)
            except Conflict:
                log.debug("another replica was faster", extra={"lease": str(self._key)})
        return None

    async def _claim(self, lease: Lease, before: Lease | None) -> None:
        sent = time.monotonic()
        stored = await self._store(lease, before)
        self._candidate = claimed(self._candidate, stored, sent, time.monotonic())
        self._notice()

    async def _store(self, lease: Lease, before: Lease | None) -> Lease:
        manifest = lease_manifest(self._key, lease, before, self._strategies)
        write = self._cluster.create_lease if before is None else self._cluster.update_lease
        return read_lease(await write(manifest))

    def _notice(self) -> None:
        """Tell a change, and look again when the lead is over."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        leads, remaining = self.leads(), self._candidate.leads_until - time.monotonic()
        if leads:
            self._end = asyncio.get_running_loop().call_later(remaining, self._notice)
        if leads == self._led:
            return
        self._led = leads
        self._metrics.leader.set(leads)
        self._metrics.leader_transitions.inc()
        extra = {"lease": str(self._key), "identity": self._candidate.identity}
        if leads:
            log.info("leading: this replica plans and writes", extra=extra)
        else:
            log.warning("not leading any more: this replica stands by", extra=extra)
        self._on_change(leads)
