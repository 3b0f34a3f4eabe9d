"""Every version of ConfigMaps ever stored, and what a reader would have found at each moment.

A watch of our own from before the first write: the API server tells every version, in order. From
that the state at each version is rebuilt, and whether the pointer of that moment resolved.
"""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from archipelago.planner.errors import PlanFileError
from archipelago.planner.shards import assemble
from archipelago.planner.table import validate_table
from tests.controlplane import Cluster, eventually


@dataclass
class History:
    """What happened to the ConfigMaps of one namespace: (seconds, type, body), in order."""

    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)

    def tables(self, name: str) -> Iterator[tuple[float, dict[str, Any] | None, list[str]]]:
        """After each event: when, the stored table, and what is wrong with it for a reader.

        While no table is stored there is nothing to be wrong.
        """
        stored: dict[str, dict[str, Any]] = {}
        for when, kind, body in self.events:
            key = body["metadata"]["name"]
            if kind == "DELETED":
                stored.pop(key, None)
            else:
                stored[key] = body
            if name in stored:
                pointer = json.loads(stored[name]["data"]["table.json"])
                yield when, pointer, unreadable(pointer, stored)
            else:
                yield when, None, []

    def deletions(self) -> list[tuple[float, str]]:
        """When which ConfigMap went."""
        return [(t, b["metadata"]["name"]) for t, kind, b in self.events if kind == "DELETED"]


def unreadable(pointer: dict[str, Any], stored: dict[str, dict[str, Any]]) -> list[str]:
    """Why a reader cannot use the table; empty where it can."""
    try:
        whole = assemble(pointer, lambda name: str(stored[name]["data"]["shard.txt"]))
    except (KeyError, PlanFileError) as error:
        return [repr(error)]
    return [*validate_table(pointer), *([] if whole is pointer else validate_table(whole))]


@contextmanager
def recorded(cluster: Cluster, namespace: str) -> Iterator[History]:
    """Record until the end of the block."""
    history = History()
    path = f"/api/v1/namespaces/{namespace}/configmaps?watch=true"
    command = [
        str(cluster.kubectl_binary),
        f"--kubeconfig={cluster.kubeconfig}",
        "get",
        "--raw",
        path,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        thread = threading.Thread(target=_read, args=(watch, history), daemon=True)
        thread.start()
        try:
            # Every namespace gets one ConfigMap from Kubernetes itself.
            eventually(lambda: bool(history.events))
            yield history
        finally:
            watch.terminate()
            thread.join(5)


def _read(watch: subprocess.Popen[str], history: History) -> None:
    """One event a line, first of all what is there."""
    assert watch.stdout is not None
    for line in watch.stdout:
        event = json.loads(line)
        history.events.append((time.monotonic(), event["type"], event["object"]))
