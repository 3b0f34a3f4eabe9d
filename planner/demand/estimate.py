"""Where arrivals that did not finish belong, and what a window that misses some may say.

Under overload completions saturate at what the islands can do, and long requests, which take
longest, are the last to finish: the observation is *censored*. Then it may raise what is believed
of a range and never lower it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray


def completed_by_mix(finished: FloatArray, mix: FloatArray, arrivals: float) -> FloatArray:
    """Arrivals by range, at least those that finished, and otherwise as like the mix as possible.

    Requests that came and did not finish have no known length. Of all ways to place them this one
    has the least relative entropy to ``mix``: ``max(finished_j, c mix_j)`` with c such that the sum
    is right. So what is missing is taken to be what the mix expects and the buckets lack.

    Args:
        finished: Requests by range.
        mix: Share of each range as believed before.
        arrivals: Requests in all; not fewer than the finished ones are taken.
    """
    if arrivals <= finished.sum() or not mix.sum():
        return finished
    wanted = np.flatnonzero(mix > 0)
    order = wanted[np.argsort(finished[wanted] / mix[wanted], kind="stable")]
    # With c so large that the first k ranges of this order are filled up to c times their share:
    share = np.cumsum(mix[order])
    kept = finished.sum() - np.cumsum(finished[order])
    levels = (arrivals - kept) / share
    # The right k is the one with the smallest c: each further range adds what it needs or nothing.
    level = float(levels[_last_filled(levels, finished[order] / mix[order])])
    return np.maximum(finished, level * mix)


def never_lower(rates: FloatArray, believed: FloatArray | None) -> FloatArray:
    """Rates by range that a censored window may state [req/s]."""
    return rates if believed is None else np.maximum(rates, believed)


def _last_filled(levels: FloatArray, ratios: FloatArray) -> int:
    """The last range whose finished requests are fewer than the level gives it."""
    filled = np.flatnonzero(ratios <= levels)
    return int(filled[-1]) if len(filled) else 0
