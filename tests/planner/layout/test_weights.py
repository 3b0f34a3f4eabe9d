"""Integer weights and the join of prefill and decode shares."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.layout.weights import apportion, join
from archipelago.planner.plan import MILLION


def test_equal_shares_leave_the_remainder_to_the_first() -> None:
    """1,000,000 / 3 leaves one request over; the first share gets it."""
    assert apportion(np.array([1.0, 1.0, 1.0])).tolist() == [333_334, 333_333, 333_333]


def test_join_keeps_the_sums_of_both_sides() -> None:
    pairs = join([("p0", 600_000), ("p1", 400_000)], [("d0", 0), ("d1", 700_000), ("d2", 300_000)])
    assert pairs == [("p0", "d1", 600_000), ("p1", "d1", 100_000), ("p1", "d2", 300_000)]


SHARES = st.lists(st.floats(0, 1e3), min_size=1, max_size=8).filter(lambda s: sum(s) > 1e-6)


@given(prefill=SHARES, decode=SHARES)
def test_weights_sum_to_a_million_and_pairs_keep_the_sums_of_both_sides(
    prefill: list[float], decode: list[float]
) -> None:
    sides = []
    for letter, shares in (("p", prefill), ("d", decode)):
        weights = apportion(np.array(shares))
        assert weights.sum() == MILLION
        exact = np.array(shares) / np.sum(shares) * MILLION
        assert (np.abs(weights - exact) <= 1 + 1e-6).all()
        sides.append([(f"{letter}{i}", int(w)) for i, w in enumerate(weights)])
    pairs = join(*sides)
    assert all(weight > 0 for *_, weight in pairs)
    for side, place in zip(sides, (0, 1), strict=True):
        for group, weight in side:
            assert sum(pair[2] for pair in pairs if pair[place] == group) == weight
    assert len(pairs) <= len(prefill) + len(decode) - 1
