"""``archipelago plot``: draw a plan file, or print the same data as text."""

from __future__ import annotations

import sys

from ..plot_marks import require
from ..plot_text import plot_document, text_plot
from .diff import read_plan
from .files import write_document


def run(path: str, picture: str | None) -> int:
    """Draw the plan into a file, or print it as text or data."""
    if picture not in (None, "json", "yaml"):
        require(picture, "-o")  # before the work, not after it
    stored = read_plan(path)
    if picture is None:
        sys.stdout.writelines(f"{line}\n" for line in text_plot(stored.problem, stored.plan))
    elif picture in ("json", "yaml"):
        write_document(plot_document(stored.problem, stored.plan), picture)
    else:
        from ..plot import draw  # noqa: PLC0415  # an optional extra

        draw(stored.problem, stored.plan, picture)
    return 0
