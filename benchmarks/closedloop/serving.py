"""The fleet in real time: a page per pod for a Prometheus, and the list of pods to scrape."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Fleet, Pod
    from benchmarks.closedloop.traffic import Traffic


class Serving:
    """A fleet whose clock is somebody's real one; safe to be asked by the threads of a server.

    ``plan`` and ``namespace`` are the labels that Kubernetes' service discovery would give.
    """

    def __init__(self, fleet: Fleet, traffic: Traffic, plan: str, namespace: str) -> None:
        self.fleet, self.traffic = fleet, traffic
        self.plan, self.namespace = plan, namespace
        self._lock = threading.Lock()

    def tick(self, now: float) -> None:
        """Go on to ``now`` [s since the fleet's start]."""
        with self._lock:
            self.fleet.advance(now, self.traffic)

    def apply(self, content: Mapping[str, Any]) -> None:
        """Follow another table."""
        with self._lock:
            self.fleet.apply(content)

    def pods(self) -> list[Pod]:
        """All pods, with their pages."""
        with self._lock:
            return self.fleet.pods()

    def targets(self, address: str) -> list[dict[str, Any]]:
        """Return what ``http_sd`` of Prometheus reads: one target per pod that answers."""
        return [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/metrics/{pod.name}",
                    "namespace": self.namespace,
                    "pod": pod.name,
                    "archipelago_dev_plan": self.plan,
                    "archipelago_dev_island": pod.island,
                    "archipelago_dev_phase": pod.phase,
                },
            }
            for pod in self.pods()
            if pod.page is not None
        ]

    def seen(self) -> dict[str, Any]:
        """Return what users see, by minute, for who plays the loop."""
        with self._lock:
            minutes = self.fleet.tally.minutes
            return {
                "now": self.fleet.now,
                "waiting": self.fleet.waiting,
                "flips": self.fleet.flips,
                "restarts": self.fleet.restarts,
                "unready": self.fleet.unready(),
                "minutes": {str(at): vars(minute) for at, minute in sorted(minutes.items())},
            }


def server(serving: Serving, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback interface; ``/metrics/POD``, ``/targets`` and ``/seen``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = _answer(serving, self.path, f"127.0.0.1:{found.server_port}")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
            """Scrapes are not worth a line."""

    found = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    found.daemon_threads = True
    return found


def _answer(serving: Serving, path: str, address: str) -> tuple[int, str, bytes]:
    """Status, content type and body."""
    if path == "/targets":
        return 200, "application/json", json.dumps(serving.targets(address)).encode()
    if path == "/seen":
        return 200, "application/json", json.dumps(serving.seen()).encode()
    name = path.removeprefix("/metrics/")
    page = next((pod.page for pod in serving.pods() if pod.name == name), None)
    if page is None:
        return 404, "text/plain", b"no such pod\n"
    return 200, "text/plain; version=0.0.4; charset=utf-8", page.encode()
