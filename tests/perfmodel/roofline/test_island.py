"""The roofline against numbers computed by hand, and against what each knob must do."""

import time

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import Accelerator, accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.roofline import EngineSettings, Roofline
from tests.perfmodel.models import tiny_model

# An accelerator that only the last fall-back row speaks of: mfu 0.70, mbu 0.75, prefill attention
# 0.45, decode attention 0.04, cache 0.75.
CARD = Accelerator("paper", "none", bf16=1e12, memory=1e11, bandwidth=1e11, domain=8)
TINY = tiny_model(1)
READ = 0.75e11


def tiny() -> Roofline:
    return Roofline(CARD, TINY, Parallelism())


def test_one_decode_step_by_hand() -> None:
    # One sequence with 1,000 cached tokens; every product is bound by its weights (2 B each).
    bytes_moved = (
        2 * 8_000  # two norms: 4 x 1000 x 2 B
        + 4_000_000
        + 6_000  # qkv 1000 x 2000, activations (1000 + 2000) x 2 B
        + 2_000_000
        + 4_000  # attention output 1000 x 1000
        + 12_000_000
        + 14_000  # gate and up 1000 x 6000
        + 6_000_000
        + 8_000  # down 3000 x 1000
        + 4_000_000
        + 6_000  # output head 1000 x 2000
    )
    # 4 operations per query element and position; cache 1000 x 1000 x 2 B, q, result, k and v
    heads = 4 * 1000 * 1000 / (0.10 * 1e12) + 2_006_000 / 0.90e11
    fixed = 1.4e-3 + 18e-6 + 8e-6  # step, one sequence, one layer
    step = tiny().decode_step_time(np.array(1.0), np.array(1000.0))
    assert float(step) == pytest.approx(bytes_moved / READ + heads + fixed, rel=1e-12)


def test_one_prefill_by_hand() -> None:
    # 1,000 tokens: every product is bound by 2 operations per weight and token at 0.7e12/s.
    products = 2 * 1000 * (2_000_000 + 1_000_000 + 6_000_000 + 3_000_000) / 0.7e12
    attention = 4 * 1000 * (1000 * 1001 / 2) / 0.45e12  # causal: 1 + 2 + ... + 1000 positions
    norms = 2 * 8_000 * 1000 / READ
    head = 4_006_000 / READ  # of the last token only
    expected = products + attention + norms + head + 1.4e-3
    assert float(tiny().prefill_time(np.array(1000.0))) == pytest.approx(expected, rel=1e-12)


def test_a_prompt_of_two_chunks_reads_the_weights_twice() -> None:
    one = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(chunk=1000))
    whole = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(chunk=2000))
    extra = one.prefill_time(np.array(2000.0)) - whole.prefill_time(np.array(2000.0))
    # All products are bound by compute either way, so only the fixed cost of a pass comes again.
    assert float(extra) == pytest.approx(1.4e-3, rel=1e-9)


