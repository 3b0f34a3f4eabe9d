"""Estimate the workload of a window from its counts.

The order: pool the buckets with the plan's (``posterior``), rebuild the lengths by minimum relative
entropy (``entropy``), scale E[o | l] to the observed outputs, draw from the posterior, and place
the arrivals on the ranges. The result has the types that a plan is made of: ``lengths`` fits into a
``ModelDemand``, and each draw into a headroom evaluation.

Under overload completions saturate at what the islands can do, and long requests are the last to
finish: the observation is *censored*. Such a window may raise an estimate and never lower it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.workload.lengths import LengthDistribution, Range

from .counters import Buckets, sum_buckets
from .entropy import closed, max_entropy, second_moment
from .faults import Fault, FaultReason, only_raises, unusable, without_duplicates
from .posterior import Draws, PriorStrength, cells, doubt, draw, drift, pooled

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from .window import Flow, Window

UPPER: Final = 0.95
"""Probability below the upper end of a 90 % interval."""


def completed_by_mix(finished: FloatArray, mix: FloatArray, arrivals: float) -> FloatArray:
    """Return arrivals by range: at least the finished ones, otherwise as close to the mix.

    Requests that arrived and did not finish have no known length. Of all ways to place them this
    one has the least relative entropy to ``mix``: ``max(finished_j, c mix_j)`` with c such that the
    sum is right.

    Args:
        finished: Requests by range.
        mix: Prior share of each range.
        arrivals: All requests; at least the finished ones are taken.
    """
    if arrivals <= finished.sum() or not mix.sum():
        return finished
    positive = np.flatnonzero(mix > 0)
    order = positive[np.argsort(finished[positive] / mix[positive], kind="stable")]
    # With c so large that the first k ranges of this order are filled up to c times their share:
    share = np.cumsum(mix[order])
    beyond = finished.sum() - np.cumsum(finished[order])
    levels = (arrivals - beyond) / share
    # The right k is the last range whose finished requests are fewer than its level.
    filled = np.flatnonzero(finished[order] / mix[order] <= levels)
    level = float(levels[filled[-1] if len(filled) else 0])
    return np.maximum(finished, level * mix)


@dataclass(frozen=True, eq=False)
class Prior:
    """Demand before the window.

    ``lengths``: of the plan. ``rates``: by range, and one more for longer requests [req/s], of the
    last complete window, else of the plan; None if the plan states no rate.
    """

    lengths: LengthDistribution
    ranges: tuple[Range, ...]
    rates: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Estimate:
    """A value per range with its interval; arrays of equal shape."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class ObservedDemand:
    """The workload of a window.

    ``lengths``: with the observed inputs and outputs. ``rates`` [req/s] have one entry more than
    there are ranges: requests beyond the last, which no island can serve. ``output`` E[o | j]
    [tokens] and ``context`` k_j [tokens] likewise. ``censored``: requests may be missing.
    ``observed_share``: of arrivals with observed lengths; 0 if not even their number is certain:
    then nothing is below the prior. ``rate_draws`` of shape (draws, ranges + 1) and ``draws``
    belong together, row by row; if ``censored``, ``draws.probability`` is the mix of finished
    requests only.
    """

    lengths: LengthDistribution
    rates: Estimate
    output: Estimate
    context: Estimate
    rate_draws: FloatArray
    draws: Draws
    censored: bool
    faults: tuple[Fault, ...]
    observed_share: float = 1.0

    @property
    def rate(self) -> float:
        """Rate of all requests [req/s]."""
        return float(self.rates.value.sum())

    @property
    def upper(self) -> float:
        """Rate of all requests at the upper end of its 90 % interval [req/s]."""
        return float(np.quantile(self.rate_draws.sum(axis=1), UPPER))


@dataclass(frozen=True)
class NoDemand:
    """Why a window gives no demand; the last good one stays."""

    faults: tuple[Fault, ...]


