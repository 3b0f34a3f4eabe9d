"""A plan at work on one screen: from what was read to a document, and from that to lines; pure.

What it shows of re-planning is the last decision in the status. Whatever comes from the cluster is
printed escaped.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.text import Text

from archipelago.operator.conditions import ConditionType, Truth
from archipelago.operator.inspection import age, status_document
from archipelago.planner.canonical import canonical
from archipelago.planner.terminal import grid
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType
    from rich.table import Table

    from archipelago.operator.observe import SeenPlan
    from archipelago.planner.canonical import Document

PHASES: Final = ("prefill", "decode", "mixed")
BAR: Final = 40
"""Characters of the headroom's bar."""
FULL: Final = 2.0
"""Headroom at the end of the bar; more is as good."""
ENOUGH: Final = 1.25
"""Headroom that is shown green: what the default target of 0.8 asks for."""


def document(seen: SeenPlan, content: Mapping[str, Any] | None) -> Document:
    """What is shown, as JSON; docs/kubectl-plugin.md describes it.

    Args:
        seen: the plan as it was read.
        content: of its routing table; None where there is none, or it could not be read.
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
    """Islands of each pool by phase, and their GPUs."""
    found: dict[str, Counter[str]] = {}
    for island in content.get("islands", ()):
        counts = found.setdefault(island["pool"], Counter())
        counts[island["phase"]] += 1
        counts["gpus"] += island["gpus"]
    columns = (*PHASES, "gpus")
    return [
        {"pool": pool, **{column: counts[column] for column in columns}}
        for pool, counts in sorted(found.items())
    ]


def screen(shown: Document, now: datetime, note: str = "") -> Group:
    """All of it, from top to bottom; ``note``: what is wrong with the reading itself."""
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
        yield Text("re-planning: nothing was decided yet but to keep the table")
    if shown["islands"]:
        yield Text()
        yield _islands(shown["islands"])


def _headline(shown: Document) -> Text:
    summary = shown["summary"]
    behind = shown["observedGeneration"] < shown["generation"]
    seen = f" (the operator has seen {shown['observedGeneration']})" if behind else ""
    told = [f"{shown['namespace']}/{shown['name']}: generation {shown['generation']}{seen}"]
    told += [f"{summary['throughput']} req/s"] if "throughput" in summary else []
    told += [f"{summary['costPerHour']} $/h"] if "costPerHour" in summary else []
    told += [f"table {shown['table']['sequence']}"] if shown["table"] else []
    return Text(safe(", ".join(told)), style="bold")


def _conditions(shown: Document, now: datetime) -> Table:
    """All of them; the words of those that want attention."""
    table = grid("CONDITION", "STATUS", "REASON", "SINCE", "~MESSAGE")
    for item in shown["conditions"]:
        wanted = Truth.FALSE if item["type"] == ConditionType.SUSPENDED else Truth.TRUE
        good = item["status"] == wanted
        table.add_row(
            safe(item["type"]),
            item["status"],
            safe(item["reason"]),
            _ago(item["since"], now),
            "" if good else safe(item["message"]),
            style="" if good or item["status"] == Truth.UNKNOWN else "yellow",
        )
    return table


def _decision(shown: Document, decision: Document, now: datetime) -> Iterator[RenderableType]:
    """Headroom, what was done last, what each rung would have reached, what waits."""
    if "headroom" in decision:
        yield bar(float(decision["headroom"]), decision.get("headroomLow"))
    if "regret" in decision:
        yield Text(f"regret    {float(decision['regret']):.1%} below the best rung")
    told = f"{decision['trigger']}: {decision['rung']}: {decision['message']}"
    yield Text(safe(f"decided   {_ago(decision['time'], now)} ago, {told}"))
    if decision.get("rungs"):
        yield Text()
        yield _rungs(decision)
    if decision.get("proposal"):
        yield Text()
        yield from _proposal(shown, decision["proposal"])


def bar(headroom: float, low: str | None) -> Text:
    """A line with the headroom as a bar, and a mark where the demand just fits."""
    one = round(BAR / FULL)
    filled = min(BAR, max(0, round(headroom / FULL * BAR)))
    cells = ["#" if place < filled else "." for place in range(BAR)]
    cells.insert(one, "|")
    colour = "red" if headroom < 1 else "green" if headroom >= ENOUGH else "yellow"
    least = f" (at least {float(low):.2f})" if low is not None else ""
    return Text.assemble("headroom  [", ("".join(cells), colour), f"] {headroom:.2f}{least}")


_COLUMNS: Final = {"theta": ".3f", "low": ".3f", "gain": "+.1%"}


def _number(found: Document, name: str, form: str) -> str:
    """A figure of the status, rounded; empty where there is none."""
    return format(float(found[name]), form) if name in found else ""


def _rungs(decision: Document) -> Table:
    table = grid("RUNG", ">CARRIES", ">AT LEAST", ">GAIN", "~NOTE")
    for rung in decision["rungs"]:
        taken = "* " if rung["rung"] == decision["rung"] else "  "
        table.add_row(
            safe(taken + rung["rung"]),
            *(_number(rung, name, form) for name, form in _COLUMNS.items()),
            safe(rung.get("note", "")),
        )
    return table


def _proposal(shown: Document, proposal: Document) -> Iterator[Text]:
    parts = [_number(proposal, "gain", "+.1%"), proposal.get("message", "")]
    told = ", ".join(filter(None, [f"{proposal['rung']} for {proposal['trigger']}", *parts]))
    yield Text(safe(f"proposed  {told}"), style="bold")
    patch = f'{{"spec":{{"replanning":{{"approve":"{proposal["hash"]}"}}}}}}'
    yield Text(
        safe(f"approve: kubectl patch splan {shown['name']} -n {shown['namespace']} --type=merge "
             f"-p '{patch}'")
    )  # fmt: skip


def _islands(found: list[dict[str, Any]]) -> Table:
    table = grid("POOL", *(f">{phase.upper()}" for phase in PHASES), ">GPUS")
    for row in found:
        table.add_row(safe(row["pool"]), *(str(row[name]) for name in (*PHASES, "gpus")))
    if len(found) > 1:
        sums = [str(sum(row[name] for row in found)) for name in (*PHASES, "gpus")]
        table.add_row("all", *sums, style="bold")
    return table


def _ago(time: str, now: datetime) -> str:
    return age((now - datetime.fromisoformat(time)).total_seconds())
