"""``archipelago watch`` and ``kubectl splan watch``: read a plan repeatedly and show it.

A terminal is updated in place; other outputs get a page of text or a line of JSON for each change.
If the API server does not answer, the view states it and continues. Replanning is shown as the last
decision in the status. All text from the cluster is escaped.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from archipelago.planner.cli.commands.files import write_document
from archipelago.planner.cli.terminal import console, grid
from archipelago.planner.documents import Document, canonical, safe
from archipelago.planner.errors import InputError

from ..cluster.client import ApiCluster
from ..errors import ClusterError
from ..resources.objects import PlanObject
from ..resources.status import ConditionStatus, ConditionType
from .read import ClusterTarget, connected, plan_body, table_content
from .status import BAD, GOOD, age, status_document

PHASES: Final = ("prefill", "decode", "mixed")
BAR: Final = 40
"""Characters of the headroom's bar."""
FULL: Final = 2.0
"""Headroom at the end of the bar."""
ENOUGH: Final = 1.25
"""Headroom that is shown green: 1 / 0.8, the default target."""


def document(seen: PlanObject, content: Mapping[str, Any] | None) -> Document:
    """Return the view as JSON; docs/reference/kubectl-splan.md describes it.

    Args:
        seen: the plan as it was read.
        content: of its routing table; None without one, or if it cannot be read.
    """
    shown: Document = canonical(
        {
            **status_document(seen),
            "kind": "PlanWatch",
            "replanning": dict(seen.status.last_decision) or None,
            "islands": None if content is None else islands(content),
        }
    )
    return shown


