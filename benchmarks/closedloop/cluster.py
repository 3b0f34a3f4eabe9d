"""The little that the fleet in real time asks of an API server: its table, and Pod objects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.resources.names import table_name
from archipelago.planner.kubernetes.labels import label_value
from tests.support.controlplane.api import Api, Refused

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Pod


APPLY: Final = "application/apply-patch+yaml"
MANAGER: Final = "closedloop"


class Cluster:
    """A plan in a namespace, by a kubeconfig.

    What cannot be reached just now is answered with None, and written the next time.
    """

    def __init__(self, kubeconfig: Path, namespace: str, plan: str) -> None:
        self._api = Api.by(kubeconfig)
        self._namespace, self._plan = namespace, plan
        self._written: dict[str, tuple[str, bool]] = {}

    def content(self) -> dict[str, Any] | None:
        """Return the content of the routing table; None where there is none yet.

        A table in shards is not read: fleets of that size are not simulated in real time.
        """
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{table_name(self._plan)}"
        config_map = self._ask("GET", path)
        if config_map is None:
            return None
        content: dict[str, Any] | None = json.loads(config_map["data"]["table.json"]).get("content")
        return content

    def write(self, pods: Iterable[Pod]) -> None:
        """Pod objects like the islands' pods: created, relabelled, ready or not, deleted."""
        by_name = {pod.name: pod for pod in pods}
        for name, pod in by_name.items():
            if self._written.get(name) != (pod.phase, pod.ready) and self._put(pod):
                self._written[name] = (pod.phase, pod.ready)
        for name in [name for name in self._written if name not in by_name]:
            self._ask("DELETE", f"{self._pods}/{name}", gracePeriodSeconds="0")
            del self._written[name]

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"

    def _put(self, pod: Pod) -> bool:
        applied = self._ask("PATCH", f"{self._pods}/{pod.name}", self._object(pod), **_FORCE)
        ready = {"type": "Ready", "status": "True" if pod.ready else "False"}
        status = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod.name},
            "status": {"phase": "Running", "conditions": [ready]},
        }
        path = f"{self._pods}/{pod.name}/status"
        return applied is not None and self._ask("PATCH", path, status, **_FORCE) is not None

    def _object(self, pod: Pod) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name,
                "labels": {
                    "archipelago.dev/plan": label_value(self._plan),
                    "archipelago.dev/island": pod.island,
                    "archipelago.dev/phase": pod.phase,
                },
            },
            "spec": {"containers": [{"name": "engine", "image": "simulated"}]},
        }

    def _ask(
        self, verb: str, path: str, body: dict[str, Any] | None = None, **query: str
    ) -> dict[str, Any] | None:
        try:
            return self._api(verb, path, body, APPLY, **query)
        except (Refused, OSError, HTTPException):
            return None


_FORCE: Final = {"fieldManager": MANAGER, "force": "true"}
