"""What the true mix may be, when so many requests were seen through so coarse a grid.

Three things are not known, and each has its spread, drawn together:

* chance: bucket masses are a Dirichlet posterior with the planned histogram as prior;
* the grid: how a bucket's mass divides over the ranges that cut it is a Dirichlet around the
  planned division, and where in each piece the lengths lie a Beta around the planned place; the sum
  of lengths still holds. More requests never narrow it;
* the marginals: no engine exports inputs and outputs jointly. How the output depends on the input
  is as planned, more or less: E[o | l] to the power 1 + N(0, s), and times exp N(0, s) by range.

The plan is believed less in what cannot be seen the further off it is in what can: both spreads
follow ``drift``, the share of requests that lie in other buckets than planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.planner.livedemand.buckets import Buckets
from archipelago.planner.livedemand.entropy import closed, planned_masses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.lengths import LengthDistribution, Range
    from archipelago.perfmodel.model import FloatArray

_TINY: Final = 1e-9
"""Stands for an impossible outcome in a Dirichlet, which needs positive parameters."""
_HALVINGS: Final = 40
_STEEPEST: Final = 60.0
CALM: Final = 0.25
"""Drift up to which the plan's shape is believed: Azure's conversation has so much within its
hour, from one quarter to another."""
STRANGE: Final = 0.35
"""Drift from which on nothing of it is: conversation and code are 0.37 apart."""


@dataclass(frozen=True)
class Trust:
    """How far the plan is believed where the window says little.

    The first three were chosen on the Azure 2023 traces (docs/designs/0008-live-demand.md).

    ``prior_requests``: requests that the planned histogram counts for. ``division``: requests that
    the division of a bucket counts for, times the drift; at most ``division_most``. ``dependence``:
    s over the drift, within ``dependence_within``. ``draws``: how many. ``share``: what an interval
    holds.
    """

    prior_requests: float = 300.0
    division: float = 1.0
    division_most: float = 50.0
    dependence: float = 2.0
    dependence_within: tuple[float, float] = (0.1, 1.0)
    draws: int = 400
    share: float = 0.9

    def divided(self, drift: float) -> float:
        """Requests that the planned division of a bucket counts for."""
        return min(self.division_most, self.division / max(drift, _TINY))

    def spread(self, drift: float) -> float:
        """s: how uncertain the dependence of outputs on inputs is."""
        low, high = self.dependence_within
        return min(high, max(low, self.dependence * drift))


@dataclass(frozen=True, eq=False)
class Cells:
    """Pieces of buckets by range; arrays of shape (cells,), sorted by bucket.

    ``share`` sums to 1 in each bucket. ``length`` is E[l], between ``low`` and ``high``; ``output``
    E[o], ``position`` E[o l] / E[o], ``spread`` E[o^2] / E[o]^2. ``range`` is ``ranges``, their
    number, for what is longer.
    """

    ranges: int
    bucket: NDArray[np.intp]
    range: NDArray[np.intp]
    starts: NDArray[np.intp]
    share: FloatArray
    length: FloatArray
    output: FloatArray
    position: FloatArray
    spread: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class Draws:
    """Possible truths; the first axis counts them, the second ranges, the last one beyond them."""

    probability: FloatArray
    output: FloatArray
    context: FloatArray


def pooled(prior: LengthDistribution, seen: Buckets, requests: float) -> Buckets:
    """What was seen and ``requests`` more with the planned lengths."""
    masses = planned_masses(prior, closed(seen, prior)) * requests
    more = requests * float(prior.probability @ prior.length)
    counts = tuple(float(n + m) for n, m in zip(seen.counts, masses, strict=True))
    no_sum = seen.total is None
    return Buckets(seen.edges, counts, None if no_sum else (seen.total or 0.0) + more)


def cells(lengths: LengthDistribution, edges: FloatArray, ranges: Sequence[Range]) -> Cells:
    """The distribution by bucket and range."""
    cuts = np.array([r.min for r in ranges] + [ranges[-1].max])
    bucket = np.searchsorted(edges, lengths.length, side="right") - 1
    where = np.maximum(0, np.searchsorted(cuts, lengths.length, side="right") - 1)
    first = np.flatnonzero(np.diff(bucket * (len(cuts) + 1) + where, prepend=-1))

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(lengths.probability * values, first))

    mass = np.maximum(total(np.ones_like(lengths.length)), _TINY**2)
    output = np.maximum(total(lengths.output), _TINY * mass)
    starts = np.searchsorted(bucket[first], np.arange(len(edges) - 1))
    return Cells(
        len(ranges),
        bucket[first],
        where[first],
        starts,
        mass / np.add.reduceat(mass, starts)[bucket[first]],
        total(lengths.length) / mass,
        output / mass,
        total(lengths.output * lengths.length) / output,
        total(lengths.output_square) * mass / output**2,
        np.maximum(edges[bucket[first]], cuts[where[first]]),
        np.minimum(edges[bucket[first] + 1], np.append(cuts[1:], np.inf)[where[first]]) - 1,
    )


def drift(prior: LengthDistribution, seen: Buckets) -> float:
    """Share of requests in other buckets than planned (total variation), 0 to 1."""
    masses = planned_masses(prior, closed(seen, prior))
    return float(np.abs(np.array(seen.counts) / seen.requests - masses).sum() / 2)


def doubtful(moved: float) -> float:
    """How far the plan is not believed in what buckets cannot tell, by the drift in what they can.

    Traffic that drifts is still like the plan inside a bucket; other traffic is not.
    """
    return min(1.0, max(0.0, (moved - CALM) / (STRANGE - CALM)))


def draw(
    pieces: Cells,
    seen: Buckets,
    output: tuple[float, float],
    moved: float,
    *,
    trust: Trust,
    rng: np.random.Generator,
) -> Draws:
    """Truths that agree with the buckets, as likely as they are.

    Args:
        pieces: Of the rebuilt distribution.
        seen: Requests by bucket, the prior's among them (``pooled``).
        output: E[o] and E[o^2] of all requests [tokens, tokens^2].
        moved: The drift.
        trust: How wide.
        rng: Where chance comes from.
    """
    counts = np.array(seen.counts)
    masses = _dirichlet(counts, np.zeros(1, dtype=np.intp), trust.draws, rng)
    shares = _dirichlet(trust.divided(moved) * pieces.share, pieces.starts, trust.draws, rng)
    sizes = _sizes(pieces, trust.divided(moved), trust.draws, rng)
    expected = counts / counts.sum()
    if seen.mean is not None:
        shares = _with_mean(pieces, shares, sizes, expected[pieces.bucket], seen.mean)
    weight = shares * masses[:, pieces.bucket]
    noise = np.sqrt(max(0.0, output[1] - output[0] ** 2) / max(1.0, counts.sum()))
    mean = output[0] + noise * rng.standard_normal((trust.draws, 1))
    moments = np.maximum(mean, output[0] / 10), np.full_like(mean, output[1])
    return _outputs(pieces, weight, sizes, moments, spread=trust.spread(moved), rng=rng)


def interval(draws: FloatArray, share: float) -> tuple[FloatArray, FloatArray]:
    """Bounds that leave out equally many draws on either side."""
    low, high = np.quantile(draws, ((1 - share) / 2, (1 + share) / 2), axis=0)
    return low, high


def _dirichlet(
    weights: FloatArray, starts: NDArray[np.intp], count: int, rng: np.random.Generator
) -> FloatArray:
    """Draws that sum to 1 within each group of columns."""
    drawn = rng.gamma(np.maximum(weights, _TINY), size=(count, len(weights))) + np.finfo(float).tiny
    sizes = np.diff(np.append(starts, len(weights)))
    return np.asarray(drawn / np.repeat(np.add.reduceat(drawn, starts, axis=1), sizes, axis=1))


def _sizes(pieces: Cells, requests: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Mean length of every cell: at the planned place between its bounds, more or less."""
    wide = np.maximum(pieces.high - pieces.low, _TINY)
    place = np.clip((pieces.length - pieces.low) / wide, 0, 1)
    drawn = rng.beta(requests * place + _TINY, requests * (1 - place) + _TINY, (count, len(place)))
    return np.asarray(pieces.low + wide * drawn)


