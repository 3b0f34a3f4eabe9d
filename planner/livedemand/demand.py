"""From what was counted in a window to the workload that the plan should have been made for.

The order: pool the buckets with the plan's (``posterior``), rebuild the lengths by minimum relative
entropy (``entropy``), scale E[o | l] to the outputs that were seen, draw what else may be true, and
place the arrivals on the ranges (``arrivals``). Where requests may be missing, nothing is lowered.

What comes out has the same types as what a plan is made of: ``lengths`` can be put into a
``ModelDemand`` as it is, and each draw into a headroom evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.lengths import LengthDistribution
from archipelago.planner.livedemand.arrivals import completed_by_mix, never_lower
from archipelago.planner.livedemand.buckets import Buckets, added
from archipelago.planner.livedemand.entropy import closed, rebuilt, second_moment
from archipelago.planner.livedemand.faults import (
    Effect,
    Fault,
    Reason,
    only_raises,
    told_once,
    unusable,
)
from archipelago.planner.livedemand.posterior import (
    Draws,
    Trust,
    cells,
    doubtful,
    draw,
    drift,
    interval,
    pooled,
)

if TYPE_CHECKING:
    from archipelago.perfmodel.lengths import Range
    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.livedemand.window import Flow, Window


@dataclass(frozen=True, eq=False)
class Believed:
    """What is held to be true before the window.

    ``lengths``: of the plan. ``rates``: by range and one more for what is longer [req/s], of the
    last window that missed nothing, else the plan's; None where the plan states no rate.
    """

    lengths: LengthDistribution
    ranges: tuple[Range, ...]
    rates: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure per range with its interval; arrays of equal shape."""

    value: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, eq=False)
class Observed:
    """The workload of a window.

    ``lengths``: with the observed inputs and outputs. ``rates`` [req/s] have one entry more than
    there are ranges: requests beyond the last, which no island can serve. ``output`` E[o | j]
    [tokens] and ``context`` k_j [tokens] likewise. ``raised``: requests may be missing. ``known``:
    share of the arrivals whose lengths were seen; 0 where not even their number is sure: then
    nothing is below what was believed.
    ``rate_draws`` of shape (draws, ranges + 1) and ``draws`` belong together, row by row; where the
    window could only raise, ``draws.probability`` is the mix of what finished and the rates differ.
    """

    lengths: LengthDistribution
    rates: Estimate
    output: Estimate
    context: Estimate
    rate_draws: FloatArray
    draws: Draws
    raised: bool
    faults: tuple[Fault, ...]
    known: float = 1.0

    @property
    def rate(self) -> float:
        """All requests [req/s]."""
        return float(self.rates.value.sum())


@dataclass(frozen=True)
class Unobserved:
    """No demand comes of this window; the last good one stays. Why."""

    faults: tuple[Fault, ...]


def observed(
    window: Window, believed: Believed, rng: np.random.Generator, trust: Trust | None = None
) -> Observed | Unobserved:
    """The workload of a window, or why there is none."""
    faults = told_once((*window.faults, *window.flow.faults))
    if stop := unusable(faults):
        return Unobserved(stop)
    trust, raised = trust or Trust(), only_raises(faults)
    more = pooled(believed.lengths, _together(window.inputs), trust.prior_requests)
    moved = drift(believed.lengths, more)
    base = rebuilt(believed.lengths, more, doubtful(moved))
    output = _output_moments(window.outputs, believed.lengths, trust)
    known = _known(window.flow, faults) if raised else 1.0
    output = _held(output[0], _mean(base), known), _held(output[1], _square(base), known)
    lengths = _scaled(base, output)
    pieces = cells(lengths, closed(more, believed.lengths), believed.ranges)
    draws = draw(pieces, more, output, moved, trust=trust, rng=rng)
    seen = _estimated(window.flow, lengths, draws, believed, trust=trust, rng=rng)
    if raised:
        seen = _raised(seen, window.flow, believed, trust, known)
    return replace(seen, faults=faults, known=known)


def _known(flow: Flow, faults: tuple[Fault, ...]) -> float:
    """Share of the arrivals whose lengths were seen; 0 where not even their number is sure.

    Growing queues hide who waits, not how many: completions and the change of the gauges say that.
    """
    if any(f.effect is Effect.ONLY_RAISES and f.reason is not Reason.QUEUES_GROW for f in faults):
        return 0.0
    return min(1.0, flow.completed / flow.arrivals) if flow.arrivals > 0 else 0.0


def _held(seen: float, believed: float, known: float) -> float:
    """A figure of which only a part was seen: what is missing is as large as was believed."""
    return max(seen, known * seen + (1 - known) * believed)


