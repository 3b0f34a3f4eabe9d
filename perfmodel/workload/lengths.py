"""Request lengths as a distribution: inputs jointly with outputs, and ranges over the inputs.

The distribution is a set of atoms: at each input length the probability of a request, and the
moments of its output. The planner needs only expectations over the atoms of a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from ..errors import OutOfRange
from ..model import FloatArray

_NODES_PER_BIN = 4
"""Gauss-Legendre nodes in a bin: expectations of cubic functions of the length are exact."""

_UNKNOWN_SPREAD = 2.0
"""E[o^2] / E[o]^2 if only the mean output is known: that of an exponential distribution.

The Azure 2023 traces have 1.6 (conversation) and 5.6 (code).
"""

_ROUNDED = 0.05
"""How far a stated mean may be off because it was rounded: tokens, or a share of E[o^2]."""

_SMALL = 1e-6
"""Part of a sum below which a difference of cumulative sums has fewer than ten right digits."""

_NEGLIGIBLE = 1e-12
"""A probability that no workload can tell from 0."""


@dataclass(frozen=True, order=True)
class Range:
    """Half-open interval ``[min, max)`` of input lengths [tokens]."""

    min: int
    max: int


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram of input lengths ``[min, max)``, with what is known inside it.

    ``weight``: requests, in any unit. ``input_mean`` None: the middle of the bin.
    ``output_mean`` [tokens] and ``output_square`` [tokens^2] are E[o] and E[o^2]; without the
    second the output is taken as exponential.
    """

    min: int
    max: int
    weight: float
    input_mean: float | None
    output_mean: float
    output_square: float | None = None


@dataclass(frozen=True)
class RangeMoments:
    """Expectations per range, arrays of shape (ranges,).

    ``probability``: share of requests. ``output``: o_j = E[o | j] [tokens].
    ``context``: k_j = E[o l + o^2/2 | j] / E[o | j], the mean context of a decoded token [tokens].
    A range of probability 0 takes its midpoint as length and the outputs of the whole mix.
    """

    probability: FloatArray
    output: FloatArray
    context: FloatArray


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """Atoms sorted by input length; arrays of equal shape (atoms,).

    ``probability`` sums to 1. ``output`` is E[o | l] and ``output_square`` E[o^2 | l], the first
    two moments of the output length [tokens, tokens^2] (the second enters the mean context).
    """

    length: FloatArray
    probability: FloatArray
    output: FloatArray
    output_square: FloatArray

    def expectation(self, values: FloatArray, ranges: Sequence[Range]) -> FloatArray:
        """Return E[value | range], shape (ranges,), in the unit of ``values`` [any].

        A range of probability 0 takes the value at its midpoint, interpolated between atoms.

        Source: docs/explanation/performance-model.md#requests.

        Args:
            values: A value at each atom [any], shape (atoms,).
            ranges: Ranges of input lengths.
        """
        return self.within(ranges).expectation(values)

    def moments(self, ranges: Sequence[Range]) -> RangeMoments:
        """Return probability [1], mean output [tokens] and mean context [tokens] of every range.

        k_j = E_j[o l + o^2/2] / E_j[o]: output token number i has the input and i tokens before it.

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
        """
        return self.within(ranges).moments

    def within(self, ranges: Sequence[Range]) -> Cells:
        """Return the atoms of each range; every island of a model asks for the same ones."""
        return _cells(self, tuple(ranges))

    def quantile(self, share: float) -> float:
        """Return the input length [tokens] that a ``share`` [1] of the requests does not exceed.

        Source: docs/explanation/performance-model.md#requests.
        """
        cumulative = np.cumsum(self.probability)
        at = int(np.searchsorted(cumulative, share * cumulative[-1] * (1 - 1e-12)))
        return float(self.length[min(at, len(self.length) - 1)])


_CACHED_CELLS = 32
"""Pairs of distribution and ranges that are kept: more than a plan has models."""


@lru_cache(maxsize=_CACHED_CELLS)
def _cells(lengths: LengthDistribution, ranges: tuple[Range, ...]) -> Cells:
    return Cells(lengths, ranges)


