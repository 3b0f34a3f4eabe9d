"""From shares to integer weights, and from two sides to pairs.

Shares are rounded by largest remainder, each side to the same whole; the north-west corner rule
then joins the two sides with the fewest pairs, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from archipelago.planner.plan import MILLION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

Name = TypeVar("Name")


def per_million(shares: FloatArray) -> NDArray[np.int64]:
    """Integers in proportion to ``shares`` that sum to 1,000,000."""
    return apportion(shares, MILLION)


def apportion(shares: FloatArray, whole: int) -> NDArray[np.int64]:
    """Integers in proportion to ``shares`` that sum to ``whole`` (largest remainder, Hamilton).

    Ties go to the earlier share, so that equal input gives equal output. Not all shares may be 0.
    """
    exact = shares / shares.sum() * whole
    weights: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    left = whole - int(weights.sum())
    order = np.argsort(-(exact - weights), kind="stable")
    weights[order[:left]] += 1
    return weights


def join(
    givers: Iterable[tuple[Name, int]], takers: Iterable[tuple[Name, int]]
) -> list[tuple[Name, Name, int]]:
    """(giver, taker, weight) whose weights have exactly the given sums on both sides.

    Both sides must have equal sums; names of weight 0 get no pair.
    """
    pairs: list[tuple[Name, Name, int]] = []
    rest = [item for item in takers if item[1] > 0][::-1]
    for giver, weight in givers:
        have = weight
        while have > 0:
            taker, need = rest.pop()
            part = min(have, need)
            pairs.append((giver, taker, part))
            have -= part
            if need > part:
                rest.append((taker, need - part))
    return pairs
