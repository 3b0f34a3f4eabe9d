"""What every performance model promises, for every kind of model and accelerator."""

from __future__ import annotations

import numpy as np
import pytest

from archipelago.perfmodel.capacity.rows import affine_majorant
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.model import PerformanceModel, Promise, broken, step_bound
from archipelago.perfmodel.roofline.memory import weights_per_gpu
from archipelago.perfmodel.roofline.parallelism import Parallelism
from tests.support.perfmodel import CASES, FAMILIES, ISLANDS, island

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
        assert Promise.GROWS_WITH_LENGTH not in broken(model)  # nobody has a reason to break it
        seconds = model.prefill_time(LENGTHS)
        assert (np.diff(seconds) >= 0).all()
        assert (np.diff(seconds[LENGTHS >= 256]) > 0).all()

    def test_prefill_occupancy_is_at_most_prefill_time(self, model: PerformanceModel) -> None:
        assert (model.prefill_occupancy(LENGTHS) <= model.prefill_time(LENGTHS)).all()

    def test_a_step_grows_with_the_batch_and_with_the_cache(self, model: PerformanceModel) -> None:
        tokens = np.linspace(0, model.kv_capacity(), 64)
        seconds = model.decode_step_time(BATCHES[:, None], tokens[None, :])
        slack = 1e-12 * seconds.max()
        if Promise.GROWS_WITH_BATCH not in broken(model):
            assert (np.diff(seconds, axis=0) >= -slack).all()
        if Promise.GROWS_WITH_CACHE not in broken(model):
            assert (np.diff(seconds, axis=1) >= -slack).all()

    def test_step_time_is_convex_in_cached_tokens(self, model: PerformanceModel) -> None:
        tokens = np.linspace(0, model.kv_capacity(), 64)
        seconds = model.decode_step_time(BATCHES[:, None], tokens[None, :])
        if Promise.CONVEX_IN_CACHE not in broken(model):
            assert (np.diff(seconds, n=2, axis=1) >= -1e-12 * seconds.max()).all()

    def test_the_bound_keeps_every_promise_and_is_never_below(
        self, model: PerformanceModel
    ) -> None:
        """What a model breaks its bound must keep: capacity rows stand on it."""
        tokens = np.linspace(0, model.kv_capacity(), 64)
        bound = step_bound(model)(BATCHES[:, None], tokens[None, :])
        seconds = model.decode_step_time(BATCHES[:, None], tokens[None, :])
        slack = 1e-11 * bound.max()
        assert (bound >= seconds - slack).all()
        for order, axis in ((1, 0), (1, 1), (2, 1)):
            assert (np.diff(bound, n=order, axis=axis) >= -slack).all()

    @pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
    def test_an_affine_majorant_never_promises_more_than_the_model(
        self, model: PerformanceModel, share: float
    ) -> None:
        """At batches that are no edge of a cell too, and at every fill of the cache."""
        cap = max(1, int(share * model.max_sequences()))
        line = affine_majorant(model, cap, 2000.0)
        batches = np.concatenate([np.linspace(0, cap, 397), [1.0, min(cap, 2.0)]])
        tokens = np.linspace(0, model.kv_capacity(), 61)
        promised = line.seconds(batches[:, None], tokens[None, :])
        assert (promised >= model.decode_step_time(batches[:, None], tokens[None, :])).all()
        assert min(line.a, line.beta, line.kappa) >= 0


@pytest.mark.parametrize(("family", "name"), [case for case in CASES if case[1] in ISLANDS])
def test_memory_is_never_exceeded(family: str, name: str) -> None:
    """Weights and a full cache of every copy fit into the memory of the island's GPUs."""
    card, architecture_name, precision, parallelism = ISLANDS[name]
    shape = architecture(architecture_name, precision)
    model = island(family, name)
    of_a_token = float(np.diff(model.kv_bytes(np.array([1e6, 1e6 + 1])))[0])
    weights = weights_per_gpu(shape, parallelism) * parallelism.gpus
    used = weights + model.kv_capacity() * of_a_token
    assert used <= accelerator(card).memory * parallelism.gpus


def test_times_are_seconds_and_room_is_tokens() -> None:
    """Units, by an order of magnitude: Llama-3.1-8B on an H100, 16 GB at 3.35 TB/s and 989 TFLOP/s.

    A step reads the weights: 4.8 ms at least. 1,000 tokens are 16 TFLOP: 16 ms at least. A token of
    cache is 2 x 8 x 128 x 32 elements of 2 B = 131,072 B, of which at most 80 GB fit.
    """
    for family in ("roofline", "fitted", "table"):
        model = island(family, "llama-8b/H100")
        assert 4.8e-3 < float(model.decode_step_time(np.array(1.0), np.array(500.0))) < 48e-3
        assert 16e-3 < float(model.prefill_time(np.array(1000.0))) < 160e-3
        assert 61_000 < model.kv_capacity() < 611_000
        assert float(np.diff(model.kv_bytes(np.array([0.0, 1.0])))[0]) == pytest.approx(131_072)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_larger_batches_leave_no_more_room_for_the_cache(family: str, name: str) -> None:
    rooms = [island(family, name, most).kv_capacity() for most in (16, 256, 1024)]
    assert rooms == sorted(rooms, reverse=True)


@pytest.mark.parametrize("family", ["roofline", "fitted", "table"])
def test_weights_that_do_not_fit_are_named_with_the_sizes(family: str) -> None:
    with pytest.raises(DoesNotFit, match=r"Llama-3.1-70B in bf16 as tp1 needs 141\.1 GB .* H100"):
        FAMILIES[family](accelerator("H100"), architecture("Llama-3.1-70B"), Parallelism(), 8)
