"""From rates per group to routes: integer weights per million, and pairs of groups.

Prefill and decode shares of a (model, range) are rounded by largest remainder, each side to one
million; the north-west corner rule then joins the two sides with the fewest pairs, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.plan import MILLION, Pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


def per_million(shares: FloatArray) -> NDArray[np.int64]:
    """Integers in proportion to ``shares`` that sum to 1,000,000 (largest remainder, Hamilton).

    Ties go to the earlier share, so that equal input gives equal output.
    """
    exact = shares / shares.sum() * MILLION
    weights: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    left = MILLION - int(weights.sum())
    order = np.argsort(-(exact - weights), kind="stable")
    weights[order[:left]] += 1
    return weights


def join(prefill: list[tuple[str, int]], decode: list[tuple[str, int]]) -> tuple[Pair, ...]:
    """Pairs whose weights have exactly the given sums on both sides.

    Both sides must have equal sums; groups of weight 0 get no pair.
    """
    pairs: list[Pair] = []
    takers = iter([item for item in decode if item[1] > 0])
    taker, need = "", 0
    for giver, weight in prefill:
        have = weight
        while have > 0:
            if need == 0:
                taker, need = next(takers)
            part = min(have, need)
            pairs.append(Pair(giver, taker, part))
            have, need = have - part, need - part
    return tuple(pairs)
