"""Loads of the busiest rank: what the collector of the tables draws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.kernels.loads import Routing, busiest, takes_turns


def test_balanced_experts_share_rows_evenly() -> None:
    found = busiest(Routing(64, 8, 2, 4, "balanced"), in_turn=True)
    assert (found.rows, found.touched) == (32.0, 2.0)


def test_few_tokens_leave_experts_untouched() -> None:
    # One token with 2 of 8 experts: each of a rank's 2 experts with probability 1/4.
    found = busiest(Routing(1, 8, 2, 4, "uniform"), in_turn=True)
    assert [found.rows, found.touched] == pytest.approx([0.5, 0.5])


def test_a_power_law_loads_the_busiest_rank_more_and_redundant_copies_less() -> None:
    skewed, mild, even = (
        busiest(Routing(4096, 256, 8, 32, law), in_turn=True)
        for law in ("power_law_1.2", "power_law_0.6", "power_law_1.2_eplb")
    )
    assert skewed.rows > mild.rows > even.rows == 4096 * 8 / 32


@pytest.mark.parametrize("ranks", [1, 2, 8, 32])
def test_what_rounding_leaves_of_one_token_is_piled_up_or_goes_round(ranks: int) -> None:
    """One token with 8 of 256 experts: all expected loads are below a half."""
    routing = Routing(1, 256, 8, ranks, "power_law_1.01")
    assert busiest(routing, in_turn=False).touched == 8
    assert busiest(routing, in_turn=True).touched == max(1, 8 // ranks)


@given(
    st.integers(1, 300), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 4, 16]), st.booleans()
)
def test_whole_loads_add_up(tokens: int, per_token: int, ranks: int, in_turn: bool) -> None:
    routing = Routing(tokens, 64, per_token, ranks, "power_law_1.2")
    busy, all_of_it = (busiest(replace(routing, ranks=number), in_turn) for number in (ranks, 1))
    assert all_of_it.rows == pytest.approx(tokens * per_token, rel=0.05)
    assert all_of_it.rows / ranks <= busy.rows <= all_of_it.rows
    assert 1 <= busy.touched <= 64 // ranks


@pytest.mark.parametrize("in_turn", [True, False])
def test_times_tell_by_which_rule_loads_were_drawn(in_turn: bool) -> None:
    dice = np.random.default_rng(3)
    routings = [
        Routing(tokens, 256, 8, ranks, "power_law_1.2")
        for tokens in (1, 2, 4, 8, 16)
        for ranks in (2, 4, 8, 16, 32)
    ] * 3
    weights = 1e6 * dice.integers(1, 9, len(routings)).astype(float)
    read = np.array([busiest(routing, in_turn).touched for routing in routings]) * weights
    seconds = (1e-5 + read / 1e12) * dice.lognormal(0, 0.1, len(routings))
    assert takes_turns(routings, seconds, weights) == in_turn
