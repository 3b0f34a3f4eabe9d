"""Kubernetes events of a plan: once each, rate limited, with reasons of a closed vocabulary.

An event that cannot be stored is only logged: the status has the same reason, and keeps it.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ..errors import ClusterError
from ..resources.names import API_VERSION, KIND, Key, Manifest
from ..resources.status import bounded

if TYPE_CHECKING:
    from ..cluster.client import ApiCluster
    from ..decide.actions import EmitEvent
    from ..decide.state import Now
    from ..metrics import Metrics
    from ..resources.objects import PlanObject


MOST: Final = 10
WINDOW: Final = 600.0
"""At most ``MOST`` events per plan in ``WINDOW`` seconds, and no event twice."""
NOTE_BYTES: Final = 1024
CONTROLLER: Final = f"{API_VERSION.split('/')[0]}/operator"

log = logging.getLogger(__name__)


class Limiter:
    """A rate limit of events per plan; times are monotonic seconds."""

    def __init__(self, most: int = MOST, window: float = WINDOW) -> None:
        self._most = most
        self._window = window
        self._recent: dict[Key, deque[tuple[float, EmitEvent]]] = {}

    def admit(self, key: Key, event: EmitEvent, now: float) -> bool:
        """Return whether to emit the event; if so, count it."""
        recent = self._recent.setdefault(key, deque())
        while recent and recent[0][0] <= now - self._window:
            recent.popleft()
        if len(recent) >= self._most or any(event == earlier for _, earlier in recent):
            return False
        recent.append((now, event))
        return True

    def forget(self, key: Key) -> None:
        """Drop a deleted plan."""
        self._recent.pop(key, None)


class Events:
    """Emits events about plans."""

    def __init__(
        self, cluster: ApiCluster, metrics: Metrics, now: Callable[[], Now], instance: str
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._now = now
        self._instance = instance
        self._limiter = Limiter()

    async def emit(self, plan: PlanObject, event: EmitEvent) -> None:
        """Store the event, unless it is a repetition or there have been too many."""
        now = self._now()
        if not self._limiter.admit(plan.key, event, now.monotonic):
            return
        self._metrics.events.labels(event.reason.value).inc()
        try:
            await self._cluster.create_event(event_manifest(plan, event, self._instance, now.wall))
        except ClusterError as error:
            log.warning("event not stored", extra={"plan": str(plan.key), "error": str(error)})

    def forget(self, key: Key) -> None:
        """Drop a deleted plan."""
        self._limiter.forget(key)


def event_manifest(plan: PlanObject, event: EmitEvent, instance: str, time: datetime) -> Manifest:
    """Return an ``events.k8s.io/v1`` event about the plan.

    Its name has digits that grow with time: `kubectl describe` orders by a field that events of
    this version must not have, and else shows them as listed, by name.
    """
    moment = f"{int(time.timestamp() * 1e6):016x}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{plan.key.name[:200].rstrip('-.')}.{moment}{secrets.token_hex(2)}",
            "namespace": plan.key.namespace,
        },
        "eventTime": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": event.type.value,
        "reason": event.reason.value,
        "action": "Reconcile",
        "note": bounded(event.message, NOTE_BYTES),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": plan.key.namespace,
            "name": plan.key.name,
            "uid": plan.uid,
            "resourceVersion": plan.resource_version,
        },
    }
