"""Points of held-out groups with their intervals: what the cases of whole engines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from archipelago.perfmodel.calibration.fit import Fitted, Problem, fit_engine
from archipelago.perfmodel.calibration.held_out import Linearised, held_out
from archipelago.perfmodel.calibration.intervals import half_width
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Point

MILLISECONDS = 1e3

CHOSEN = (
    "the free values, their first priors, the weight of a deployment and the cache type were "
    "chosen after looking at held-out results of these sets; there is no third set to confirm "
    "them"
)
"""What every report on fits to these data has to say."""


@dataclass(frozen=True)
class Line:
    """What the points of one set say about themselves; ``models`` of each row."""

    accelerator: str
    engine: str
    models: Sequence[str]
    phase: str
    metric: str


def split_points(problem: Problem, groups: FloatArray, line: Line) -> list[Point]:
    """Return every row predicted by a fit that did not see its group, with its interval.

    The interval of a group is made from the other groups' residuals, held out as well, by fits
    that saw neither: nothing of the group is in it.
    """
    full = fit_engine(problem)
    residuals = held_out(problem, groups, full)
    widths = _widths(full, groups)
    return points(problem, residuals, groups, line, widths)


def points(
    problem: Problem,
    residuals: FloatArray,
    groups: FloatArray,
    line: Line,
    widths: FloatArray | None = None,
) -> list[Point]:
    """Return the points from log(predicted / measured); ``widths``: half-widths in logarithms."""
    measured = MILLISECONDS * problem.measured
    predicted = measured * np.exp(residuals)
    spread = np.full(len(measured), np.nan) if widths is None else widths
    name = f"{line.accelerator} {line.engine}"
    return [
        Point(
            group=f"{name} {group}",
            accelerator=line.accelerator,
            engine=line.engine,
            model=model,
            phase=line.phase,
            metric=line.metric,
            predicted=float(guess),
            measured=float(truth),
            unit="ms",
            low=None if np.isnan(width) else float(guess * np.exp(-width)),
            high=None if np.isnan(width) else float(guess * np.exp(width)),
        )
        for group, model, guess, truth, width in zip(
            groups, line.models, predicted, measured, spread, strict=True
        )
    ]


def _widths(full: Fitted, groups: FloatArray) -> FloatArray:
    widths = np.full(len(groups), np.nan)
    names = np.unique(groups)
    if len(names) < 3:  # noqa: PLR2004  # two others at least, or there is nothing to learn from
        return widths
    beside = Linearised(full, groups)
    for name in names:
        widths[groups == name] = half_width(*beside.held_out_beside(name))
    return widths
