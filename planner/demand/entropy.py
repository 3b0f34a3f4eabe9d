"""A planned distribution moved to what a histogram says, and not an inch further.

Engines export how many prompts fell into each bucket and the sum of all lengths. Among all
distributions that agree with both, the one of minimum relative entropy to the planned one keeps the
planned shape inside every bucket, scales it to the bucket's mass and tilts it by exp(theta l) until
the sum is right (I. Csiszar, I-divergence geometry, 1975, doi:10.1214/aop/1176996454).

The planned shape is mixed with a little of an even one, so that no length of a bucket is impossible
and every true sum can be reached, also where the plan expected nothing at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.lengths import LengthDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.livedemand.buckets import Buckets

EVEN: Final = 0.01
"""Share of a bucket's shape that is even over its lengths, whatever the plan says."""
POINTS: Final = 17
"""Lengths of a bucket's even part, both ends among them."""
TILTS: Final = 60
"""Halvings of the interval in which theta lies: past that a double has no more digits."""
STEEPEST: Final = 50.0
"""Largest |theta| [1/token]: beyond it all mass stands at one end of a bucket."""


@dataclass(frozen=True, eq=False)
class Shape:
    """Atoms by length with the bucket that each lies in; arrays of equal shape (atoms,).

    ``share`` sums to 1 within each bucket; ``starts`` is the first atom of every bucket.
    ``output``, ``output_square``: as planned at that length [tokens, tokens^2].
    """

    length: FloatArray
    share: FloatArray
    output: FloatArray
    output_square: FloatArray
    bucket: NDArray[np.intp]
    starts: NDArray[np.intp]


def closed(seen: Buckets, prior: LengthDistribution) -> FloatArray:
    """Edges with an end: the last bucket reaches as far as the plan, the sum, and twice its start.

    Twice, because the plan says nothing of lengths that it does not expect.
    """
    edges, last = np.array(seen.edges), seen.counts[-1]
    if isfinite(edges[-1]):
        return edges
    ends = [2 * edges[-2], float(prior.length[-1]) + 1, edges[-2] + 2]
    if seen.total is not None and last > 0:
        rest = seen.total - float((np.array(seen.counts[:-1]) * (edges[1:-1] - 1)).sum())
        ends.append(np.ceil(rest / last) + 1)  # the least mean that this bucket must have
    return np.append(edges[:-1], max(ends))


def shape(prior: LengthDistribution, edges: FloatArray, even_share: float = EVEN) -> Shape:
    """The planned distribution inside each bucket, with a part of an even one."""
    even = np.concatenate([_even(low, high) for low, high in pairwise(edges)])
    length = np.concatenate((np.clip(prior.length, None, edges[-1] - 1), even))
    order = np.argsort(length, kind="stable")
    bucket = np.searchsorted(edges, length[order], side="right") - 1
    planned = np.concatenate((prior.probability, np.zeros(len(even))))[order]
    flat = np.concatenate((np.zeros(len(prior.length)), np.ones(len(even))))[order]
    starts = np.searchsorted(bucket, np.arange(len(edges) - 1))
    mass = np.add.reduceat(planned, starts)
    trusted = np.where(mass > 0, 1 - even_share, 0.0)
    share = planned * (trusted / np.where(mass > 0, mass, 1))[bucket]
    share += flat * ((1 - trusted) / np.add.reduceat(flat, starts))[bucket]
    sizes = length[order]
    return Shape(
        sizes,
        share,
        np.interp(sizes, prior.length, prior.output),
        np.interp(sizes, prior.length, prior.output_square),
        bucket,
        starts,
    )


def planned_masses(prior: LengthDistribution, edges: FloatArray) -> FloatArray:
    """What the plan puts into each bucket; the last takes what is longer."""
    bucket = np.searchsorted(edges, np.clip(prior.length, None, edges[-1] - 1), side="right") - 1
    mass = np.bincount(bucket, prior.probability, minlength=len(edges) - 1)
    return mass.astype(np.float64)


def tilted(within: Shape, masses: FloatArray, mean: float | None) -> FloatArray:
    """Probability of every atom: bucket masses as given, and the mean length as near as can be.

    Args:
        within: Shares inside the buckets.
        masses: Of the buckets; sums to 1.
        mean: Mean length [tokens]; None leaves the shape as it is.
    """
    if mean is None:
        return within.share * masses[within.bucket]
    low, high = -STEEPEST, STEEPEST
    for _ in range(TILTS):
        theta = (low + high) / 2
        probability = _at(within, masses, theta)
        low, high = (theta, high) if probability @ within.length < mean else (low, theta)
    return _at(within, masses, (low + high) / 2)


def rebuilt(prior: LengthDistribution, seen: Buckets, doubt: float = 0.0) -> LengthDistribution:
    """The planned distribution of minimum relative entropy that agrees with what was seen.

    Outputs at a length stay as planned; ``demand`` scales them to the output's own histogram.
    ``doubt``: how far the plan's shape inside buckets, and its outputs by length, are not believed:
    at 1 both are even.
    A histogram without requests gives the planned distribution back.
    """
    if seen.requests <= 0:
        return prior
    within = shape(prior, closed(seen, prior), max(EVEN, doubt))
    probability = tilted(within, np.array(seen.counts) / seen.requests, seen.mean)
    outputs = (within.output, within.output_square)
    mean = [float(probability @ output) for output in outputs]
    output, square = (o + doubt * (m - o) for o, m in zip(outputs, mean, strict=True))
    return LengthDistribution(within.length, probability, output, square)


def second_moment(seen: Buckets) -> float | None:
    """E[o^2] of a histogram: even inside the buckets, tilted to the sum; None without requests."""
    if seen.requests <= 0:
        return None
    nothing = LengthDistribution(np.array([0.0]), np.zeros(1), np.zeros(1), np.zeros(1))
    within = shape(nothing, closed(seen, nothing))
    probability = tilted(within, np.array(seen.counts) / seen.requests, seen.mean)
    return float(probability @ within.length**2)


def _even(low: float, high: float) -> FloatArray:
    return np.linspace(low, high - 1, min(POINTS, int(high - low)))


def _at(within: Shape, masses: FloatArray, theta: float) -> FloatArray:
    """Shares times exp(theta l), each bucket scaled to its mass."""
    power = theta * within.length
    top = np.maximum.reduceat(power, within.starts)
    weight = within.share * np.exp(power - top[within.bucket])
    sums = np.add.reduceat(weight, within.starts)
    return np.asarray(weight * (masses / np.where(sums > 0, sums, 1))[within.bucket])
