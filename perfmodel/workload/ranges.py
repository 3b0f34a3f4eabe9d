"""Ways to cut the input lengths into ranges.

A plan treats the requests of a range alike, so a range should hold requests of like cost. All three
functions return ranges that follow each other from 0 to ``top``, and fewer than ``count`` if the
lengths do not allow more.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import OutOfRange
from ..model import FloatArray
from .lengths import LengthDistribution, Range

_CANDIDATES = 512
"""Boundaries that ``least_loss`` chooses from; 58 ranges of 512 take about 0.1 s."""


def equal_width(_lengths: LengthDistribution, count: int, top: int) -> tuple[Range, ...]:
    """Return ``count`` ranges of equal width up to ``top`` [tokens], rounded to whole tokens."""
    _check(count, top)
    return _ranges(np.linspace(0, top, count + 1), top)


def equal_probability(lengths: LengthDistribution, count: int, top: int) -> tuple[Range, ...]:
    """Return ``count`` ranges with about the same share of the requests below ``top`` [tokens]."""
    _check(count, top)
    return _ranges(_quantile_cuts(lengths, count, top), top)


def least_loss(lengths: LengthDistribution, count: int, top: int) -> tuple[Range, ...]:
    """Return the ``count`` ranges with the smallest loss over at most 512 candidate boundaries.

    Loss: the part of the variance of l, l^2, o and o l that stays inside the ranges, each as a
    share of its whole variance. These four span the capacity rows: prefill time is close to a l + b
    l^2, and decode rows are linear in o and o l. Optimal by dynamic programming over boundaries
    (Fisher 1958, "On grouping for maximum homogeneity").
    """
    _check(count, top)
    cuts = np.unique(np.ceil(_quantile_cuts(lengths, _CANDIDATES, top)).astype(np.int64))
    cuts = np.unique(np.concatenate(([0], cuts, [top])))
    if len(cuts) - 1 <= count:
        return _ranges(cuts, top)
    loss = _losses(lengths, cuts)
    best, choices = loss[0], []  # of the cheapest chain of ranges from the first cut to each
    for _ in range(count - 1):
        through = best[:, None] + loss
        choices.append(through.argmin(axis=0))
        best = through.min(axis=0)
    path = [len(cuts) - 1]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return _ranges(cuts[[0, *reversed(path)]], top)


def _losses(lengths: LengthDistribution, cuts: NDArray[np.int64]) -> FloatArray:
    """Return the loss of a range from cut i to cut j, for every i < j; infinite elsewhere."""
    at = np.searchsorted(lengths.length, cuts, side="left")
    size, out = lengths.length, lengths.output
    mass = _prefix(lengths.probability, at)
    share = mass[None, :] - mass[:, None]
    safe = np.where(share > 0, share, 1.0)
    loss = np.zeros_like(share)
    for feature, square in (
        (size, size**2),
        (size**2, size**4),
        (out, out**2),
        (out * size, (out * size) ** 2),
    ):
        first, second = (_prefix(lengths.probability * f, at) for f in (feature, square))
        inside = second[None, :] - second[:, None] - (first[None, :] - first[:, None]) ** 2 / safe
        whole = second[-1] - first[-1] ** 2 / max(mass[-1], 1e-300)
        if whole > 0:
            loss += np.maximum(inside, 0.0) / whole
    return np.where(np.tri(len(cuts), dtype=bool), np.inf, loss)


def _prefix(values: FloatArray, at: NDArray[np.int64]) -> FloatArray:
    return np.concatenate(([0.0], np.cumsum(values)))[at]


def _quantile_cuts(lengths: LengthDistribution, count: int, top: int) -> FloatArray:
    """Return the boundaries just above each count-th of the probability below ``top``."""
    below = lengths.length < top
    cumulative = np.cumsum(lengths.probability[below])
    if len(cumulative) == 0:
        return np.array([0.0, top])
    targets = np.arange(1, count) / count * cumulative[-1]
    at = np.searchsorted(cumulative, targets * (1 - 1e-12))
    cuts: FloatArray = np.floor(lengths.length[below][at]) + 1.0
    return np.concatenate(([0.0], cuts, [float(top)]))


def _ranges(cuts: Iterable[float] | NDArray[np.int64], top: int) -> tuple[Range, ...]:
    whole = sorted({min(top, max(0, round(float(cut)))) for cut in cuts} | {0, top})
    return tuple(Range(low, high) for low, high in pairwise(whole))


def _check(count: int, top: int) -> None:
    if count < 1 or top < 1:
        raise OutOfRange(f"{count} ranges up to {top} tokens: both must be at least 1")
