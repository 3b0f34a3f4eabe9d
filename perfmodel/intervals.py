"""Intervals of predictions, from residuals of groups that a fit did not see.

Residuals are log(predicted / measured). Rows of one group share an error, so that the number of
groups counts, not that of rows: in-sample residuals cover 57 % in place of 90 %. A new group is
taken to be exchangeable with the n seen ones (Dunn, Wasserman and Ramdas, "Distribution-Free
Prediction Sets for Two-Layer Hierarchical Models", arXiv:1809.07441, section 3): each has mass
1 / (n + 1), spread over its rows, and the new one, of which nothing is known, the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

LEVEL = 0.9

ASSUMED = 0.3
"""Relative half-width of what nobody measured, at least."""


@dataclass(frozen=True)
class Interval:
    """Factors on a prediction: the true time lies between ``low`` and ``high`` times it.

    ``level``: the probability. ``groups``: how many the interval is made from; 0 is an assumption.
    """

    low: float
    high: float
    level: float = LEVEL
    groups: int = 0

    @property
    def half_width(self) -> float:
        """Half of the width relative to the prediction."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> Interval:
        """The interval of a prediction that was multiplied by 1 / ``factor``."""
        return Interval(self.low * factor, self.high * factor, self.level, self.groups)


def assumed(half_width: float = ASSUMED) -> Interval:
    """The interval of a value that nobody measured: +-``half_width``, 30 % at least."""
    width = math.log1p(max(ASSUMED, half_width))
    return Interval(math.exp(-width), math.exp(width))


def interval(residuals: FloatArray, groups: FloatArray, level: float = LEVEL) -> Interval:
    """The interval around a prediction for a group that was not seen.

    Args:
        residuals: log(predicted / measured) of held-out rows, shape (rows,).
        groups: Group of each row, shape (rows,).
        level: Probability that a row of a new group lies inside.
    """
    count = len(np.unique(groups))
    width = half_width(residuals, groups, level)
    return Interval(math.exp(-width), math.exp(width), level, count)


def half_width(residuals: FloatArray, groups: FloatArray, level: float = LEVEL) -> float:
    """Half of the interval's width in logarithms.

    The smallest w with sum_j (share of group j's rows within w) / (n + 1) >= level. With fewer
    than level / (1 - level) groups there is none, and a Student factor takes its place; with
    fewer than two, the assumption.
    """
    sizes = np.abs(np.asarray(residuals, dtype=np.float64))
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < 2:  # noqa: PLR2004  # one group says nothing of the next
        return max(math.log1p(ASSUMED), float(sizes.max(initial=0.0)))
    mass = 1 / (counts[index] * (len(names) + 1))
    order = np.argsort(sizes)
    reached = np.cumsum(mass[order])
    if reached[-1] < level:
        return _student(sizes, mass, len(names), level)
    return float(sizes[order][np.searchsorted(reached, level - 1e-12)])


def _student(sizes: FloatArray, mass: FloatArray, count: int, level: float) -> float:
    """T s sqrt(1 + 1 / n), s the root mean square over groups, with n - 1 degrees of freedom."""
    spread = math.sqrt(float(np.average(sizes**2, weights=mass)))
    factor = float(stdtrit(count - 1, (1 + level) / 2))
    return max(factor * spread * math.sqrt(1 + 1 / count), float(sizes.max()))