def islands(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the islands of each pool by phase, and their GPUs."""
    pools: dict[str, Counter[str]] = {}
    for island in content.get("islands", ()):
        counts = pools.setdefault(island["pool"], Counter())
        counts[island["phase"]] += 1
        counts["gpus"] += island["gpus"]
    columns = (*PHASES, "gpus")
    return [
        {"pool": pool, **{column: counts[column] for column in columns}}
        for pool, counts in sorted(pools.items())
    ]


def screen(shown: Document, now: datetime, note: str = "") -> Group:
    """Return the view for a terminal; ``note``: a problem with the reading itself."""
    return Group(*_parts(shown, now, note))


def _parts(shown: Document, now: datetime, note: str) -> Iterator[RenderableType]:
    yield _headline(shown)
    if note:
        yield Text(safe(note), style="bold red")
    yield Text()
    yield _conditions(shown, now)
    decision = shown["replanning"]
    yield Text()
    if decision:
        yield from _decision(shown, decision, now)
    else:
        yield Text("replanning: no decision yet, except to keep the table")
    if shown["islands"]:
        yield Text()
        yield _islands(shown["islands"])


def _headline(shown: Document) -> Text:
    summary = shown["summary"]
    behind = shown["observedGeneration"] < shown["generation"]
    observed = f" (the operator has seen {shown['observedGeneration']})" if behind else ""
    parts = [f"{shown['namespace']}/{shown['name']}: generation {shown['generation']}{observed}"]
    parts += [f"{summary['throughput']} req/s"] if "throughput" in summary else []
    parts += [f"{summary['costPerHour']} $/h"] if "costPerHour" in summary else []
    parts += [f"table {shown['table']['sequence']}"] if shown["table"] else []
    return Text(safe(", ".join(parts)), style="bold")


def _conditions(shown: Document, now: datetime) -> Table:
    """Return all conditions, with the messages of those that need attention."""
    table = grid("CONDITION", "STATUS", "REASON", "SINCE", "~MESSAGE")
    for item in shown["conditions"]:
        expected = (
            ConditionStatus.FALSE
            if item["type"] == ConditionType.SUSPENDED
            else ConditionStatus.TRUE
        )
        good = item["status"] == expected
        table.add_row(
            safe(item["type"]),
            item["status"],
            safe(item["reason"]),
            _ago(item["since"], now),
            "" if good else safe(item["message"]),
            style="" if good or item["status"] == ConditionStatus.UNKNOWN else "yellow",
        )
    return table


def _decision(shown: Document, decision: Document, now: datetime) -> Iterator[RenderableType]:
    """Yield the headroom, the last action, the headroom of each level, and the proposal."""
    if "headroom" in decision:
        yield bar(float(decision["headroom"]), decision.get("headroomLow"))
    if "regret" in decision:
        yield Text(f"regret    {float(decision['regret']):.1%} below the best level")
    action = f"{decision['trigger']}: {decision['level']}: {decision['message']}"
    yield Text(safe(f"decided   {_ago(decision['time'], now)} ago, {action}"))
    if decision.get("levels"):
        yield Text()
        yield _levels(decision)
    if decision.get("proposal"):
        yield Text()
        yield from _proposal(shown, decision["proposal"])


def bar(headroom: float, low: str | None) -> Text:
    """Return the headroom as a bar, with a mark at 1."""
    one = round(BAR / FULL)
    filled = min(BAR, max(0, round(headroom / FULL * BAR)))
    cells = ["#" if place < filled else "." for place in range(BAR)]
    cells.insert(one, "|")
    colour = "red" if headroom < 1 else "green" if headroom >= ENOUGH else "yellow"
    least = f" (at least {float(low):.2f})" if low is not None else ""
    return Text.assemble("headroom  [", ("".join(cells), colour), f"] {headroom:.2f}{least}")


_COLUMNS: Final = {"theta": ".3f", "low": ".3f", "gain": "+.1%"}


def _number(figures: Document, name: str, form: str) -> str:
    """Return a figure of the status, rounded; empty without one."""
    return format(float(figures[name]), form) if name in figures else ""


def _levels(decision: Document) -> Table:
    table = grid("LEVEL", ">CARRIES", ">AT LEAST", ">GAIN", "~NOTE")
    for level in decision["levels"]:
        taken = "* " if level["level"] == decision["level"] else "  "
        table.add_row(
            safe(taken + level["level"]),
            *(_number(level, name, form) for name, form in _COLUMNS.items()),
            safe(level.get("note", "")),
        )
    return table


def _proposal(shown: Document, proposal: Document) -> Iterator[Text]:
    parts = [_number(proposal, "gain", "+.1%"), proposal.get("message", "")]
    text = ", ".join(filter(None, [f"{proposal['level']} for {proposal['trigger']}", *parts]))
    yield Text(safe(f"proposed  {text}"), style="bold")
    patch = f'{{"spec":{{"replanning":{{"approve":"{proposal["hash"]}"}}}}}}'
    yield Text(
        safe(f"approve: kubectl patch splan {shown['name']} -n {shown['namespace']} --type=merge "
             f"-p '{patch}'")
    )  # fmt: skip


def _islands(pools: list[dict[str, Any]]) -> Table:
    table = grid("POOL", *(f">{phase.upper()}" for phase in PHASES), ">GPUS")
    for row in pools:
        table.add_row(safe(row["pool"]), *(str(row[name]) for name in (*PHASES, "gpus")))
    if len(pools) > 1:
        sums = [str(sum(row[name] for row in pools)) for name in (*PHASES, "gpus")]
        table.add_row("all", *sums, style="bold")
    return table


def _ago(time: str, now: datetime) -> str:
    return age((now - datetime.fromisoformat(time)).total_seconds())


def watch(name: str, where: ClusterTarget, *, form: str, every: float, once: bool) -> int:
    """Show the plan until Ctrl-C, or once; return 1 if its generation is not served."""
    with ExitStack() as stack:
        watcher = Watcher(name, where, _output(form, once, stack))
        with suppress(KeyboardInterrupt):  # ends the command
            asyncio.run(watcher.run(None if once else every))
    return GOOD if watcher.good else BAD


class Output(Protocol):
    """Where the view is shown."""

    def show(self, shown: Document, note: str) -> None:
        """Show a view; ``note``: a problem with the reading, or empty."""


class Watcher:
    """Reads one plan repeatedly. ``good``: whether it was served at the last read."""

    def __init__(self, name: str, where: ClusterTarget, output: Output) -> None:
        self._name = name
        self._where = where
        self._output = output
        self._content: Mapping[str, Any] | None = None
        self._content_of: tuple[Any, ...] = ()
        self.good = False

    async def run(self, every: float | None) -> None:
        """Read and show every so many seconds until cancelled; None: once.

        Raises:
            InputError: there is no such plan.
            ClusterError: the first request failed.
        """
        async with connected(self._where) as (api, namespace):
            shown = await self._read(api, namespace)
            self._output.show(shown, "")
            while every is not None:
                await asyncio.sleep(every)
                try:
                    shown = await self._read(api, namespace)
                    self._output.show(shown, "")
                except InputError:
                    self.good = False
                    return self._output.show(shown, "the plan was deleted")
                except ClusterError as error:
                    self._output.show(shown, f"out of date, the cluster does not answer: {error}")
        return None

    async def _read(self, api: ApiCluster, namespace: str) -> Document:
        """Return the view of the plan; its table is read again only if it has changed."""
        body = await plan_body(api, namespace, self._name)
        seen = PlanObject.from_body(body)
        summary = seen.status.summary
        version = (seen.uid, summary.get("contentHash"), summary.get("tableSequence"))
        if self._content is None or version != self._content_of:
            self._content, self._content_of = await table_content(api, body), version
        shown = document(seen, self._content)
        self.good = shown["ready"]
        return shown


class LiveScreen:
    """A view on a terminal that is updated in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, shown: Document, note: str) -> None:
        """Update the view: ages change even if nothing else does."""
        self._live.update(screen(shown, datetime.now(UTC), note), refresh=True)


class TextPages:
    """A page of text for each change."""

    def __init__(self) -> None:
        self._last: tuple[Document, str] | None = None

    def show(self, shown: Document, note: str) -> None:
        """Print a page if something has changed."""
        if (shown, note) == self._last:
            return
        out = console()
        if self._last is not None:
            out.print()
        self._last = (shown, note)
        out.print(screen(shown, datetime.now(UTC), note))
        sys.stdout.flush()


class JsonLines:
    """A line of JSON for each change."""

    def __init__(self) -> None:
        self._last: Document | None = None

    def show(self, shown: Document, note: str) -> None:
        """Print a line if something has changed."""
        document = {**shown, "note": note} if note else shown
        if document != self._last:
            self._last = document
            sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
            sys.stdout.flush()


class JsonDocument:
    """One indented JSON document."""

    def show(self, shown: Document, note: str) -> None:
        """Write the document."""
        del note  # a failed read ends the command
        write_document(shown, "json")


def _output(form: str, once: bool, stack: ExitStack) -> Output:
    if form == "json":
        return JsonDocument() if once else JsonLines()
    out = console()
    if once or not out.is_terminal:
        return TextPages()
    live = Live(console=out, auto_refresh=False, vertical_overflow="crop")
    return LiveScreen(stack.enter_context(live))
