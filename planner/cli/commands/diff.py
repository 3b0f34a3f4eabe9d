"""``archipelago diff``: what changes from one plan file to another."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console

from ...documents import Document, canonical, safe
from ...explain.diff import PlanDiff, compare
from ...formats.plan_file import Stored, read_stored
from ...problem import DEFAULT_CLASS
from ..show_plan import phrase
from ..terminal import console, print_table
from .files import errors_of, parse_document, read_text, write_document

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
    return 0 if difference.same else 1


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
    islands = []
    for item in difference.islands:
        kind = item.kind
        island: Document = {
            "change": item.word,
            "model": kind.model,
            "pool": kind.pool,
            "phase": kind.phase,
            "gpus": kind.gpus,
            "parallelism": asdict(kind.parallelism),
            "maxBatch": kind.max_batch,
        }
        if kind.domain_class != DEFAULT_CLASS:
            island["domainClass"] = kind.domain_class
        if kind.parts:
            keys = ("pool", "gpus", "layers")
            island["parts"] = [dict(zip(keys, part, strict=True)) for part in kind.parts]
        islands.append(island | {"old": item.old, "new": item.new, "relocated": item.relocated})
    pools = [
        {
            "name": pool.pool,
            "count": {"old": pool.count[0], "new": pool.count[1]},
            "used": {"old": pool.used[0], "new": pool.used[1]},
        }
        for pool in difference.pools
    ]
    total = asdict(difference.total)
    total.pop("model")
    document: Document = canonical(
        {
            "kind": "PlanDiff",
            "same": difference.same,
            "asked": [asdict(item) for item in difference.fields],
            "figures": [{**asdict(f), "change": f.change} for f in difference.figures],
            "pools": pools,
            "islands": islands,
            "moved": [asdict(item) for item in difference.moved],
            "movedTotal": total,
        }
    )
    return document


def show_diff(out: Console, difference: PlanDiff) -> None:
    """Print the differences; one line if there are none."""
    if difference.same:
        out.print("no difference: same problem, same islands on the same nodes, same routes")
        return
    fields = difference.fields
    if fields:
        rows = ((item.path, _value(item.old), _value(item.new)) for item in fields[:SHOWN])
        print_table(out, ("FIELD", "OLD", "NEW"), rows, gap=0)
    else:
        out.print("the problem is the same")
    if len(fields) > SHOWN:
        out.print(f"... and {phrase(len(fields) - SHOWN, 'field')} more; -o json lists all")

    figures = []
    for figure in difference.figures:
        change = "-"
        if figure.change is not None:
            share = f" ({figure.change / figure.old:+.2%})" if figure.old else ""
            change = f"{figure.change:+,.4g}{share}" if figure.change else "0"
        ends = ("-" if end is None else f"{end:,.6g}" for end in (figure.old, figure.new))
        figures.append((figure.name, *ends, change, figure.unit))
    print_table(out, ("FIGURE", ">OLD", ">NEW", ">CHANGE", "UNIT"), figures)

    pools = []
    for pool in difference.pools:
        more = pool.used[1] - pool.used[0]
        counts = (f"{count:,}" for count in (*pool.count, *pool.used))
        pools.append((pool.pool, *counts, f"{more:+,}" if more else "0"))
    print_table(out, ("POOL", ">GPUS OLD", ">NEW", ">USED OLD", ">NEW", ">CHANGE"), pools)

    _islands(out, difference)
    moves = (
        (item.model, *(f"{share:.2%}" for share in (item.prefill, item.decode, item.either)))
        for item in (*difference.moved, difference.total)
    )
    print_table(out, ("REQUESTS THAT MOVE", ">PREFILL", ">DECODE", ">EITHER"), moves)


def _value(value: Any) -> str:  # noqa: ANN401  # any JSON value
    text = "-" if value is None else safe(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _islands(out: Console, difference: PlanDiff) -> None:
    changes = [item for item in difference.islands if item.word != "same"]
    if not changes:
        out.print("\nislands: the same, on the same nodes")
        return
    classes = any(item.kind.domain_class != DEFAULT_CLASS for item in changes)
    heads = ("PHASE", ">GPUS", "PARALLELISM", ">BATCH", ">OLD", ">NEW", ">OTHER NODES")
    rows = (
        (
            item.word,
            item.kind.model,
            item.kind.pool,
            *[item.kind.domain_class] * classes,
            item.kind.phase,
            item.kind.size,
            item.kind.parallelism,
            item.kind.max_batch if item.kind.max_batch > 1 else "-",
            item.old,
            item.new,
            item.relocated,
        )
        for item in changes
    )
    print_table(out, ("ISLANDS", "MODEL", "POOL", *["CLASS"] * classes, *heads), rows)
