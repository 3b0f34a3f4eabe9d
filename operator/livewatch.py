"""``archipelago watch`` and ``kubectl splan watch``: read a plan again and again, and show it.

On a terminal in place; elsewhere as text or lines of JSON, whenever something changed. An API
server that does not answer is said, and asked again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.live import Live

from archipelago.operator import liveview
from archipelago.operator.errors import ClusterError
from archipelago.operator.inspection import BAD, GOOD
from archipelago.operator.observe import SeenPlan
from archipelago.operator.reading import connected, plan_body, table_content
from archipelago.planner.commands.files import write_document
from archipelago.planner.errors import InputError
from archipelago.planner.terminal import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.cluster import ApiCluster
    from archipelago.operator.reading import Where
    from archipelago.planner.canonical import Document


def watch(name: str, where: Where, *, form: str, every: float, once: bool) -> int:
    """Show the plan until Ctrl-C, or once; 1 where it is not served as it is."""
    with ExitStack() as stack:
        face = _face(form, once, stack)
        onlooker = Onlooker(name, where, face)
        with suppress(KeyboardInterrupt):  # how one ends it
            asyncio.run(onlooker.run(None if once else every))
    return GOOD if onlooker.good else BAD


class Face(Protocol):
    """Where it is shown."""

    def show(self, shown: Document, note: str) -> None:
        """Show that, and what is wrong with the reading, if anything."""


class Onlooker:
    """Reads one plan again and again. ``good``: whether it was served when it was read last."""

    def __init__(self, name: str, where: Where, face: Face) -> None:
        self._name = name
        self._where = where
        self._face = face
        self._content: Mapping[str, Any] | None = None
        self._content_of: tuple[Any, ...] = ()
        self.good = False

    async def run(self, every: float | None) -> None:
        """Until cancelled, every so many seconds; None: once.

        Raises:
            InputError: there is no such plan to begin with.
            ClusterError: the first question was not answered.
        """
        async with connected(self._where) as (api, namespace):
            shown = await self._read(api, namespace)
            self._face.show(shown, "")
            while every is not None:
                await asyncio.sleep(every)
                try:
                    shown = await self._read(api, namespace)
                    self._face.show(shown, "")
                except InputError:
                    self.good = False
                    return self._face.show(shown, "it is gone")
                except ClusterError as error:
                    self._face.show(shown, f"this is old, the cluster does not answer: {error}")
        return None

    async def _read(self, api: ApiCluster, namespace: str) -> Document:
        """The plan, and its table where that is another one than last time."""
        body = await plan_body(api, namespace, self._name)
        seen = SeenPlan.from_body(body)
        summary = seen.status.summary
        version = (seen.uid, summary.get("contentHash"), summary.get("tableSequence"))
        if self._content is None or version != self._content_of:
            self._content, self._content_of = await table_content(api, body), version
        shown = liveview.document(seen, self._content)
        self.good = shown["ready"]
        return shown


class Terminal:
    """In place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, shown: Document, note: str) -> None:
        """The screen as of now: ages go on, also where nothing changed."""
        self._live.update(liveview.screen(shown, datetime.now(UTC), note), refresh=True)


class Pages:
    """One below the other, whenever something changed."""

    def __init__(self) -> None:
        self._last: tuple[Document, str] | None = None

    def show(self, shown: Document, note: str) -> None:
        """A page, where it is news."""
        if (shown, note) == self._last:
            return
        out = console()
        if self._last is not None:
            out.print()
        self._last = (shown, note)
        out.print(liveview.screen(shown, datetime.now(UTC), note))
        sys.stdout.flush()


class Lines:
    """JSON, a line each time that something changed."""

    def __init__(self) -> None:
        self._last: Document | None = None

    def show(self, shown: Document, note: str) -> None:
        """A line, where it is news."""
        told = {**shown, "note": note} if note else shown
        if told != self._last:
            self._last = told
            sys.stdout.write(json.dumps(told, sort_keys=True) + "\n")
            sys.stdout.flush()


class Single:
    """One document, written for people as well."""

    def show(self, shown: Document, note: str) -> None:
        """Write it."""
        del note  # what was not read is not shown at all
        write_document(shown, "json")


def _face(form: str, once: bool, stack: ExitStack) -> Face:
    if form == "json":
        return Single() if once else Lines()
    out = console()
    if once or not out.is_terminal:
        return Pages()
    live = Live(console=out, auto_refresh=False, vertical_overflow="crop")
    return Terminal(stack.enter_context(live))
