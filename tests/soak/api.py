"""The API server as the administrator, by plain requests: kubectl is too slow for 500 plans."""

import http.client
import json
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.controlplane import Cluster
from tests.e2e.operators import resource

PLANS = "/apis/archipelago.dev/v1alpha1/namespaces/{namespace}/servingplans"


@dataclass
class Api:
    """One connection per thread, kept open."""

    cluster: Cluster
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        self.token: str = config["users"][0]["user"]["token"]
        self.context = ssl.create_default_context(cafile=str(self.cluster.ca))
        self.target = urlsplit(self.cluster.url)

    def send(
        self, method: str, path: str, body: object = None, kind: str = "json"
    ) -> dict[str, Any]:
        """One request; fails where the server refuses it."""
        content = f"application/{kind}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
        text = None if body is None else json.dumps(body)
        try:
            status, found = self._ask(method, path, text, headers)
        except (OSError, http.client.HTTPException):
            self.close()  # the server ends a connection that was idle for long
            status, found = self._ask(method, path, text, headers)
        assert status < 300, found
        return found

    def _ask(
        self, method: str, path: str, text: str | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, Any]]:
        connection = self._connection()
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def create(self, namespace: str, name: str, spec: dict[str, Any]) -> None:
        self.send("POST", PLANS.format(namespace=namespace), resource(name, spec))

    def patch(self, namespace: str, name: str, spec: dict[str, Any]) -> int:
        """Merge a change; returns the new generation."""
        path = f"{PLANS.format(namespace=namespace)}/{name}"
        found = self.send("PATCH", path, {"spec": spec}, "merge-patch+json")
        return int(found["metadata"]["generation"])

    def delete(self, namespace: str, name: str) -> None:
        self.send("DELETE", f"{PLANS.format(namespace=namespace)}/{name}")

    def plans(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.send("GET", PLANS.format(namespace=namespace))["items"]
        return items

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self.local, "connection", None)
        if connection is not None:
            connection.close()
            self.local.connection = None

    def _connection(self) -> http.client.HTTPSConnection:
        if getattr(self.local, "connection", None) is None:
            self.local.connection = http.client.HTTPSConnection(
                str(self.target.hostname), self.target.port, context=self.context, timeout=60
            )
        connection: http.client.HTTPSConnection = self.local.connection
        return connection


def ready(plan: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of Ready where it speaks of the newest generation."""
    for condition in plan.get("status", {}).get("conditions", []):
        current = condition["observedGeneration"] == plan["metadata"]["generation"]
        if condition["type"] == "Ready" and current:
            return condition["status"], condition["reason"]
    return "", ""
