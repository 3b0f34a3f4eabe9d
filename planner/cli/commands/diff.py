"""``archipelago diff``: what changes from one plan file to another."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from ...documents import Document, canonical, safe
from ...explain.diff import Figure, PlanDiff, TemplateKey, compare
from ...formats.plan_file import Stored, read_stored
from ...problem import DEFAULT_CLASS
from ..show_plan import phrase
from ..terminal import console, grid
from .files import errors_of, parse_document, read_text, write_document

SAME, DIFFER = 0, 1
SHOWN = 20
"""Changed fields of the problem that the table prints; ``-o json`` has all."""
LONGEST = 40
"""Characters of a changed value that the table prints."""


def run(old: str, new: str, form: str) -> int:
    """Compare two plan files; 1 if they differ, as diff does."""
    difference = compare(read_plan(old), read_plan(new))
    if form == "table":
        show_diff(console(), difference)
    else:
        write_document(diff_document(difference), form)
    return SAME if difference.same else DIFFER


def read_plan(path: str) -> Stored:
    """Return the plan of a file.

    Raises:
        PlanFileError: it is no plan file; the message names the file and the place.
    """
    document = parse_document(read_text(path), path)
    with errors_of(path):
        return read_stored(document)


def diff_document(difference: PlanDiff) -> Document:
    """Return the comparison for JSON; docs/reference/cli.md describes it."""
    document: Document = canonical(
        {
            "kind": "PlanDiff",
            "same": difference.same,
            "asked": [asdict(item) for item in difference.asked],
            "figures": [{**asdict(f), "change": f.change} for f in difference.figures],
            "pools": [
                {"name": p.pool, "count": _pair(*p.count), "used": _pair(*p.used)}
                for p in difference.pools
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
                for item in difference.islands
            ],
            "moved": [asdict(item) for item in difference.moved],
            "movedTotal": {
                "prefill": difference.total.prefill,
                "decode": difference.total.decode,
                "either": difference.total.either,
            },
        }
    )
    return document


def _where(kind: TemplateKey) -> Document:
    """Return the domain class and the parts, for islands that have them."""
    fields: Document = {}
    if kind.domain_class != DEFAULT_CLASS:
        fields["domainClass"] = kind.domain_class
    if kind.parts:
        keys = ("pool", "gpus", "layers")
        fields["parts"] = [dict(zip(keys, part, strict=True)) for part in kind.parts]
    return fields


def _pair(old: int, new: int) -> dict[str, int]:
    return {"old": old, "new": new}


def show_diff(out: Console, difference: PlanDiff) -> None:
    """Print the differences; one line if there are none."""
    if difference.same:
        out.print("no difference: same problem, same islands on the same nodes, same routes")
        return
    _asked(out, difference)
    _figures(out, difference.figures)
    _pools(out, difference)
    _islands(out, difference)
    _moved(out, difference)


def _asked(out: Console, difference: PlanDiff) -> None:
    if not difference.asked:
        out.print("asked: the same problem")
        return
    table = grid("ASKED", "OLD", "NEW")
    for item in difference.asked[:SHOWN]:
        table.add_row(safe(item.path), _value(item.old), _value(item.new))
    out.print(table)
    if len(difference.asked) > SHOWN:
        out.print(
            f"... and {phrase(len(difference.asked) - SHOWN, 'field')} more; -o json lists all"
        )


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


def _pools(out: Console, difference: PlanDiff) -> None:
    table = grid("POOL", ">GPUS OLD", ">NEW", ">USED OLD", ">NEW", ">CHANGE")
    for pool in difference.pools:
        change = pool.used[1] - pool.used[0]
        cells = (*pool.count, *pool.used)
        table.add_row(
            safe(pool.pool), *(f"{c:,}" for c in cells), f"{change:+,}" if change else "0"
        )
    out.print()
    out.print(table)


def _islands(out: Console, difference: PlanDiff) -> None:
    rows = [item for item in difference.islands if item.word != "same"]
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


def _moved(out: Console, difference: PlanDiff) -> None:
    table = grid("REQUESTS THAT MOVE", ">PREFILL", ">DECODE", ">EITHER")
    for item in (*difference.moved, difference.total):
        shares = (item.prefill, item.decode, item.either)
        table.add_row(safe(item.model), *(f"{share:.2%}" for share in shares))
    out.print()
    out.print(table)