def test_cached_prefixes_save_their_products_but_not_the_attention_to_them() -> None:
    half = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(prefix_hit=0.5))
    # The new half attends to all 500,500 positions but the 125,250 of the cached half.
    products = 2 * 500 * 12_000_000 / 0.7e12
    attention = 4 * 1000 * (500_500 - 125_250) / 0.45e12
    expected = products + attention + 2 * 8_000 * 500 / READ + 4_006_000 / READ + 1.4e-3
    assert float(half.prefill_time(np.array(1000.0))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("settings", [{"chunk": 0}, {"prefix_hit": 1.0}, {"prefix_hit": -0.1}])
def test_settings_out_of_range_say_what_is_valid(settings: dict[str, float]) -> None:
    with pytest.raises(OutOfRange, match="valid are chunk >= 1 and 0 <= prefix_hit < 1"):
        EngineSettings(**settings)  # type: ignore[arg-type]


def test_a_step_touches_more_experts_as_the_batch_grows_until_all_are() -> None:
    model = Roofline(accelerator("H200"), architecture("DeepSeek-V3"), Parallelism(tp=8), 8)
    block = model.layers.sparse
    assert block is not None
    touched = block._touched(np.array([1.0, 32.0, 1024.0]))
    # T tokens touch a share 1 - (1 - 8 of 256)^T of the experts
    assert touched == pytest.approx([8 / 256, 1 - (248 / 256) ** 32, 1.0], rel=1e-9)


def test_expert_weights_stream_as_the_measured_kernels_do() -> None:
    # SGLang's masked grouped products on H100 with all experts touched: 20 us and 44.04 MB at
    # 2.68 TB/s for each expert of a GPU; .087 ms measured with 4 experts, .278 with 16.
    model = architecture("DeepSeek-V3")
    for gpus, measured in ((64, 0.087e-3), (16, 0.278e-3)):
        island = Roofline(accelerator("H100"), model, Parallelism(dp=gpus, ep=gpus), 8)
        assert island.layers.sparse is not None
        seconds = (
            island.layers.sparse.routed(np.array(8.0))
            + island.settings.on(island.accelerator).overheads.expert_layer
        )
        assert float(seconds) == pytest.approx(measured, rel=0.10)


def test_latent_decode_attention_runs_at_the_measured_rate() -> None:
    # H100, 128 sequences of 8 K against 4 K: .630 - .389 ms, 606 TFLOP/s of 2 x 128 x 1088
    model = Roofline(accelerator("H100"), architecture("DeepSeek-V3"), Parallelism(dp=64, ep=64), 8)
    per_copy = np.array([128 * 4096.0, 128 * 8192.0])
    layers = np.diff(model.decode_step_time(np.array(64 * 128.0), 64 * per_copy))[0] / 61
    assert layers == pytest.approx(0.241e-3, rel=0.05)


def test_the_all_to_all_agrees_with_deepep() -> None:
    # 128 tokens per GPU, 8 of 256 experts, FP8 out and BF16 back, measured on 1, 4 and 8 nodes of
    # H100 with 400 Gb/s per GPU (the H200 has the same links): 40 + 72, 143 + 263 and 167 + 305 us.
    for gpus, measured in ((8, 112e-6), (32, 406e-6), (64, 472e-6)):
        island = Roofline(
            accelerator("H200"), architecture("DeepSeek-V3"), Parallelism(dp=gpus, ep=gpus), 8
        )
        assert island.layers.sparse is not None
        seconds = island.layers.sparse.exchange(np.array(128.0), "low_latency")
        assert float(seconds) == pytest.approx(measured, rel=0.15)


def test_a_pipeline_keeps_as_many_micro_batches_as_stages() -> None:
    model, h100 = architecture("Llama-3.1-70B", "fp8"), accelerator("H100")
    whole = Roofline(h100, model, Parallelism(tp=4), 8)
    staged = Roofline(h100, model, Parallelism(tp=4, pp=2), 8)
    length = np.array([4096.0])
    assert staged.prefill_occupancy(length) == pytest.approx(
        whole.prefill_time(length) / 2, rel=0.01
    )
    # A step of 64 sequences runs as two micro-batches of 32: nearly the time of 32.
    step = staged.decode_step_time(np.array(64.0), np.array(64e3))
    half = whole.decode_step_time(np.array(32.0), np.array(32e3))
    assert float(step) == pytest.approx(float(half), rel=0.05)


def test_slower_scale_out_slows_wide_expert_parallelism_only() -> None:
    model = architecture("DeepSeek-V3")
    batch, tokens = np.array(1024.0), np.array(2e6)
    narrow = [Roofline(accelerator("H200"), model, Parallelism(dp=8, ep=8), n) for n in (4, 8)]
    across, inside = (float(m.decode_step_time(batch, tokens)) for m in narrow)
    assert across > inside * 1.1


def test_thousands_of_lengths_and_batches_take_milliseconds() -> None:
    model = Roofline(accelerator("H200"), architecture("DeepSeek-V3"), Parallelism(dp=8, ep=8), 8)
    lengths = np.linspace(1, 16384, 4000)
    model.prefill_time(lengths)
    started = time.process_time()  # what else runs does not count
    model.prefill_time(lengths)
    model.decode_step_time(lengths, 1000 * lengths)
    assert time.process_time() - started < 0.05  # 2 ms alone
