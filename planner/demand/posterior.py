"""Draw what the true demand may be, given how many requests were counted in how coarse buckets.

Three things are uncertain, each with its own spread, drawn together:

* chance: bucket masses are a Dirichlet posterior with the planned histogram as prior;
* the grid: how a bucket's mass divides over the ranges that cut it is a Dirichlet around the
  planned division, and where in each piece the lengths lie a Beta around the planned place; the sum
  of lengths still holds. More requests do not narrow it;
* the marginals: no engine exports inputs and outputs jointly. How the output depends on the input
  is as planned, more or less: E[o | l] to the power 1 + N(0, s), and times exp N(0, s) by range.

The further the observed buckets are from the plan, the less the plan is trusted in what no bucket
shows: both spreads follow ``drift``, the share of requests in other buckets than planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.workload.lengths import LengthDistribution, Range

from .counters import Buckets
from .entropy import closed, planned_masses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


_TINY: Final = 1e-9
"""Stands for an impossible outcome in a Dirichlet, which needs positive parameters."""
_HALVINGS: Final = 40
_STEEPEST: Final = 60.0
CALM: Final = 0.25
"""Drift up to which the plan's shape is trusted: so much has Azure's conversation trace from one
quarter of an hour to another."""
STRANGE: Final = 0.35
"""Drift from which on it is not trusted at all: conversation and code are 0.37 apart."""


@dataclass(frozen=True)
class PriorStrength:
    """How strongly the plan counts if the window has little data.

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
        """Return the requests that the planned division of a bucket counts for."""
        return min(self.division_most, self.division / max(drift, _TINY))

    def spread(self, drift: float) -> float:
        """Return s, the uncertainty of how outputs depend on inputs."""
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
    """Posterior draws, shape (draws, ranges + 1); the last column is for longer requests."""

    probability: FloatArray
    output: FloatArray
    context: FloatArray


def pooled(prior: LengthDistribution, observed: Buckets, requests: float) -> Buckets:
    """Return the observed buckets and ``requests`` more with the planned lengths."""
    masses = planned_masses(prior, closed(observed, prior)) * requests
    counts = tuple(float(n + m) for n, m in zip(observed.counts, masses, strict=True))
    total = observed.total
    if total is not None:
        total += requests * float(prior.probability @ prior.length)
    return Buckets(observed.edges, counts, total)


def cells(lengths: LengthDistribution, edges: FloatArray, ranges: Sequence[Range]) -> Cells:
    """Divide the distribution by bucket and range."""
    cuts = np.array([r.min for r in ranges] + [ranges[-1].max])
    bucket = np.searchsorted(edges, lengths.length, side="right") - 1
    index = np.maximum(0, np.searchsorted(cuts, lengths.length, side="right") - 1)
    first = np.flatnonzero(np.diff(bucket * (len(cuts) + 1) + index, prepend=-1))

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.add.reduceat(lengths.probability * values, first))

    mass = np.maximum(total(np.ones_like(lengths.length)), _TINY**2)
    output = np.maximum(total(lengths.output), _TINY * mass)
    starts = np.searchsorted(bucket[first], np.arange(len(edges) - 1))
    return Cells(
        len(ranges),
        bucket[first],
        index[first],
        starts,
        mass / np.add.reduceat(mass, starts)[bucket[first]],
        total(lengths.length) / mass,
        output / mass,
        total(lengths.output * lengths.length) / output,
        total(lengths.output_square) * mass / output**2,
        np.maximum(edges[bucket[first]], cuts[index[first]]),
        np.minimum(edges[bucket[first] + 1], np.append(cuts[1:], np.inf)[index[first]]) - 1,
    )


def drift(prior: LengthDistribution, observed: Buckets) -> float:
    """Return the share of requests in other buckets than planned (total variation), 0 to 1."""
    masses = planned_masses(prior, closed(observed, prior))
    return float(np.abs(np.array(observed.counts) / observed.requests - masses).sum() / 2)


def doubt(shift: float) -> float:
    """Return how little the plan is trusted inside buckets, 0 to 1, by the drift between them.

    Slightly drifted traffic is still like the plan inside a bucket; other traffic is not.
    """
    return min(1.0, max(0.0, (shift - CALM) / (STRANGE - CALM)))


