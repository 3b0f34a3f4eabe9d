"""Node objects by the thousand, as kubelets write them.

The operator reads objects and never asks a kubelet, so a node is what its object says. Those with
the label of ``controlplane/kwok.py`` have a kubelet of their own while KWOK runs. Requests
go over connections that stay open: a new one costs more than the request.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tests.support.controlplane.api import JSON, MERGE, Api
from tests.support.operator.nodes import H100, body

CONNECTIONS = 4
MARK = "nodes-of-test"


@dataclass
class Nodes:
    """Nodes of one test; their names begin with ``name``, and only they have a label of it."""

    api: Api
    name: str
    _local: threading.local = field(default_factory=threading.local)
    _open: list[http.client.HTTPSConnection] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        """What a plan selects them by."""
        return {MARK: self.name}

    def names(self, count: int) -> list[str]:
        return [f"{self.name}-{i}" for i in range(count)]

    def create(
        self,
        names: Iterable[str],
        labels: Mapping[str, str] = MappingProxyType({}),
        **state: Any,  # noqa: ANN401
    ) -> None:
        """Make nodes of eight H100 with these labels as well, or of what ``state`` says."""

        def create(name: str) -> None:
            made = body(name, {**H100, **self.labels, **labels}, **state)
            made["metadata"] = {
                key: made["metadata"][key] for key in ("name", "labels", "annotations")
            }
            self._request("POST", "/api/v1/nodes", made)

        each(create, names)

    def report(self, name: str, second: int, ready: str = "True") -> None:
        """A kubelet reports, as it does every five minutes or where something has changed."""
        at = f"2026-01-01T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        ready_now = {"type": "Ready", "status": ready, "lastHeartbeatTime": at}
        status = {"conditions": [{"type": "MemoryPressure", "status": "False"}, ready_now]}
        self._request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)

    def cordon(self, name: str) -> None:
        self._request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}, MERGE)

    def delete(self, names: Iterable[str]) -> None:
        each(lambda name: self._request("DELETE", f"/api/v1/nodes/{name}"), names)

    def close(self) -> None:
        """Close what was opened, by whichever thread."""
        for connection in self._open:
            connection.close()

    def _request(self, method: str, path: str, content: object = None, kind: str = JSON) -> None:
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPSConnection(
                self.api.host, self.api.port, context=self.api.context, timeout=30
            )
            self._open.append(self._local.connection)
        connection: http.client.HTTPSConnection = self._local.connection
        headers: Mapping[str, str] = {**self.api.identity, "Content-Type": kind}
        connection.request(method, path, json.dumps(content) if content else None, dict(headers))
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status < http.client.BAD_REQUEST, text[:500]


def each(work: Callable[[str], None], names: Iterable[str]) -> None:
    """Do it for all, a few at a time; fails where one fails."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(work, names))


@contextmanager
def nodes_of(api: Api, name: str) -> Iterator[Nodes]:
    """Nodes that are deleted at the end."""
    found = Nodes(api, name)
    try:
        yield found
    finally:
        found.close()
        api("DELETE", "/api/v1/nodes", labelSelector=f"{MARK}={name}")
