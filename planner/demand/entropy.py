"""Rebuild a length distribution from a histogram by minimum relative entropy to the planned one.

Engines export how many prompts fell into each bucket and the sum of all lengths. Among all
distributions that agree with both, the one of minimum relative entropy keeps the planned shape
inside every bucket, scales it to the bucket's mass and tilts it by exp(theta l) until the sum is
right (I. Csiszar, I-divergence geometry, 1975, doi:10.1214/aop/1176996454).

The planned shape is mixed with a little of an even one, so that no length of a bucket is impossible
and every true sum can be reached, even if the plan expected nothing there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.workload.lengths import LengthDistribution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

    from .counters import Buckets


EVEN: Final = 0.01
"""Share of a bucket's shape that is even over its lengths, whatever the plan."""
POINTS: Final = 17
"""Lengths of a bucket's even part, including both ends."""
TILTS: Final = 60
"""Bisection steps for theta; more exceed the precision of a double."""
STEEPEST: Final = 50.0
"""Largest |theta| [1/token]: beyond it all mass is at one end of a bucket."""


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


def closed(observed: Buckets, prior: LengthDistribution) -> FloatArray:
    """Return the edges with a finite end: at least the plan's, the sum's, and twice the last edge.

    Twice, because the plan has no shape for lengths that it does not expect.
    """
    edges, last = np.array(observed.edges), observed.counts[-1]
    if isfinite(edges[-1]):
        return edges
    ends = [2 * edges[-2], float(prior.length[-1]) + 1, edges[-2] + 2]
    if observed.total is not None and last > 0:
        rest = observed.total - float((np.array(observed.counts[:-1]) * (edges[1:-1] - 1)).sum())
        ends.append(np.ceil(rest / last) + 1)  # the least mean that this bucket must have
    return np.append(edges[:-1], max(ends))


def shape(prior: LengthDistribution, edges: FloatArray, even_share: float = EVEN) -> Shape:
    """Return the planned distribution inside each bucket, mixed with an even one."""
    even = np.concatenate([
        np.linspace(low, high - 1, min(POINTS, int(high - low))) for low, high in pairwise(edges)
    ])  # fmt: skip
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
    """Return the planned mass of each bucket; the last includes all longer requests."""
    bucket = np.searchsorted(edges, np.clip(prior.length, None, edges[-1] - 1), side="right") - 1
    mass = np.bincount(bucket, prior.probability, minlength=len(edges) - 1)
    return mass.astype(np.float64)


def exponential_tilt(within: Shape, masses: FloatArray, mean: float | None) -> FloatArray:
    """Return the probability of every atom, for these bucket masses and the closest mean length.

    Args:
        within: Shares inside the buckets.
        masses: Of the buckets; sums to 1.
        mean: Mean length [tokens]; None leaves the shape as it is.
    """

    def tilted(theta: float) -> FloatArray:
        """Return the shares times exp(theta l), each bucket scaled to its mass."""
        power = theta * within.length
        top = np.maximum.reduceat(power, within.starts)
        weight = within.share * np.exp(power - top[within.bucket])
        sums = np.add.reduceat(weight, within.starts)
        return np.asarray(weight * (masses / np.where(sums > 0, sums, 1))[within.bucket])

    if mean is None:
        return within.share * masses[within.bucket]
    low, high = -STEEPEST, STEEPEST
    for _ in range(TILTS):
        theta = (low + high) / 2
        low, high = (theta, high) if tilted(theta) @ within.length < mean else (low, theta)
    return tilted((low + high) / 2)


def max_entropy(
    prior: LengthDistribution, observed: Buckets, doubt: float = 0.0
) -> LengthDistribution:
    """Return the distribution of minimum relative entropy to the plan that fits the buckets.

    Outputs at a length stay as planned; ``estimate`` scales them to the histogram of outputs.
    ``doubt``: how little the plan's shape inside buckets and its outputs by length are trusted; at
    1 both are even. Without requests the result is the planned distribution.
    """
    if observed.requests <= 0:
        return prior
    within = shape(prior, closed(observed, prior), max(EVEN, doubt))
    probability = exponential_tilt(
        within, np.array(observed.counts) / observed.requests, observed.mean
    )
    outputs = (within.output, within.output_square)
    mean = [float(probability @ output) for output in outputs]
    output, square = (o + doubt * (m - o) for o, m in zip(outputs, mean, strict=True))
    return LengthDistribution(within.length, probability, output, square)


def second_moment(observed: Buckets) -> float | None:
    """Return E[o^2] of a histogram, even in buckets and tilted to the sum; None if empty."""
    if observed.requests <= 0:
        return None
    empty = LengthDistribution(np.array([0.0]), np.zeros(1), np.zeros(1), np.zeros(1))
    within = shape(empty, closed(observed, empty))
    probability = exponential_tilt(
        within, np.array(observed.counts) / observed.requests, observed.mean
    )
    return float(probability @ within.length**2)
