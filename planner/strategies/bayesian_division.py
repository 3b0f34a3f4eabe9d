"""The divider of the thesis: from two numbers per pool to its islands.

Rignall, Scheduling heterogeneous GPUs (2025), section 4.9.2. Two differences, both because an
island here has one of the catalogue's sizes on real nodes: sizes are rounded down to the
catalogue's, and islands that do not fit on the pool's nodes and domains shrink or are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..problem import Pool
from ..templates.packing import capacity, island_sizes

SKEW = 5.0
"""Largest absolute skew, as in the thesis' section 5.3.2; without unit."""


@dataclass(frozen=True)
class Division:
    """The outer loop's choice for one pool: number of islands n_t, and skew s_t."""

    islands: int
    skew: float = 0.0


EVEN = 1e-9
"""Absolute skew below which the remainder is divided evenly."""


def divide(gpus: int, division: Division, smallest: int) -> tuple[int, ...]:
    """Divide ``gpus`` GPUs into islands; return their sizes before any rounding [GPUs].

    Every island has ``smallest`` GPUs; the remainder is shared in proportion to k^skew,
    k = 1, 2 ..., by largest remainders. The sizes sum to ``gpus``, or there is no island.
    """
    count = min(division.islands, gpus // smallest)
    if count <= 0:
        return ()
    remainder = gpus - count * smallest
    skew = 0.0 if abs(division.skew) < EVEN else division.skew
    weights = [float(k) ** skew for k in range(1, count + 1)]
    ideal = [remainder * weight / math.fsum(weights) for weight in weights]
    more = [math.floor(share) for share in ideal]
    by_remainder = sorted(range(count), key=lambda k: (more[k] - ideal[k], k))
    for k in by_remainder[: remainder - sum(more)]:
        more[k] += 1
    return tuple(smallest + extra for extra in more)


def islands(pool: Pool, division: Division, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a pool's islands, largest first; ``sizes``: of the catalogue [GPUs].

    Sizes are rounded down to the catalogue's. An island that does not fit on the pool's nodes
    beside the larger ones takes the next smaller size that does; that happens only if domains are
    no multiple of a size, or a node is incomplete.
    """
    if not sizes:
        return ()
    chain = [(size, capacity(pool, size)) for size in {*island_sizes(pool), *sizes}]
    placed: list[int] = []
    for largest in sorted(divide(pool.count, division, min(sizes)), reverse=True):
        choices = sorted((size for size in sizes if size <= largest), reverse=True)
        fit = next((size for size in choices if _packs([*placed, size], chain)), None)
        if fit is not None:
            placed.append(fit)
    return tuple(sorted(placed, reverse=True))


def _packs(placed: Sequence[int], chain: Sequence[tuple[int, int]]) -> bool:
    """Return whether the packing rows hold: sum over s_i >= s of s_i / s <= C(s)."""
    return all(sum(size // step for size in placed if size >= step) <= room for step, room in chain)