def _estimated(
    flow: Flow,
    lengths: LengthDistribution,
    draws: Draws,
    believed: Believed,
    *,
    trust: Trust,
    rng: np.random.Generator,
) -> Observed:
    """Rates, outputs and contexts by range; arrivals are Poisson, seen as so many in so long."""
    mix, given, context = _by_range(lengths, believed.ranges)
    total = rng.gamma(flow.arrivals + 0.5, size=(trust.draws, 1)) / flow.seconds
    drawn = np.asarray(draws.probability * total)
    return Observed(
        lengths,
        _estimate(mix * flow.arrivals / flow.seconds, drawn, trust),
        _estimate(given, draws.output, trust),
        _estimate(context, draws.context, trust),
        drawn,
        draws,
        raised=False,
        faults=(),
    )


def _raised(seen: Observed, flow: Flow, believed: Believed, trust: Trust, known: float) -> Observed:
    """The same where requests are missing: those are as was believed, in every draw.

    Where their number is sure (``known`` > 0) they take the place that the mix lacks, and no more;
    else nothing is below what was believed.
    """
    part = min(1.0, flow.completed / flow.arrivals) if flow.arrivals > 0 else 1.0
    mix, given, context = _by_range(believed.lengths, believed.ranges)
    sure = known > 0
    if sure:
        given, context = np.zeros_like(given), np.zeros_like(context)  # ``output`` holds them
    rates = _placed(seen.rates.value, part, mix, believed, sure=sure)
    drawn = np.stack([_placed(row, part, mix, believed, sure=sure) for row in seen.rate_draws])
    draws = Draws(
        seen.draws.probability,
        np.maximum(seen.draws.output, given),
        np.maximum(seen.draws.context, context),
    )
    return Observed(
        _reweighted(seen.lengths, believed.ranges, rates),
        _estimate(rates, drawn, trust),
        _estimate(np.maximum(seen.output.value, given), draws.output, trust),
        _estimate(np.maximum(seen.context.value, context), draws.context, trust),
        drawn,
        draws,
        raised=True,
        faults=(),
    )


def _placed(
    rates: FloatArray, part: float, mix: FloatArray, believed: Believed, *, sure: bool
) -> FloatArray:
    """Rates of which only a part finished: the rest goes where the mix lacks it."""
    like = mix if believed.rates is None or not believed.rates.sum() else believed.rates
    placed = completed_by_mix(rates * part, like / like.sum(), float(rates.sum()))
    return placed if sure else never_lower(placed, believed.rates)


def _together(parts: tuple[Buckets, ...]) -> Buckets:
    """All sources on the edges they share; nothing seen is one bucket without requests."""
    nothing = Buckets((0.0, inf), (0.0,), None)
    return added(parts) if parts else nothing


def _output_moments(
    parts: tuple[Buckets, ...], prior: LengthDistribution, trust: Trust
) -> tuple[float, float]:
    """E[o] and E[o^2] of the outputs seen and of the prior's requests."""
    mean, square = _mean(prior), _square(prior)
    for part in parts:
        if part.requests <= 0 or part.mean is None or part.mean <= 0:
            continue
        weight = part.requests / (part.requests + trust.prior_requests)
        mean += weight * (part.mean - mean)
        square += weight * ((second_moment(part) or square) - square)
    return mean, max(square, mean**2)


def _mean(lengths: LengthDistribution) -> float:
    """E[o] [tokens]."""
    return float(lengths.probability @ lengths.output)


def _square(lengths: LengthDistribution) -> float:
    """E[o^2] [tokens^2]."""
    return float(lengths.probability @ lengths.output_square)


def _scaled(lengths: LengthDistribution, output: tuple[float, float]) -> LengthDistribution:
    """E[o | l] times one factor, E[o^2 | l] times another, so that both moments are right."""
    return LengthDistribution(
        lengths.length,
        lengths.probability,
        lengths.output * (output[0] / _mean(lengths)),
        lengths.output_square * (output[1] / _square(lengths)),
    )


def _by_range(
    lengths: LengthDistribution, ranges: tuple[Range, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Share, E[o] and mean context by range, and of what lies beyond the last."""
    beyond = type(ranges[0])(ranges[-1].max, max(ranges[-1].max, int(lengths.length[-1])) + 1)
    moments = lengths.moments((*ranges, beyond))
    return moments.probability, moments.output, moments.context


def _reweighted(
    lengths: LengthDistribution, ranges: tuple[Range, ...], rates: FloatArray
) -> LengthDistribution:
    """The shape inside each range kept, the ranges in the proportion of the rates."""
    if rates.sum() <= 0:
        return lengths
    cuts = np.array([r.min for r in ranges] + [ranges[-1].max])
    where = np.maximum(0, np.searchsorted(cuts, lengths.length, side="right") - 1)
    mix = _by_range(lengths, ranges)[0]
    factor = rates / rates.sum() / np.where(mix > 0, mix, 1)
    weight = lengths.probability * factor[where]
    return LengthDistribution(
        lengths.length, weight / weight.sum(), lengths.output, lengths.output_square
    )


def _estimate(value: FloatArray, draws: FloatArray, trust: Trust) -> Estimate:
    """With an interval that holds the value itself."""
    low, high = interval(draws, trust.share)
    return Estimate(value, np.minimum(low, value), np.maximum(high, value))
