"""Kubernetes events of a plan: told once, not too often, in words of a closed vocabulary.

An event that cannot be stored is only logged: the status says the same, and keeps saying it.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import bounded
from archipelago.operator.errors import ClusterError
from archipelago.operator.manifests import API_VERSION, KIND, Key, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from archipelago.operator.actions import EmitEvent
    from archipelago.operator.cluster import Cluster
    from archipelago.operator.metrics import Metrics
    from archipelago.operator.observe import SeenPlan
    from archipelago.operator.state import Now

MOST: Final = 10
WINDOW: Final = 600.0
"""At most ``MOST`` events per plan in ``WINDOW`` seconds, and no event twice."""
NOTE_BYTES: Final = 1024
CONTROLLER: Final = f"{API_VERSION.split('/')[0]}/operator"

log = logging.getLogger(__name__)


class Limiter:
    """Which events are worth telling; the time is given, in monotonic seconds."""

    def __init__(self, most: int = MOST, window: float = WINDOW) -> None:
        self._most = most
        self._window = window
        self._told: dict[Key, deque[tuple[float, EmitEvent]]] = {}

    def lets_pass(self, key: Key, event: EmitEvent, now: float) -> bool:
        """Whether to tell it; counts it where so."""
        told = self._told.setdefault(key, deque())
        while told and told[0][0] <= now - self._window:
            told.popleft()
        if len(told) >= self._most or any(event == earlier for _, earlier in told):
            return False
        told.append((now, event))
        return True

    def forget(self, key: Key) -> None:
        """The plan is gone."""
        self._told.pop(key, None)


class Events:
    """Tells about plans."""

    def __init__(
        self, cluster: Cluster, metrics: Metrics, now: Callable[[], Now], instance: str
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._now = now
        self._instance = instance
        self._limiter = Limiter()

    async def emit(self, plan: SeenPlan, event: EmitEvent) -> None:
        """Store the event, unless it was told lately or there have been too many."""
        now = self._now()
        if not self._limiter.lets_pass(plan.key, event, now.monotonic):
            return
        self._metrics.event(event.reason)
        try:
            await self._cluster.create_event(event_manifest(plan, event, self._instance, now.wall))
        except ClusterError as error:
            log.warning("event not stored", extra={"plan": str(plan.key), "error": str(error)})

    def forget(self, key: Key) -> None:
        """The plan is gone."""
        self._limiter.forget(key)


def event_manifest(plan: SeenPlan, event: EmitEvent, instance: str, time: datetime) -> Manifest:
    """An ``events.k8s.io/v1`` event about the plan."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{plan.key.name[:200].rstrip('-.')}.{_moment(time)}{secrets.token_hex(2)}",
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


def _moment(time: datetime) -> str:
    """Sixteen digits that grow with time: `kubectl describe` shows our events by their names.

    It orders by a stamp that events of this version must not have, and else leaves them as listed.
    """
    return f"{int(time.timestamp() * 1e6):016x}"
