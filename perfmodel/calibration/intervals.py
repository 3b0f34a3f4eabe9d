"""Intervals of predictions, from residuals of groups that a fit did not see.

Residuals are log(predicted / measured). Rows of one group share an error, so rows count less than
groups: in-sample residuals cover 57 % instead of 90 %. A new group is taken as exchangeable with
the n groups of the fit, which have equal mass (Dunn, Wasserman and Ramdas, "Distribution-Free
Prediction Sets for Two-Layer Hierarchical Models", arXiv:1809.07441, section 3). The conformal
correction leaves 1 / (N + 1) of the mass to the unseen, with N independent rows (Kish's design
effect: m rows with correlation c are worth m / (1 + (m - 1) c)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..model import FloatArray

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
        """Return half of the width relative to the prediction."""
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> Interval:
        """Return the interval of a prediction that was multiplied by 1 / ``factor``."""
        return Interval(self.low * factor, self.high * factor, self.level, self.groups)


def assumed(half_width: float = ASSUMED) -> Interval:
    """Return the interval of a value that nobody measured: +-``half_width``, 30 % at least."""
    width = math.log1p(max(ASSUMED, half_width))
    return Interval(math.exp(-width), math.exp(width))


def interval(residuals: FloatArray, groups: FloatArray, level: float = LEVEL) -> Interval:
    """Return the interval around a prediction for a group that was not seen.

    Args:
        residuals: log(predicted / measured) of held-out rows, shape (rows,).
        groups: Group of each row, shape (rows,).
        level: Probability that a row of a new group lies inside.
    """
    count = len(np.unique(groups))
    width = half_width(residuals, groups, level)
    return Interval(math.exp(-width), math.exp(width), level, count)


def half_width(residuals: FloatArray, groups: FloatArray, level: float = LEVEL) -> float:
    """Return half of the interval's width in logarithms.

    The smallest w with (N / (N + 1)) mean_j (share of group j's rows within w) >= level. With
    fewer than level / (1 - level) independent rows there is none, and a Student factor takes its
    place; with fewer than two groups, the assumption.
    """
    sizes = np.abs(np.asarray(residuals, dtype=np.float64))
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < 2:  # noqa: PLR2004  # one group says nothing of the next
        return max(math.log1p(ASSUMED), float(sizes.max(initial=0.0)))
    mass = 1 / (counts[index] * len(names))
    worth = independent_rows(residuals, groups)
    order = np.argsort(sizes)
    covered = np.cumsum(mass[order]) * worth / (worth + 1)
    if covered[-1] < level:
        # T s sqrt(1 + 1 / N): T Student's quantile, N - 1 degrees of freedom, s the rms.
        spread = math.sqrt(float(np.average(sizes**2, weights=mass)))
        from scipy.special import stdtrit  # noqa: PLC0415  # slow to load, and rarely needed

        factor = float(stdtrit(worth - 1, (1 + level) / 2))
        return factor * spread * math.sqrt(1 + 1 / worth)
    return float(sizes[order][np.searchsorted(covered, level - 1e-12)])


def independent_rows(residuals: FloatArray, groups: FloatArray) -> float:
    """Return how many independent rows the groups are worth, from one per group to every row.

    The correlation inside groups is that of the analysis of variance: (B - W) / (B + (m - 1) W)
    with mean squares between and within groups and m rows per group (Fisher 1925; for groups of
    unequal size m is (N - sum m_j^2 / N) / (n - 1)).
    """
    values = np.asarray(residuals, dtype=np.float64)
    names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    total, count = len(values), len(names)
    if total == count:
        return float(count)
    means = np.bincount(index, values) / counts
    between = float(counts @ (means - values.mean()) ** 2) / (count - 1)
    within = float(np.sum((values - means[index]) ** 2)) / (total - count)
    size = (total - float(counts @ counts) / total) / (count - 1)
    denominator = between + (size - 1) * within
    alike = (between - within) / denominator if denominator > 0 else 1.0
    return float(np.sum(counts / (1 + (counts - 1) * min(1.0, max(0.0, alike)))))