def estimate_demand(
    window: Window, prior: Prior, rng: np.random.Generator, trust: PriorStrength | None = None
) -> ObservedDemand | NoDemand:
    """Estimate the workload of a window, or return why there is none."""
    flow, ranges, trust = window.flow, prior.ranges, trust or PriorStrength()
    faults = without_duplicates((*window.faults, *flow.faults))
    if fatal := unusable(faults):
        return NoDemand(fatal)
    censored = only_raises(faults)
    # All sources on the edges that they share; without any, one bucket without requests.
    inputs = sum_buckets(window.inputs) if window.inputs else Buckets((0.0, inf), (0.0,), None)
    buckets = pooled(prior.lengths, inputs, trust.prior_requests)
    shift = drift(prior.lengths, buckets)
    base = max_entropy(prior.lengths, buckets, doubt(shift))
    share = _observed_share(flow, faults) if censored else 1.0
    # What was not observed of the outputs is as planned, or longer if the observed ones are.
    observed, planned = _output_moments(window.outputs, prior.lengths, trust), _moments(base)
    mean, square = (
        max(new, share * new + (1 - share) * old)
        for new, old in zip(observed, planned, strict=True)
    )
    lengths = replace(
        base,
        output=base.output * (mean / planned[0]),
        output_square=base.output_square * (square / planned[1]),
    )
    pieces = cells(lengths, closed(buckets, prior.lengths), ranges)
    draws = draw(pieces, buckets, (mean, square), shift, trust=trust, rng=rng)
    mix, output, context = _by_range(lengths, ranges)
    rates = mix * flow.arrivals / flow.seconds
    total = rng.gamma(flow.arrivals + 0.5, size=(trust.draws, 1)) / flow.seconds  # Poisson
    rate_draws = np.asarray(draws.probability * total)
    if censored:
        planned_mix, planned_output, planned_context = _by_range(prior.lengths, ranges)
        like = planned_mix if prior.rates is None or not prior.rates.sum() else prior.rates
        finished = min(1.0, flow.completed / flow.arrivals) if flow.arrivals > 0 else 1.0

        def completed(rates: FloatArray) -> FloatArray:
            """Add the missing requests as in the prior; if uncertain, nothing is below it."""
            whole = completed_by_mix(rates * finished, like / like.sum(), float(rates.sum()))
            return whole if share > 0 or prior.rates is None else np.maximum(whole, prior.rates)

        rates = completed(rates)
        rate_draws = np.stack([completed(row) for row in rate_draws])
        lengths = _reweighted(lengths, ranges, rates)
        if share <= 0:  # else the moments include the prior already
            output, context = (
                np.maximum(output, planned_output),
                np.maximum(context, planned_context),
            )
            draws = replace(
                draws,
                output=np.maximum(draws.output, planned_output),
                context=np.maximum(draws.context, planned_context),
            )
    return ObservedDemand(
        lengths,
        _estimate(rates, rate_draws, trust),
        _estimate(output, draws.output, trust),
        _estimate(context, draws.context, trust),
        rate_draws,
        draws,
        censored,
        faults,
        share,
    )


def _observed_share(flow: Flow, faults: tuple[Fault, ...]) -> float:
    """Return the share of arrivals with observed lengths; 0 if their number is uncertain.

    Growing queues hide the lengths of waiting requests, not their number: it follows from the
    completions and the change of the gauges.
    """
    if only_raises(fault for fault in faults if fault.reason is not FaultReason.QUEUES_GROW):
        return 0.0
    return min(1.0, flow.completed / flow.arrivals) if flow.arrivals > 0 else 0.0


def _output_moments(
    parts: tuple[Buckets, ...], prior: LengthDistribution, trust: PriorStrength
) -> tuple[float, float]:
    """Return E[o] and E[o^2] of the observed outputs pooled with the prior's requests."""
    mean, square = _moments(prior)
    for part in parts:
        if part.requests <= 0 or part.mean is None or part.mean <= 0:
            continue
        weight = part.requests / (part.requests + trust.prior_requests)
        mean += weight * (part.mean - mean)
        square += weight * ((second_moment(part) or square) - square)
    return mean, max(square, mean**2)


def _moments(lengths: LengthDistribution) -> tuple[float, float]:
    """Return E[o] [tokens] and E[o^2] [tokens^2]."""
    outputs = (lengths.output, lengths.output_square)
    mean, square = (float(lengths.probability @ output) for output in outputs)
    return mean, square


def _by_range(
    lengths: LengthDistribution, ranges: tuple[Range, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return share, E[o] and mean context by range, and one more for longer requests."""
    beyond = type(ranges[0])(ranges[-1].max, max(ranges[-1].max, int(lengths.length[-1])) + 1)
    moments = lengths.moments((*ranges, beyond))
    return moments.probability, moments.output, moments.context


def _reweighted(
    lengths: LengthDistribution, ranges: tuple[Range, ...], rates: FloatArray
) -> LengthDistribution:
    """Return the lengths with the ranges in the proportion of the rates, each in its old shape."""
    if rates.sum() <= 0:
        return lengths
    cuts = np.array([r.min for r in ranges] + [ranges[-1].max])
    index = np.maximum(0, np.searchsorted(cuts, lengths.length, side="right") - 1)
    mix = _by_range(lengths, ranges)[0]
    weight = lengths.probability * (rates / rates.sum() / np.where(mix > 0, mix, 1))[index]
    return replace(lengths, probability=weight / weight.sum())


def _estimate(value: FloatArray, draws: FloatArray, trust: PriorStrength) -> Estimate:
    """Return the value with the central interval of the draws, widened to contain it."""
    low, high = np.quantile(draws, ((1 - trust.share) / 2, (1 + trust.share) / 2), axis=0)
    return Estimate(value, np.minimum(low, value), np.maximum(high, value))
