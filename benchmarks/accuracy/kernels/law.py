"""Laws of kernel times and their fit: positive parameters, errors of the logarithm, groups out.

``fit_law`` is a least-squares fit of log(predicted / measured) with a robust loss (residuals beyond
10 % count linearly), by scipy's trust-region method within bounds, each band of sizes counting
alike. ``held_out`` leaves whole groups of shapes out, so that no figure is of a shape that the fit
has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from archipelago.perfmodel.calibration.intervals import half_width
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Point

Columns: TypeAlias = "Mapping[str, FloatArray]"
"""What a law reads of every row: shapes, and index of the accelerator in SI units."""

CHOSEN = (
    "the form of the law and the bounds of its parameters were chosen with all groups; their "
    "values were fitted without the held-out group"
)
"""What every report of a law has to say."""

ROWS = 2500
"""Rows that a fit looks at, evenly taken: more change the parameters by less than their noise."""

_FEW_GROUPS = 40
"""Up to so many groups, an interval leaves out one at a time."""

_PULL = 0.1
"""Share of a sample's weight that a parameter's start has, one spread away."""

_SOFT = 0.1
"""Relative error from which residuals count linearly, not squared."""


@dataclass(frozen=True)
class Parameter:
    """A positive number of a law: where a fit starts, and between which bounds it stays.

    ``spread``: how far it strays from its start [log] if the times say nothing; 0 for anywhere.
    """

    name: str
    unit: str
    start: float
    low: float
    high: float
    spread: float = 0.0


@dataclass(frozen=True)
class Law:
    """The time of one class of operator as a formula: ``seconds(columns, values)`` [s].

    ``bands``: inner edges of the sizes [tokens] by which errors are shown; none for one band.
    """

    name: str
    parameters: tuple[Parameter, ...]
    seconds: Callable[[Columns, FloatArray], FloatArray]
    bands: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Measured kernels of one variant on one accelerator and engine.

    ``groups``: what is left out together, by row. ``seconds``: measured times, shape (rows,).
    ``size``: what the law's bands are of, by row [tokens].
    """

    accelerator: str
    engine: str
    variant: str
    columns: Columns
    seconds: FloatArray
    groups: NDArray[np.str_]
    size: FloatArray | None = None

    def only(self, rows: NDArray[np.bool_]) -> Sample:
        """Return the chosen rows."""
        size = None if self.size is None else self.size[rows]
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(
            self, columns=columns, seconds=self.seconds[rows], groups=self.groups[rows], size=size
        )


def fit_law(
    law: Law, columns: Columns, seconds: FloatArray, band: NDArray[np.intp] | None = None
) -> FloatArray:
    """Return values of the law's parameters, in their order; each ``band`` of rows counts alike."""
    rows = _evenly(len(seconds))
    some = {name: column[rows] for name, column in columns.items()}
    target = np.log(seconds[rows])
    band = np.zeros(len(rows), dtype=np.intp) if band is None else band[rows]
    weight = np.sqrt(len(band) / (len(np.unique(band)) * np.bincount(band)[band]))

    def residuals(logarithms: FloatArray) -> FloatArray:
        left = weight * (np.log(law.seconds(some, np.exp(logarithms))) - target)
        return np.append(left, pull * (logarithms - start))

    start, low, high = (
        np.log([getattr(parameter, end) for parameter in law.parameters])
        for end in ("start", "low", "high")
    )
    spread = np.array([parameter.spread for parameter in law.parameters])
    pull = np.where(spread > 0, _SOFT * _PULL * np.sqrt(len(rows)) / np.maximum(spread, 1e-9), 0.0)
    solution = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT)
    return np.asarray(np.exp(solution.x))


def held_out(law: Law, sample: Sample, folds: int) -> FloatArray:
    """Return times of every row by a fit to rows of other groups only [s], shape (rows,)."""
    fold = fold_of(sample.groups, folds)
    predicted = np.empty_like(sample.seconds)
    for out in np.unique(fold):
        unseen = fold == out
        predicted[unseen] = law.seconds(
            sample.only(unseen).columns, fitted(law, sample.only(~unseen))
        )
    return predicted


def fitted(law: Law, sample: Sample) -> FloatArray:
    """Return values of the law's parameters from all rows of a sample."""
    return fit_law(law, sample.columns, sample.seconds, band_of(law, sample))


def band_of(law: Law, sample: Sample) -> NDArray[np.intp]:
    """Return the band of each row's size, from 0."""
    if sample.size is None:
        return np.zeros(len(sample.seconds), dtype=np.intp)
    return np.asarray(np.searchsorted(law.bands, sample.size))


def band_medians(law: Law, sample: Sample, predicted: FloatArray) -> dict[int, float]:
    """Return the median of |predicted / measured - 1| by band; ``predicted`` [s], shape (rows,)."""
    errors, band = np.abs(predicted / sample.seconds - 1), band_of(law, sample)
    return {int(each): float(np.median(errors[band == each])) for each in np.unique(band)}


def fold_of(groups: NDArray[np.str_], folds: int) -> NDArray[np.intp]:
    """Return the fold of each row's group: groups by name, dealt out at random.

    The order is drawn with a fixed seed; at most as many folds as groups.
    """
    names, place = np.unique(groups, return_inverse=True)
    dealt = np.random.default_rng(0).permutation(len(names)) % min(folds, len(names))
    return np.asarray(dealt[place])


def points(law: Law, sample: Sample, metric: str, folds: int) -> Iterator[Point]:
    """Yield predictions of the law for groups it was not fitted to, beside the measurements.

    Each has the interval that the held-out residuals of other groups give.
    """
    predicted = held_out(law, sample, folds)
    residuals = np.log(predicted / sample.seconds)
    width = _half_widths(residuals, sample.groups, fold_of(sample.groups, folds))
    key = (sample.accelerator, sample.engine, sample.variant, law.name, metric)
    rows = zip(sample.groups.tolist(), predicted, sample.seconds, width, strict=True)
    for group, ours, theirs, half in rows:
        ends = 1e3 * ours * np.exp(-half), 1e3 * ours * np.exp(half)
        figures = 1e3 * float(ours), 1e3 * float(theirs)
        yield Point(group, *key, *figures, "ms", float(ends[0]), float(ends[1]))


def _half_widths(
    residuals: FloatArray, groups: NDArray[np.str_], fold: NDArray[np.intp]
) -> FloatArray:
    """Return the half-width of each row's interval in logarithms, from other groups.

    Few groups need all the others to have an interval at all; of many, a whole fold is left out.
    """
    names, numbers = np.unique(groups, return_inverse=True)
    leave = numbers if len(names) <= _FEW_GROUPS else fold
    widths = np.empty_like(residuals)
    for out in np.unique(leave):
        others = leave != out
        widths[~others] = half_width(residuals[others], numbers[others].astype(np.float64))
    return widths


def smooth_max(*terms: FloatArray, power: float) -> FloatArray:
    """Return (sum of terms^power)^(1/power): the sum at power 1, the largest term as it grows."""
    total: FloatArray = np.sum([term**power for term in terms], axis=0)
    return np.asarray(total ** (1 / power))


def _evenly(count: int) -> NDArray[np.intp]:
    return np.linspace(0, count - 1, min(count, ROWS)).astype(np.intp)
