"""A distribution as a histogram in a file, and the loss of moments that this costs."""

from __future__ import annotations

import numpy as np

from ..errors import OutOfRange
from ..model import FloatArray
from .lengths import Bin, LengthDistribution

MILLION = 1_000_000


def histogram_bins(lengths: LengthDistribution, count: int) -> tuple[Bin, ...]:
    """Return at most ``count`` bins of about equal probability whose means are exact.

    Weights are whole requests per million (largest remainder) and sum to a million.

    Raises:
        OutOfRange: ``count`` is below 1.
    """
    if count < 1:
        raise OutOfRange(f"a histogram has at least one bin, not {count}")
    whole = np.floor(lengths.length).astype(np.int64)
    # A bin begins at each count-th of the cumulative share. Its edge is a whole number, so atoms
    # with the same whole part stay together.
    before = np.concatenate(([0.0], np.cumsum(lengths.probability)[:-1]))
    first = np.flatnonzero(np.concatenate(([True], np.diff(whole) > 0)))
    slot = np.floor(before[first] / lengths.probability.sum() * count + 1e-9)
    starts = first[np.concatenate(([True], np.diff(slot) > 0))]
    share = np.add.reduceat(lengths.probability, starts)
    edges = np.append(whole[starts], whole[-1] + 1)
    columns = (lengths.length, lengths.output, lengths.output_square)
    means = [np.add.reduceat(lengths.probability * c, starts) / share for c in columns]
    weights = per_million(share)
    return tuple(
        Bin(int(edges[i]), int(edges[i + 1]), weights[i], *(float(m[i]) for m in means))
        for i in range(len(starts))
    )


def moment_loss(exact: LengthDistribution, binned: LengthDistribution) -> dict[str, float]:
    """Return the relative error [1] of each moment that enters the capacity rows, by its name.

    Source: docs/explanation/performance-model.md#requests.
    """
    true, approximate = _moments(exact), _moments(binned)
    return {name: approximate[name] / true[name] - 1 for name in true}


def per_million(share: FloatArray) -> list[int]:
    """Return shares [1] as integers that sum to a million [requests per million], none below 1.

    By the largest remainder. Shares below one in a million are raised to 1, and the largest pays.

    Source: docs/explanation/performance-model.md#requests.

    Args:
        share: Shares of the bins [1], with a sum above 0.
    """
    scaled = share / share.sum() * MILLION
    floors = np.maximum(1, np.floor(scaled)).astype(np.int64)
    missing = int(MILLION - floors.sum())
    order = np.argsort(floors - scaled, kind="stable")
    if missing >= 0:
        floors[order[:missing]] += 1
    else:  # shares below one in a million were raised to 1: the largest pay for it
        floors[int(floors.argmax())] += missing
    return [int(weight) for weight in floors]


def _moments(lengths: LengthDistribution) -> dict[str, float]:
    p, size, out = lengths.probability, lengths.length, lengths.output
    return {
        "E[l]": float(p @ size),
        "E[l^2]": float(p @ size**2),
        "E[o]": float(p @ out),
        "E[o^2]": float(p @ lengths.output_square),
        "E[o l]": float(p @ (out * size)),
    }
