"""Tables on a terminal, and progress on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..documents import safe

if TYPE_CHECKING:
    from ..strategy import Progress


PATIENCE = 1.0
"""Seconds of silence before progress is reported [s]."""
REPEAT = 5.0
"""Seconds between plain progress lines [s]."""
PIPE_WIDTH = 120
"""Columns of a table that goes into a file or a pipe."""
GAP = 3
"""Blanks between two columns."""


def console(stream: TextIO | None = None) -> Console:
    """Return a console without markup; output that is not a terminal has ``PIPE_WIDTH`` columns."""
    out = stream or sys.stdout
    width = None if out.isatty() else PIPE_WIDTH
    return Console(file=out, width=width, markup=False, emoji=False, highlight=False)


def grid(*columns: str) -> Table:
    """Return a table with these headings; ``>`` marks columns of numbers, ``~`` those that wrap."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        name = column.lstrip(">~")
        justify: Any = "right" if column.startswith(">") else "left"
        wraps = column.startswith("~")
        table.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold")
    return table


def print_table(
    out: Console, columns: Iterable[str], rows: Iterable[Iterable[object]], gap: int = 1
) -> None:
    """Print a table of escaped cells below ``gap`` empty lines; ``columns`` as in ``grid``."""
    table = grid(*columns)
    for row in rows:
        table.add_row(*map(safe, row))
    out.line(gap)
    out.print(table)


def print_rows(
    out: Console,
    columns: tuple[str, ...],
    begun: Iterable[tuple[str, ...]],
    least: tuple[int, ...],
    rows: Iterable[Iterable[object]],
) -> None:
    """Print a table row by row, each as soon as it is there; ``columns`` as in ``grid``.

    ``begun``: the first cells of every row, which are known before, and ``least``: the least width
    of each column; columns are as wide as these need. A column that wraps takes what is left.
    """
    cells = [tuple(column.lstrip(">~") for column in columns)]
    cells += [(*map(safe, row), *[""] * (len(columns) - len(row))) for row in begun]
    widths = [max(most, *map(len, column)) for most, *column in zip(least, *cells, strict=True)]
    for at, column in enumerate(columns):
        if column.startswith("~"):
            room = out.width - sum(widths) + widths[at] - GAP * (len(columns) - 1)
            widths[at] = max(len(column), min(widths[at], room))
    out.line()
    shows_header = True
    for row in rows:
        table = grid(*columns)
        table.show_header, shows_header = shows_header, False
        for cell, width in zip(table.columns, widths, strict=True):
            cell.min_width = width
        table.add_row(*map(safe, row))
        out.print(table)
        out.file.flush()


def paragraph(out: Console, text: str, indent: int = 0, style: str = "") -> None:
    """Print a long text: on a terminal wrapped at words and indented, elsewhere as one line."""
    if out.is_terminal:
        out.print(Padding(Text(text), (0, 0, 0, indent)), style=style)
    else:
        out.print(" " * indent + text, soft_wrap=True, style=style)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Report progress on standard error if the work takes longer than a second.

    A terminal gets one line that changes; other output gets a line every few seconds.
    """
    started, done = time.monotonic(), threading.Event()
    latest = "starting"

    def line(what: str, share: float) -> str:
        return f"{safe(what)} {share:.0%}" if share > 0 else safe(what)

    def note(what: str, share: float) -> None:
        nonlocal latest
        latest = line(what, share)

    def report() -> None:
        wait = PATIENCE
        while not done.wait(wait):
            sys.stderr.write(f"{time.monotonic() - started:.0f} s: {latest}\n")
            sys.stderr.flush()
            wait = REPEAT

    if quiet:
        yield lambda _what, _share: None
        return
    if sys.stderr.isatty():
        with console(sys.stderr).status("starting") as status:
            yield lambda what, share: status.update(line(what, share))
        return
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield note
    finally:
        done.set()
        reporter.join()
