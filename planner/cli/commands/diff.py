"""``archipelago diff``: what changes from one plan file to another."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from archipelago.planner.canonical import canonical
from archipelago.planner.commands.files import parse_document, read_text, write_document
from archipelago.planner.diff import PlanDiff, compare
from archipelago.planner.errors import PlanFileError
from archipelago.planner.problem import DEFAULT_CLASS
from archipelago.planner.render import phrase
from archipelago.planner.stored import Stored, read_stored
from archipelago.planner.terminal import console, grid
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from rich.console import Console

    from archipelago.planner.canonical import Document
    from archipelago.planner.diff import Figure, Kind

SAME, DIFFER = 0, 1
SHOWN = 20
"""Changed fields of the problem that the table prints; ``-o json`` has all."""
LONGEST = 40
"""Characters of a changed value that the table prints."""


def run(old: str, new: str, form: str) -> int:
    """Compare two plan files; 1 where they differ, as diff does."""
    found = compare(read_plan(old), read_plan(new))
    if form == "table":
        show_diff(console(), found)
    else:
        write_document(diff_document(found), form)
    return SAME if found.same else DIFFER


def read_plan(path: str) -> Stored:
    """The plan of a file.

    Raises:
        PlanFileError: it is not one; the message names the file and the place.
    """
    document = parse_document(read_text(path), path)
    try:
        return read_stored(document)
    except PlanFileError as error:
        lines = str(error).splitlines()
        raise PlanFileError("\n".join(f"{path}: {line}" for line in lines)) from None


def diff_document(found: PlanDiff) -> Document:
    """The comparison as JSON; docs/questions.md describes it."""
    document: Document = canonical(
        {
            "kind": "PlanDiff",
            "same": found.same,
            "asked": [asdict(item) for item in found.asked],
            "figures": [{**asdict(f), "change": f.change} for f in found.figures],
            "pools": [
                {"name": p.pool, "count": _pair(*p.count), "used": _pair(*p.used)}
                for p in found.pools
            ],
            "islands": [
                {
                    "change": item.word,
                    "model": item.kind.model,
                    "pool": item.kind.pool,
                    "phase": str(item.kind.phase),
                    "gpus": item.kind.gpus,
                    "parallelism": asdict(item.kind.parallelism),
                    "maxBatch": item.kind.max_batch,
                    **_where(item.kind),
                    "old": item.old,
                    "new": item.new,
                    "relocated": item.relocated,
                }
                for item in found.islands
            ],
            "moved": [asdict(item) for item in found.moved],
            "movedTotal": {
                "prefill": found.total.prefill,
                "decode": found.total.decode,
                "either": found.total.either,
            },
        }
    )
    return document


def _where(kind: Kind) -> Document:
    """What only some islands have: a class of their own, parts of several pools."""
    found: Document = {}
    if kind.domain_class != DEFAULT_CLASS:
        found["domainClass"] = kind.domain_class
    if kind.parts:
        keys = ("pool", "gpus", "layers")
        found["parts"] = [dict(zip(keys, part, strict=True)) for part in kind.parts]
    return found


def _pair(old: int, new: int) -> dict[str, int]:
    return {"old": old, "new": new}


def show_diff(out: Console, found: PlanDiff) -> None:
    """Print what differs; one line where nothing does."""
    if found.same:
        out.print("no difference: same problem, same islands on the same nodes, same routes")
        return
    _asked(out, found)
    _figures(out, found.figures)
    _pools(out, found)
    _islands(out, found)
    _moved(out, found)


def _asked(out: Console, found: PlanDiff) -> None:
    if not found.asked:
        out.print("asked: the same problem")
        return
    table = grid("ASKED", "OLD", "NEW")
    for item in found.asked[:SHOWN]:
        table.add_row(safe(item.path), _value(item.old), _value(item.new))
    out.print(table)
    if len(found.asked) > SHOWN:
        out.print(f"... and {phrase(len(found.asked) - SHOWN, 'field')} more; -o json lists all")


def _value(value: Any) -> str:  # noqa: ANN401  # any JSON value
    text = "-" if value is None else safe(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _figures(out: Console, figures: tuple[Figure, ...]) -> None:
    table = grid("FIGURE", ">OLD", ">NEW", ">CHANGE", "UNIT")
    for item in figures:
        table.add_row(
            safe(item.name), _number(item.old), _number(item.new), _change(item), item.unit
        )
    out.print()
    out.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _change(item: Figure) -> str:
    if item.change is None:
        return "-"
    share = f" ({item.change / item.old:+.2%})" if item.old else ""
    return f"{item.change:+,.4g}{share}" if item.change else "0"


def _pools(out: Console, found: PlanDiff) -> None:
    table = grid("POOL", ">GPUS OLD", ">NEW", ">USED OLD", ">NEW", ">CHANGE")
    for pool in found.pools:
        change = pool.used[1] - pool.used[0]
        cells = (*pool.count, *pool.used)
        table.add_row(
            safe(pool.pool), *(f"{c:,}" for c in cells), f"{change:+,}" if change else "0"
        )
    out.print()
    out.print(table)


def _islands(out: Console, found: PlanDiff) -> None:
    rows = [item for item in found.islands if item.word != "same"]
    out.print()
    if not rows:
        out.print("islands: the same, on the same nodes")
        return
    classes = any(item.kind.domain_class != DEFAULT_CLASS for item in rows)
    heads = ("PHASE", ">GPUS", "PARALLELISM", ">BATCH", ">OLD", ">NEW")
    table = grid("ISLANDS", "MODEL", "POOL", *["CLASS"] * classes, *heads, ">OTHER NODES")
    for item in rows:
        kind = item.kind
        table.add_row(
            item.word,
            safe(kind.model),
            safe(kind.pool),
            *[safe(kind.domain_class)] * classes,
            str(kind.phase),
            kind.size,
            str(kind.parallelism),
            str(kind.max_batch) if kind.max_batch > 1 else "-",
            str(item.old),
            str(item.new),
            str(item.relocated),
        )
    out.print(table)


def _moved(out: Console, found: PlanDiff) -> None:
    table = grid("REQUESTS THAT MOVE", ">PREFILL", ">DECODE", ">EITHER")
    for item in (*found.moved, found.total):
        shares = (item.prefill, item.decode, item.either)
        table.add_row(safe(item.model), *(f"{share:.2%}" for share in shares))
    out.print()
    out.print(table)