class Cells:
    """The atoms of a distribution by range.

    ``probability``, shape (ranges,): share of requests.
    """

    def __init__(self, lengths: LengthDistribution, ranges: tuple[Range, ...]) -> None:
        self._lengths, self._midpoints = lengths, midpoints(ranges)
        self._starts = np.searchsorted(lengths.length, [r.min for r in ranges], side="left")
        self._stops = np.searchsorted(lengths.length, [r.max for r in ranges], side="left")
        self._filled = self._stops > self._starts
        self.probability = self._sums(np.ones_like(lengths.probability))
        self.probability.flags.writeable = False  # whoever asks gets the same one

    def expectation(self, values: FloatArray) -> FloatArray:
        """Return E[value | range], shape (ranges,), in the unit of ``values`` [any].

        Source: docs/explanation/performance-model.md#requests.
        """
        empty = self.probability <= 0
        means = self._sums(values) / np.where(empty, 1.0, self.probability)
        if not empty.any():
            return means
        return np.where(empty, np.interp(self._midpoints, self._lengths.length, values), means)

    @cached_property
    def moments(self) -> RangeMoments:
        """Return probability [1], mean output [tokens] and mean context [tokens] of every range.

        Source: docs/explanation/performance-model.md#from-times-to-capacity-rows.
        """
        lengths, probability = self._lengths, self.probability
        output = self._sums(lengths.output)
        # One output token at step i has the input and i tokens behind it: sum ~ o l + o^2 / 2.
        positions = self._sums(lengths.output * lengths.length + lengths.output_square / 2)
        mean = float(lengths.probability @ lengths.output)
        square = float(lengths.probability @ lengths.output_square)
        none = probability <= 0
        empty = none | (output <= 0)
        elsewhere = self._midpoints + square / (2 * mean)
        context = np.where(empty, elsewhere, positions / np.where(empty, 1.0, output))
        mean_output = np.where(none, mean, output / np.where(none, 1, probability))
        for array in (mean_output, context):
            array.flags.writeable = False
        return RangeMoments(probability, mean_output, context)

    def _sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of probability times value over the atoms of each range."""
        weighted = self._lengths.probability * values
        cumulative = np.concatenate(([0.0], np.cumsum(weighted)))
        total = np.asarray(cumulative[self._stops] - cumulative[self._starts])
        # A small part of a large sum has lost its digits to it: it is added up by itself.
        small = np.abs(total) < _SMALL * np.abs(cumulative).max()
        for i in np.flatnonzero(small & self._filled):
            total[i] = weighted[self._starts[i] : self._stops[i]].sum()
        return np.where(self._filled, total, 0.0)


def midpoints(ranges: Sequence[Range]) -> FloatArray:
    """Return the middle of every range, over the whole numbers in it [tokens]: (min + max - 1) / 2.

    Source: docs/explanation/performance-model.md#requests.
    """
    return np.array([(r.min + r.max - 1) / 2 for r in ranges], dtype=np.float64)


def from_samples(inputs: ArrayLike, outputs: ArrayLike) -> LengthDistribution:
    """Return the distribution of observed requests: one atom per distinct input length.

    Args:
        inputs: Input lengths [tokens].
        outputs: Output lengths of the same requests [tokens].

    Raises:
        OutOfRange: no request, lengths that do not pair up, or a negative one.
    """
    length = np.asarray(inputs, dtype=np.float64).ravel()
    output = np.asarray(outputs, dtype=np.float64).ravel()
    if len(length) == 0 or len(length) != len(output):
        raise OutOfRange(
            f"{len(length)} input and {len(output)} output lengths; give one of each per request"
        )
    if length.min() < 0 or output.min() < 0:
        raise OutOfRange("lengths are counts of tokens and cannot be negative")
    if not output.any():
        raise OutOfRange("every output length is 0; a request decodes at least one token")
    distinct, where, count = np.unique(length, return_inverse=True, return_counts=True)
    return LengthDistribution(
        distinct,
        count / len(length),
        np.bincount(where, output) / count,
        np.bincount(where, output * output) / count,
    )


def from_histogram(bins: Sequence[Bin]) -> LengthDistribution:
    """Return the distribution of a histogram: every bin spread evenly around its mean.

    A bin becomes the widest even spread inside it that has the stated mean, kept as four
    Gauss-Legendre nodes.

    Raises:
        OutOfRange: names the bin and what is wrong with it.
    """
    ordered = sorted((b for b in bins if b.weight != 0), key=lambda b: (b.min, b.max))
    if not ordered:
        raise OutOfRange("the histogram has no bin with a weight above 0")
    for bar in ordered:
        where = f"bin [{bar.min}, {bar.max})"
        if bar.weight < 0 or not 0 <= bar.min < bar.max:
            raise OutOfRange(f"{where}: weight {bar.weight}; needs weight >= 0 and 0 <= min < max")
        if bar.input_mean is not None and abs(bar.input_mean - _middle(bar)) > _ROUNDED:
            raise OutOfRange(f"{where}: mean input {bar.input_mean} lies outside the bin")
        if bar.output_mean <= 0:
            raise OutOfRange(f"{where}: mean output {bar.output_mean} must be above 0")
        least = bar.output_mean**2
        if bar.output_square is not None and bar.output_square < least * (1 - _ROUNDED):
            raise OutOfRange(
                f"{where}: mean square output {bar.output_square} is below the square of the "
                f"mean, {least:g}"
            )
    for lower, upper in pairwise(ordered):
        if lower.max > upper.min:
            raise OutOfRange(
                f"bins [{lower.min}, {lower.max}) and [{upper.min}, {upper.max}) overlap"
            )
    mean = np.array([_middle(b) for b in ordered])
    room = np.array([min(m - b.min, b.max - 1 - m) for m, b in zip(mean, ordered, strict=True)])
    share = np.array([b.weight for b in ordered], dtype=np.float64)
    output = np.array([b.output_mean for b in ordered], dtype=np.float64)
    square = np.array(
        [
            _UNKNOWN_SPREAD * b.output_mean**2
            if b.output_square is None
            else max(b.output_square, b.output_mean**2)
            for b in ordered
        ]
    )
    nodes, weights = np.polynomial.legendre.leggauss(_NODES_PER_BIN)
    length = (mean[:, None] + room[:, None] * nodes).ravel()
    order = np.argsort(length, kind="stable")
    return LengthDistribution(
        length[order],
        ((share / share.sum())[:, None] * (weights / weights.sum())).ravel()[order],
        np.repeat(output, _NODES_PER_BIN)[order],
        np.repeat(square, _NODES_PER_BIN)[order],
    )


def log_normal(  # noqa: PLR0917  # the order in which a workload states them
    median: float,
    sigma: float,
    minimum: int,
    maximum: int,
    output_mean: float,
    output_square: float | None = None,
    *,
    atoms: int = 256,
) -> LengthDistribution:
    """Return log-normal input lengths, cut to ``[minimum, maximum)``; outputs are independent.

    Each atom is the conditional mean of a slice of equal probability, so that E[l] is exact.

    Args:
        median: exp(mu) of the uncut distribution [tokens].
        sigma: Standard deviation of ln(length) [1].
        minimum: Shortest length [tokens].
        maximum: Length that none reaches [tokens].
        output_mean: E[o] [tokens].
        output_square: E[o^2] [tokens^2]; None takes the output as exponential.
        atoms: Number of slices.

    Raises:
        OutOfRange: a parameter is not positive, or the bounds hold no probability.
    """
    if min(median, sigma, output_mean) <= 0 or not 0 <= minimum < maximum - 1:
        raise OutOfRange(
            f"log-normal with median {median}, sigma {sigma}, lengths [{minimum}, {maximum}) and "
            f"mean output {output_mean}: all must be positive, and two lengths lie in the bounds"
        )
    normal = NormalDist()
    low, high = (_log_normal_cdf(edge, median, sigma) for edge in (minimum, maximum - 1))
    if high - low < _NEGLIGIBLE:
        raise OutOfRange(f"no length of the log-normal lies in [{minimum}, {maximum})")
    edges = [min(max(p, _NEGLIGIBLE), 1 - _NEGLIGIBLE) for p in np.linspace(low, high, atoms + 1)]
    # E[l; a < l <= b] = exp(mu + sigma^2 / 2) (Phi(z_b - sigma) - Phi(z_a - sigma))
    shifted = np.array([normal.cdf(normal.inv_cdf(p) - sigma) for p in edges])
    length = median * np.exp(sigma**2 / 2) * np.diff(shifted) / np.diff(edges)
    square = _UNKNOWN_SPREAD * output_mean**2 if output_square is None else output_square
    return LengthDistribution(
        np.clip(length, minimum, maximum - 1),
        np.full(atoms, 1 / atoms),
        np.full(atoms, float(output_mean)),
        np.full(atoms, float(square)),
    )


def _log_normal_cdf(length: float, median: float, sigma: float) -> float:
    return NormalDist().cdf(float(np.log(length / median)) / sigma) if length > 0 else 0.0


def _middle(bar: Bin) -> float:
    middle = (bar.min + bar.max - 1) / 2 if bar.input_mean is None else bar.input_mean
    return min(max(middle, float(bar.min)), float(bar.max - 1))