def _with_mean(
    pieces: Cells, shares: FloatArray, sizes: FloatArray, mass: FloatArray, mean: float
) -> FloatArray:
    """Shares within buckets, tilted until each draw has the mean length that was seen."""
    scaled = sizes / sizes.max()
    low = np.full((len(shares), 1), -_STEEPEST)
    high = -low
    for _ in range(_HALVINGS):
        theta = (low + high) / 2
        tilted = _tilt(pieces, shares, theta * scaled)
        below = (tilted * mass * sizes).sum(axis=1, keepdims=True) < mean
        low, high = np.where(below, theta, low), np.where(below, high, theta)
    return _tilt(pieces, shares, (low + high) / 2 * scaled)


def _tilt(pieces: Cells, shares: FloatArray, power: FloatArray) -> FloatArray:
    weight = shares * np.exp(power)
    return np.asarray(weight / np.add.reduceat(weight, pieces.starts, axis=1)[:, pieces.bucket])


def _outputs(
    pieces: Cells,
    weight: FloatArray,
    sizes: FloatArray,
    output: tuple[FloatArray, FloatArray],
    *,
    spread: float,
    rng: np.random.Generator,
) -> Draws:
    """Per draw and range: probability, E[o] and mean context, with the output's own moments."""
    mean, square = output

    def by_range() -> FloatArray:
        drawn = rng.standard_normal((len(weight), pieces.ranges + 1))
        return np.asarray(np.exp(spread * drawn)[:, pieces.range])

    given = pieces.output ** (1 + spread * rng.standard_normal((len(weight), 1))) * by_range()
    given *= mean / (weight * given).sum(axis=1, keepdims=True)
    squares = pieces.spread * given**2 * by_range()
    squares *= square / (weight * squares).sum(axis=1, keepdims=True)
    into = (pieces.range[:, None] == np.arange(pieces.ranges + 1)).astype(float)
    probability, tokens = weight @ into, (weight * given) @ into
    moved = pieces.position + sizes - pieces.length
    positions = (weight * (given * moved + squares / 2)) @ into
    tiny = np.finfo(float).tiny
    context = positions / np.maximum(tokens, tiny)
    return Draws(probability, tokens / np.maximum(probability, tiny), context)
