"""Watches plans, ConfigMaps and events of a namespace at the API server itself, not at the proxy.

It outlives restarts of the server: a watch goes on from the last version seen. Where the server no
longer knows that one, everything is listed again and the gap is counted.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from tests.support.controlplane.api import Api, Refused
from tests.support.faults.history import EVENT, PLAN, POD, TABLE, History, Version

PATHS = {
    PLAN: "/apis/archipelago.dev/v1alpha1/namespaces/{}/servingplans",
    TABLE: "/api/v1/namespaces/{}/configmaps",
    EVENT: "/apis/events.k8s.io/v1/namespaces/{}/events",
    POD: "/api/v1/namespaces/{}/pods",
}
USUAL = (PLAN, TABLE, EVENT)
PAUSE = 0.1


class Expired(Exception):  # noqa: N818  # an answer
    """The server does not know that version any more."""


class Stream(threading.Thread):
    """One kind, from its first list until told to stop."""

    def __init__(self, api: Api, kind: str, namespace: str, history: History) -> None:
        super().__init__(daemon=True, name=f"recorder of {kind}")
        self.api = api
        self.kind = kind
        self.path = PATHS[kind].format(namespace)
        self.history = history
        self.version = self.list()
        self.stopped = False

    def run(self) -> None:
        """Watch; whatever breaks is begun again."""
        while not self.stopped:
            try:
                self.watch()
            except Expired:
                self.relist()
            except (OSError, HTTPException, ValueError, KeyError):
                time.sleep(PAUSE)  # the server is down, or was stopped in the middle of a line

    def watch(self) -> None:
        """Take in what changes."""
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self.version}
        with self.api.sent("GET", self.path, query=query) as answer:
            if answer.status != 200:
                time.sleep(PAUSE)
                raise Expired if answer.status == 410 else OSError(answer.status)
            while not self.stopped and (line := answer.readline()):
                self.take(json.loads(line))

    def take(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        if event["type"] == "ERROR":
            raise Expired if event["object"].get("code") == 410 else OSError(event)
        body = event["object"]
        if event["type"] != "BOOKMARK":
            self.add(event["type"], body)
        self.version = body["metadata"]["resourceVersion"]

    def list(self) -> str:
        """Take in everything; returns the version of the list."""
        found = self.api("GET", self.path)
        for body in found["items"]:
            self.add("ADDED", body)
        return str(found["metadata"]["resourceVersion"])

    def relist(self) -> None:
        """The watch cannot go on from where it was."""
        try:
            self.version = self.list()
        except (OSError, HTTPException, Refused):
            time.sleep(PAUSE)
            return
        with self.history.changed:
            self.history.gaps += 1

    def add(self, change: str, body: dict[str, Any]) -> None:
        """Note a version."""
        number = int(body["metadata"]["resourceVersion"])
        self.history.add(Version(self.kind, change, number, time.monotonic(), body))


@contextmanager
def recorded(
    api: Api, namespace: str, history: History, kinds: Iterable[str] = USUAL
) -> Iterator[History]:
    """Everything of these kinds that is stored in the namespace from now on."""
    streams = [Stream(api, kind, namespace, history) for kind in kinds]
    for stream in streams:
        stream.start()
    try:
        yield history
    finally:
        for stream in streams:
            stream.stopped = True  # each ends with its next event, or with the tests
