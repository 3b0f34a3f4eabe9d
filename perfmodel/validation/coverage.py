"""How often nominal 90 % intervals hold what was measured, over all held-out groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel.measurements import engine_points, inference_bench, splitwise
from archipelago.perfmodel.validation.batches import deployment_points
from archipelago.perfmodel.validation.case import Bar, Case, Report
from archipelago.perfmodel.validation.engines import dense_points, latent_points, sparse_points
from archipelago.perfmodel.validation.prompts import prompt_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FILES = (engine_points.FILE, inference_bench.FILE, splitwise.FILE)


def intervals(root: Path) -> Iterator[Report]:
    """All points that have an interval."""
    sources = (dense_points, sparse_points, latent_points, deployment_points, prompt_points)
    found = [point for source in sources for point in source(root) if point.covered is not None]
    yield Report(
        "Intervals of held-out groups",
        Bar(coverage=(0.85, 0.95)),
        "the interval of a group is made from the other groups' residuals, by fits (linearised at "
        "the full fit) that saw neither that group nor the one whose residuals they are",
        {},
        found,
        ("small sets have a Student factor and may cover more than they promise",),
    )


CASES = (Case("intervals", "Intervals: coverage", _FILES, intervals),)
"""The one case of this module."""