def draw(
    pieces: Cells,
    observed: Buckets,
    output: tuple[float, float],
    shift: float,
    *,
    trust: PriorStrength,
    rng: np.random.Generator,
) -> Draws:
    """Draw demands that agree with the buckets.

    Args:
        pieces: Of the rebuilt distribution.
        observed: Requests by bucket, including the prior's (``pooled``).
        output: E[o] and E[o^2] of all requests [tokens, tokens^2].
        shift: The drift of the buckets, 0 to 1.
        trust: Strength of the prior, and number of draws.
        rng: Random numbers.
    """
    counts = np.array(observed.counts)
    masses = _dirichlet(counts, np.zeros(1, dtype=np.intp), trust.draws, rng)
    requests = trust.divided(shift)
    shares = _dirichlet(requests * pieces.share, pieces.starts, trust.draws, rng)
    wide = np.maximum(pieces.high - pieces.low, _TINY)
    place = np.clip((pieces.length - pieces.low) / wide, 0, 1)  # of the mean, between its bounds
    alpha, beta = requests * place + _TINY, requests * (1 - place) + _TINY
    sizes = pieces.low + wide * rng.beta(alpha, beta, (trust.draws, len(place)))
    expected = counts / counts.sum()
    if observed.mean is not None:
        shares = _with_mean(pieces, shares, sizes, expected[pieces.bucket], observed.mean)
    weight = shares * masses[:, pieces.bucket]
    noise = np.sqrt(max(0.0, output[1] - output[0] ** 2) / max(1.0, counts.sum()))
    mean = output[0] + noise * rng.standard_normal((trust.draws, 1))
    moments = np.maximum(mean, output[0] / 10), np.full_like(mean, output[1])
    return _outputs(pieces, weight, sizes, moments, spread=trust.spread(shift), rng=rng)


def _dirichlet(
    weights: FloatArray, starts: NDArray[np.intp], count: int, rng: np.random.Generator
) -> FloatArray:
    """Draw Dirichlet weights that sum to 1 within each group of columns."""
    drawn = rng.gamma(np.maximum(weights, _TINY), size=(count, len(weights))) + np.finfo(float).tiny
    sizes = np.diff(np.append(starts, len(weights)))
    return np.asarray(drawn / np.repeat(np.add.reduceat(drawn, starts, axis=1), sizes, axis=1))


def _with_mean(
    pieces: Cells, shares: FloatArray, sizes: FloatArray, mass: FloatArray, mean: float
) -> FloatArray:
    """Tilt the shares within buckets until each draw has the observed mean length."""
    scaled = sizes / sizes.max()

    def tilted(theta: FloatArray) -> FloatArray:
        weight = shares * np.exp(theta * scaled)
        return np.asarray(weight / np.add.reduceat(weight, pieces.starts, axis=1)[:, pieces.bucket])

    low = np.full((len(shares), 1), -_STEEPEST)
    high = -low
    for _ in range(_HALVINGS):
        theta = (low + high) / 2
        below = (tilted(theta) * mass * sizes).sum(axis=1, keepdims=True) < mean
        low, high = np.where(below, theta, low), np.where(below, high, theta)
    return tilted((low + high) / 2)


def _outputs(
    pieces: Cells,
    weight: FloatArray,
    sizes: FloatArray,
    output: tuple[FloatArray, FloatArray],
    *,
    spread: float,
    rng: np.random.Generator,
) -> Draws:
    """Draw probability, E[o] and mean context by range, with the moments ``output``."""
    mean, square = output

    def by_range() -> FloatArray:
        drawn = rng.standard_normal((len(weight), pieces.ranges + 1))
        return np.asarray(np.exp(spread * drawn)[:, pieces.range])

    expected = pieces.output ** (1 + spread * rng.standard_normal((len(weight), 1))) * by_range()
    expected *= mean / (weight * expected).sum(axis=1, keepdims=True)
    squares = pieces.spread * expected**2 * by_range()
    squares *= square / (weight * squares).sum(axis=1, keepdims=True)
    into = (pieces.range[:, None] == np.arange(pieces.ranges + 1)).astype(float)
    probability, tokens = weight @ into, (weight * expected) @ into
    position = pieces.position + sizes - pieces.length
    positions = (weight * (expected * position + squares / 2)) @ into
    tiny = np.finfo(float).tiny
    context = positions / np.maximum(tokens, tiny)
    return Draws(probability, tokens / np.maximum(probability, tiny), context)
