"""What the busiest rank of expert parallelism gets, as the tables' collector draws it.

Loads of experts follow a density x^-a and are rounded to whole tokens that add up. Of few tokens
most are what rounding leaves over, so the rule for that decides: until 2026-04-19 the collector
gave it to one expert after the other, which are neighbours, on one rank; since then each rank gets
one in turn. A table does not say by which rule it was drawn, but its times do: ``takes_turns``.

Source: ai-dynamo/aiconfigurator @ 095f58a, collector/helper.py, and its history. Draws are our own,
with a fixed seed, so one draw of theirs stays noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from archipelago.perfmodel.model import FloatArray

_DRAWS = 24
_FEWEST = 50
"""Rows below which times do not tell the rule."""
_CLEARLY = 0.85
"""The older rule counts if it leaves less than this share of what the other leaves [1]."""


@dataclass(frozen=True)
class Load:
    """What the busiest rank gets: rows (token-expert pairs) and experts that see any."""

    rows: float
    touched: float


@dataclass(frozen=True)
class Routing:
    """Tokens of all ranks, experts, experts of a token, ranks, and how the experts are drawn.

    ``law``: ``balanced`` (evenly spaced experts), ``uniform`` (drawn evenly: an expert is touched
    with probability 1 - (1 - k/E)^T), ``power_law_a``, or that with ``_eplb`` (redundant copies
    even it out).
    """

    tokens: int
    experts: int
    per_token: int
    ranks: int
    law: str

    @property
    def is_skewed(self) -> bool:
        """Return whether some experts are chosen more often than others."""
        return self.law.startswith("power_law") and not self.law.endswith("eplb")

    @property
    def is_left_over(self) -> bool:
        """Return whether rounding decides on which ranks the tokens fall."""
        return self.is_skewed and self.ranks > 1 and self.tokens * self.per_token <= self.experts


@cache
def busiest(routing: Routing, in_turn: bool) -> Load:
    """Return the load of the busiest rank; ``in_turn``: each rank gets what rounding leaves."""
    tokens, experts, ranks = routing.tokens, routing.experts, routing.ranks
    mine = experts // ranks
    if routing.is_skewed:
        counts = _counts(routing, ranks if in_turn else 1)
    elif routing.law == "balanced":
        counts = _spaced(routing)
    else:
        drawn = mine * (1 - (1 - routing.per_token / experts) ** tokens)
        return Load(tokens * routing.per_token / ranks, drawn)
    by_rank = counts.reshape(-1, ranks, mine)
    heaviest = by_rank[np.arange(len(by_rank)), by_rank.sum(axis=2).argmax(axis=1)]
    return Load(float(heaviest.sum(axis=1).mean()), float((heaviest > 0).sum(axis=1).mean()))


def takes_turns(routings: Sequence[Routing], seconds: FloatArray, weights: FloatArray) -> bool:
    """Return whether each rank of a table got in turn what rounding leaves, judged by its times.

    The time of few tokens follows the weights that are read, and each rule says which these are:
    the one that explains the times counts. True if too few rows tell.

    Args:
        routings: One per row.
        seconds: Measured times [s], shape (rows,).
        weights: Parameters of an expert on its rank, shape (rows,).
    """
    rows = np.array([routing.is_left_over for routing in routings])
    few = [routing for routing in routings if routing.is_left_over]
    if len(few) < _FEWEST:
        return True
    time, size = np.log(seconds[rows]), np.log(weights[rows])
    tokens = np.log([routing.tokens for routing in few])

    def unexplained(in_turn: bool) -> float:
        touched = np.log([busiest(routing, in_turn).touched for routing in few])
        known = np.stack([np.ones(len(time)), touched, size, tokens], axis=1)
        return float(np.square(time - known @ np.linalg.lstsq(known, time, rcond=None)[0]).sum())

    return unexplained(in_turn=False) > _CLEARLY * unexplained(in_turn=True)


def _counts(routing: Routing, groups: int) -> FloatArray:
    """Return whole loads of experts [tokens], shape (draws, experts), by a power law."""
    total = routing.tokens * routing.per_token
    few = total <= routing.experts
    low, high = (0.01, 2.0) if few else (1.0, max(1.0, 0.8 * routing.tokens))
    power = 1 - float(routing.law.rpartition("_")[2])
    uniform = np.random.default_rng(routing.experts).random((_DRAWS, routing.experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    expected = drawn / drawn.sum(axis=1, keepdims=True) * total
    return _whole(np.minimum(np.rint(expected), routing.tokens), total, routing.tokens, groups)


def _whole(counts: FloatArray, total: int, most: int, groups: int) -> FloatArray:
    """Return counts that add up to ``total`` in each draw.

    What is missing goes to ``groups`` groups of neighbours in turn, in each to one expert after the
    other, the least loaded first; what is too much comes from the most loaded. No count is above
    ``most``: what is cut off there goes to nobody.
    """
    left = total - counts.sum(axis=1)
    sign = np.where(left < 0, -1.0, 1.0)[:, None, None]
    grouped = counts.reshape(len(counts), groups, -1)
    place = np.argsort(np.argsort(sign * grouped, axis=2, kind="stable"), axis=2)
    given = (np.abs(left)[:, None] + groups - 1 - np.arange(groups)) // groups
    each, more = np.divmod(given[:, :, None], grouped.shape[2])
    whole = grouped + sign * (each + (place < more))
    return np.asarray(np.clip(whole, 0, most).reshape(counts.shape))


def _spaced(routing: Routing) -> FloatArray:
    """Return loads of experts [tokens] that evenly spaced tokens choose, shape (experts,)."""
    tokens, experts = np.arange(routing.tokens), routing.experts
    stride = -(-experts // routing.per_token)
    shift = max(1.0, stride / routing.tokens)
    chosen = tokens[:, None] * shift + np.arange(routing.per_token) * stride
    numbers = (chosen % experts).astype(np.int64).ravel()
    return np.bincount(numbers, minlength=experts).astype(np.float64)
