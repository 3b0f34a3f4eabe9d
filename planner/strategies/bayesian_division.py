"""The divider of the thesis: from two numbers per pool to the islands that its GPUs form.

Rignall, Scheduling heterogeneous GPUs (2025), section 4.9.2. Two departures, both because an
island here is one of the catalogue's sizes on real nodes: sizes are rounded down to the
catalogue's, and what the nodes and domains of the pool cannot hold shrinks or is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.packing import capacity, island_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.planner.problem import Pool

SKEW = 5.0
"""Largest absolute skew, as in the thesis' section 5.3.2; without unit."""
EVEN = 1e-9
"""A skew closer to 0 than this shares the remainder evenly."""


@dataclass(frozen=True)
class Division:
    """What the outer loop chooses for one pool: islands wanted n_t, and skew s_t."""

    islands: int
    skew: float = 0.0


def divide(gpus: int, division: Division, smallest: int) -> tuple[int, ...]:
    """Sizes of the islands that ``gpus`` GPUs are divided into, before any rounding [GPUs].

    Every island has ``smallest`` GPUs; the remainder is shared in proportion to k^skew,
    k = 1, 2 ..., by largest remainders. The sizes sum to ``gpus``, or there is no island.
    """
    count = min(division.islands, gpus // smallest)
    if count <= 0:
        return ()
    left = gpus - count * smallest
    skew = 0.0 if abs(division.skew) < EVEN else division.skew
    weights = [float(k) ** skew for k in range(1, count + 1)]
    ideal = [left * weight / math.fsum(weights) for weight in weights]
    more = [math.floor(share) for share in ideal]
    by_remainder = sorted(range(count), key=lambda k: (more[k] - ideal[k], k))
    for k in by_remainder[: left - sum(more)]:
        more[k] += 1
    return tuple(smallest + extra for extra in more)


def islands(pool: Pool, division: Division, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of a pool's islands, largest first [GPUs]; ``sizes`` are those the catalogue has."""
    if not sizes:
        return ()
    usable = sorted(sizes)
    wanted = divide(pool.count, division, usable[0])
    rounded = [max(size for size in usable if size <= want) for want in wanted]
    return _fitted(pool, rounded, usable)


def _fitted(pool: Pool, wanted: Sequence[int], usable: Sequence[int]) -> tuple[int, ...]:
    """As much of ``wanted`` as the pool's nodes hold, larger islands first.

    An island that does not fit takes the next smaller size that does. Only domains that are no
    multiple of a size, or a pool with an incomplete node, make this differ from ``wanted``.
    """
    chain = [(size, capacity(pool, size)) for size in {*island_sizes(pool), *usable}]
    placed: list[int] = []
    for want in sorted(wanted, reverse=True):
        choices = (size for size in reversed(usable) if size <= want)
        fit = next((size for size in choices if _packs([*placed, size], chain)), None)
        if fit is not None:
            placed.append(fit)
    return tuple(sorted(placed, reverse=True))


def _packs(placed: Sequence[int], chain: Sequence[tuple[int, int]]) -> bool:
    """The packing rows of the exact program: sum over s_i >= s of s_i / s <= C(s)."""
    return all(sum(size // step for size in placed if size >= step) <= room for step, room in chain)
