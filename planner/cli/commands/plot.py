"""``archipelago plot``: draw a plan file, or print the same data as text."""

from __future__ import annotations

import sys

from ..plot_text import plot_document, text_plot
from .diff import read_plan
from .files import write_document

DONE = 0


DATA = ("json", "yaml")


def run(path: str, picture: str | None) -> int:
    """Draw the plan into a file, or print it as text or data."""
    if picture in DATA:
        stored = read_plan(path)
        write_document(plot_document(stored.problem, stored.plan), picture)
        return DONE
    if picture is not None:
        from ..plot_marks import require  # noqa: PLC0415  # an optional extra

        require(picture, "-o")  # before the work, not after it
    stored = read_plan(path)
    if picture is None:
        sys.stdout.writelines(f"{line}\n" for line in text_plot(stored.problem, stored.plan))
    else:
        from ..plot import draw  # noqa: PLC0415

        draw(stored.problem, stored.plan, picture)
    return DONE
