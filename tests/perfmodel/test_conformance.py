"""What every performance model promises, for every kind of model and accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.parallelism import Parallelism
from tests.perfmodel.models import CASES, FAMILIES, island

if TYPE_CHECKING:
    from archipelago.perfmodel.model import PerformanceModel

LENGTHS = np.unique(np.geomspace(1, 100_000, 300).round())
BATCHES = np.unique(np.concatenate([np.arange(0, 40), np.geomspace(40, 40_000, 120).round()]))


@pytest.fixture(params=CASES, ids=["-".join(case) for case in CASES])
def model(request: pytest.FixtureRequest) -> PerformanceModel:
    return island(*request.param)


class TestConformance:
    """The promises of ``PerformanceModel``, and what physics asks of any of them."""

    def test_times_are_positive_and_finite(self, model: PerformanceModel) -> None:
        capacity = float(model.kv_capacity())
        for seconds in (
            model.prefill_time(LENGTHS),
            model.prefill_occupancy(LENGTHS),
            model.decode_step_time(BATCHES[:, None], np.array([[0.0, capacity]])),
        ):
            assert np.isfinite(seconds).all()
            assert (seconds > 0).all()

    def test_longer_prompts_take_longer(self, model: PerformanceModel) -> None:
        seconds = model.prefill_time(LENGTHS)
        assert (np.diff(seconds) >= 0).all()
        assert (np.diff(seconds[LENGTHS >= 256]) > 0).all()

    def test_an_island_is_busy_no_longer_than_its_prompt_takes(
        self, model: PerformanceModel
    ) -> None:
        assert (model.prefill_occupancy(LENGTHS) <= model.prefill_time(LENGTHS)).all()

    def test_a_step_grows_with_the_batch_and_with_the_cache(self, model: PerformanceModel) -> None:
        tokens = np.linspace(0, model.kv_capacity(), 64)
        seconds = model.decode_step_time(BATCHES[:, None], tokens[None, :])
        slack = 1e-12 * seconds.max()
        assert (np.diff(seconds, axis=0) >= -slack).all()
        assert (np.diff(seconds, axis=1) >= -slack).all()

    def test_a_step_is_convex_in_the_cache(self, model: PerformanceModel) -> None:
        tokens = np.linspace(0, model.kv_capacity(), 64)
        seconds = model.decode_step_time(BATCHES[:, None], tokens[None, :])
        assert (np.diff(seconds, n=2, axis=1) >= -1e-12 * seconds.max()).all()

    def test_arrays_give_what_scalars_give(self, model: PerformanceModel) -> None:
        batches, tokens = np.array([1.0, 17.0, 300.0]), np.array([50.0, 20_000.0, 40_000.0])
        together = model.decode_step_time(batches, tokens)
        alone = [
            float(model.decode_step_time(np.array(b), np.array(k)))
            for b, k in zip(batches, tokens, strict=True)
        ]
        assert together.tolist() == alone
        prompts = [float(model.prefill_time(np.array(length))) for length in LENGTHS[:3]]
        assert model.prefill_time(LENGTHS[:3]).tolist() == prompts

    def test_batch_and_cache_broadcast(self, model: PerformanceModel) -> None:
        seconds = model.decode_step_time(np.ones((5, 1)), np.ones((1, 7)))
        assert seconds.shape == (5, 7)

    def test_inputs_are_left_alone(self, model: PerformanceModel) -> None:
        lengths, batches = LENGTHS.copy(), BATCHES.copy()
        model.prefill_time(lengths)
        model.decode_step_time(batches, batches)
        assert (lengths == LENGTHS).all()
        assert (batches == BATCHES).all()

    def test_handed_over_bytes_grow_with_the_prompt(self, model: PerformanceModel) -> None:
        assert (np.diff(model.kv_bytes(LENGTHS)) > 0).all()

    def test_limits_are_whole_numbers_of_an_island(self, model: PerformanceModel) -> None:
        assert isinstance(model.kv_capacity(), int)
        assert model.kv_capacity() > 0
        assert isinstance(model.max_sequences(), int)
        assert model.max_sequences() >= 1
        assert model.max_length >= 32_768
        assert model.name in FAMILIES


@pytest.mark.parametrize(("family", "name"), CASES)
def test_larger_batches_leave_no_more_room_for_the_cache(family: str, name: str) -> None:
    rooms = [island(family, name, most).kv_capacity() for most in (16, 256, 1024)]
    assert rooms == sorted(rooms, reverse=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_do_not_fit_are_named_with_the_sizes(family: str) -> None:
    with pytest.raises(DoesNotFit, match=r"Llama-3.1-70B in bf16 as tp1 needs 141\.1 GB .* H100"):
        FAMILIES[family](accelerator("H100"), architecture("Llama-3.1-70B"), Parallelism(), 8)
