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
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from archipelago.planner.cli.commands.files import write_document
from archipelago.planner.cli.terminal import console, grid
from archipelago.planner.documents import Document, canonical, safe
from archipelago.planner.errors import InputError

from ..cluster.client import ApiCluster
from ..errors import ClusterError
from ..resources.objects import PlanObject
from .read import ClusterTarget, connected, plan_body, table_content
from .status import BAD, GOOD, ago, condition_table, headline, status_document

COLUMNS: Final = ("prefill", "decode", "mixed", "gpus")
BAR: Final = 40
"""Characters of the headroom's bar."""
FULL: Final = 2.0
"""Headroom at the end of the bar."""
ENOUGH: Final = 1.25
"""Headroom that is shown green: 1 / 0.8, the default target."""


def document(plan: PlanObject, content: Mapping[str, Any] | None) -> Document:
    """Return the view as JSON; docs/reference/kubectl-splan.md describes it.

    Args:
        plan: As it was read.
        content: of its routing table; None without one, or if it cannot be read.
    """
    view: Document = canonical(
        {
            **status_document(plan),
            "kind": "PlanWatch",
            "replanning": dict(plan.status.last_decision) or None,
            "islands": None if content is None else islands(content),
        }
    )
    return view


def islands(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the islands of each pool by phase, and their GPUs."""
    pools: dict[str, Counter[str]] = {}
    for island in content.get("islands", ()):
        counts = pools.setdefault(island["pool"], Counter())
        counts[island["phase"]] += 1
        counts["gpus"] += island["gpus"]
    return [
        {"pool": pool, **{column: counts[column] for column in COLUMNS}}
        for pool, counts in sorted(pools.items())
    ]


def screen(view: Document, now: datetime, note: str = "") -> Group:
    """Return the view for a terminal; ``note``: a problem with the reading itself."""
    summary, title = view["summary"], [headline(view)]
    title += [f"{summary['throughput']} req/s"] if "throughput" in summary else []
    title += [f"{summary['costPerHour']} $/h"] if "costPerHour" in summary else []
    title += [f"table {view['table']['sequence']}"] if view["table"] else []
    parts: list[RenderableType] = [Text(safe(", ".join(title)), style="bold")]
    parts += [Text(safe(note), style="bold red")] if note else []
    parts += [Text(), condition_table(view, now, brief=True), Text()]
    if view["replanning"]:
        parts += _decision(view, view["replanning"], now)
    else:
        parts.append(Text("replanning: no decision yet, except to keep the table"))

    if pools := view["islands"]:
        table = grid("POOL", *(f">{column.upper()}" for column in COLUMNS))
        for row in pools:
            table.add_row(safe(row["pool"]), *(str(row[column]) for column in COLUMNS))
        if len(pools) > 1:
            sums = [str(sum(row[column] for row in pools)) for column in COLUMNS]
            table.add_row("all", *sums, style="bold")
        parts += [Text(), table]
    return Group(*parts)


def _decision(view: Document, decision: Document, now: datetime) -> Iterator[RenderableType]:
    """Yield the headroom, the last action, the headroom of each level, and the proposal."""
    if "headroom" in decision:
        yield bar(float(decision["headroom"]), decision.get("headroomLow"))
    if "regret" in decision:
        yield Text(f"regret    {float(decision['regret']):.1%} below the best level")
    action = f"{decision['trigger']}: {decision['level']}: {decision['message']}"
    yield Text(safe(f"decided   {ago(decision['time'], now)} ago, {action}"))
    if decision.get("levels"):
        table = grid("LEVEL", ">CARRIES", ">AT LEAST", ">GAIN", "~NOTE")
        for level in decision["levels"]:
            mark = "* " if level["level"] == decision["level"] else "  "
            figures = [_number(level, name, form) for name, form in _FIGURES.items()]
            table.add_row(safe(mark + level["level"]), *figures, safe(level.get("note", "")))
        yield Text()
        yield table
    if proposal := decision.get("proposal"):
        title = f"{proposal['level']} for {proposal['trigger']}"
        details = (_number(proposal, "gain", "+.1%"), proposal.get("message", ""))
        yield Text()
        text = ", ".join(filter(None, (title, *details)))
        yield Text(safe(f"proposed  {text}"), style="bold")
        patch = f'{{"spec":{{"replanning":{{"approve":"{proposal["hash"]}"}}}}}}'
        command = f"kubectl patch splan {view['name']} -n {view['namespace']} --type=merge"
        yield Text(safe(f"approve: {command} -p '{patch}'"))


def bar(headroom: float, low: str | None) -> Text:
    """Return the headroom as a bar, with a mark at 1."""
    filled = min(BAR, max(0, round(headroom / FULL * BAR)))
    cells = ["#" if place < filled else "." for place in range(BAR)]
    cells.insert(round(BAR / FULL), "|")
    colour = "red" if headroom < 1 else "green" if headroom >= ENOUGH else "yellow"
    least = f" (at least {float(low):.2f})" if low is not None else ""
    return Text.assemble("headroom  [", ("".join(cells), colour), f"] {headroom:.2f}{least}")


_FIGURES: Final = {"theta": ".3f", "low": ".3f", "gain": "+.1%"}
"""Figures of a level, and how they are written."""


def _number(figures: Document, name: str, form: str) -> str:
    """Return a figure of the status, rounded; empty without one."""
    return format(float(figures[name]), form) if name in figures else ""


def watch(name: str, target: ClusterTarget, *, form: str, every: float, once: bool) -> int:
    """Show the plan until Ctrl-C, or once; return 1 if its generation is not served."""
    out = console()
    with ExitStack() as stack:
        live = None
        if form == "table" and out.is_terminal and not once:
            live = Live(console=out, auto_refresh=False, vertical_overflow="crop")
            stack.enter_context(live)
        watcher = Watcher(name, target, Output(form, once, live))
        with suppress(KeyboardInterrupt):  # ends the command
            asyncio.run(watcher.run(None if once else every))
    return GOOD if watcher.good else BAD


class Output:
    """Where the view is shown: a terminal that is updated, or a page or line for each change."""

    def __init__(self, form: str, once: bool, live: Live | None) -> None:
        self._form = form
        self._once = once
        self._live = live
        self._last: Document | None = None

    def show(self, view: Document, note: str = "") -> None:
        """Show a view; ``note``: a problem with the reading, or empty."""
        now = datetime.now(UTC)
        if self._live:  # ages change even if nothing else does
            return self._live.update(screen(view, now, note), refresh=True)
        document = {**view, "note": note} if note else view
        if document == self._last:
            return None
        if self._form == "json" and self._once:
            write_document(document, "json")
        elif self._form == "json":
            sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
        else:
            out = console()
            if self._last:
                out.print()
            out.print(screen(view, now, note))
        self._last = document
        sys.stdout.flush()
        return None


class Watcher:
    """Reads one plan repeatedly. ``good``: whether it was served at the last read."""

    def __init__(self, name: str, target: ClusterTarget, output: Output) -> None:
        self._name = name
        self._target = target
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
        async with connected(self._target) as (api, namespace):
            view = await self._read(api, namespace)
            self._output.show(view)
            while every is not None:
                await asyncio.sleep(every)
                try:
                    view = await self._read(api, namespace)
                    self._output.show(view)
                except InputError:
                    self.good = False
                    return self._output.show(view, "the plan was deleted")
                except ClusterError as error:
                    self._output.show(view, f"out of date, the cluster does not answer: {error}")
        return None

    async def _read(self, api: ApiCluster, namespace: str) -> Document:
        """Return the view of the plan; its table is read again only if it has changed."""
        body = await plan_body(api, namespace, self._name)
        plan = PlanObject.from_body(body)
        summary = plan.status.summary
        version = (plan.uid, summary.get("contentHash"), summary.get("tableSequence"))
        if self._content is None or version != self._content_of:
            self._content, self._content_of = await table_content(api, body), version
        view = document(plan, self._content)
        self.good = view["ready"]
        return view
