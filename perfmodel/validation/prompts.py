"""Prompts alone: prefill times of Splitwise's profile, deployments left out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from archipelago.perfmodel.fits.series import prefill_benches, prefill_problem
from archipelago.perfmodel.measurements.splitwise import FILE, load
from archipelago.perfmodel.validation.case import Bar, Case, Report
from archipelago.perfmodel.validation.heldout import Line, split_points

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archipelago.perfmodel.validation.case import Point

_PROFILED = 128.0
"""Tokens of output in the sweeps over prompts and batches; other outputs repeat one prompt."""


@cache
def prompt_points(root: Path) -> tuple[Point, ...]:
    """Every prefill time by a fit without its model and parallelism."""
    rows = load(root).only(lambda run: run.outputs == _PROFILED)
    found: list[Point] = []
    for name in sorted({run.accelerator for run in rows}):
        own = [run for run in rows if run.accelerator == name]
        problem = prefill_problem(own)
        models = [b.deployment.model.name for b in prefill_benches(own) for _ in b.groups]
        line = Line(name, "splitwise's", models, "prefill", "prompt time")
        found += split_points(problem, problem.groups, line)
    return tuple(found)


def splitwise(root: Path) -> Iterator[Report]:
    """Llama-2-70B and BLOOM-176B on DGX-A100 and DGX-H100."""
    yield Report(
        "Prefill: Splitwise",
        Bar(median=0.15, p90=0.30),
        "a model on so many GPUs left out; one fit per accelerator, no priors from the other",
        load(root).dropped,
        prompt_points(root),
        ("an engine of 2023, whose FP16 prefill reaches 0.26 to 0.66 of the peak",),
    )


CASES = (Case("splitwise", "Prefill: Splitwise", (FILE,), splitwise),)
"""The one case of this module."""
