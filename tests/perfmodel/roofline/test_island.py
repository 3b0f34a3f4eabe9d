"""The roofline against numbers computed by hand, and against what each knob must do."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import architecture, architectures
from archipelago.perfmodel.errors import DoesNotFit, OutOfRange, PerfModelError
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.memory import kv_tokens_per_copy, weights_per_gpu
from archipelago.perfmodel.roofline.parallelism import Parallelism, candidates
from archipelago.perfmodel.roofline.settings import EngineSettings
from benchmarks.accuracy.capacity import opt
from tests.support.perfmodel import tiny_model

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
    # The cache (1000 x 1000 x 2 B, q, result, k and v) is read while the heads work on it.
    heads = max(4 * 1000 * 1000 / (0.10 * 1e12), 2_006_000 / 0.78e11)
    gpus = bytes_moved / READ + heads + 5 * 4e-6 + 8.6e-6  # kernels that start, one layer
    host = 1.36e-3 + 37e-6  # a step and one sequence, of which a fifth waits for the GPUs
    step = tiny().decode_step_time(np.array(1.0), np.array(1000.0))
    assert float(step) == pytest.approx(max(gpus, 0.8 * host) + 0.2 * host, rel=1e-12)


def test_one_prefill_by_hand() -> None:
    # 1,000 tokens: every product is bound by 2 operations per weight and token at 0.7e12/s.
    products = 2 * 1000 * (2_000_000 + 1_000_000 + 6_000_000 + 3_000_000) / 0.7e12
    attention = 4 * 1000 * (1000 * 1001 / 2) / 0.60e12  # causal: 1 + 2 + ... + 1000 positions
    attention += 1000 * 3_000 * 2 / 0.35e11  # and what its kernel moves: q, result, k and v
    norms = 2 * 8_000 * 1000 / READ
    head = 4_006_000 / READ  # of the last token only
    expected = products + attention + norms + head + 5 * 4e-6 + 0.2 * 1.36e-3
    assert float(tiny().prefill_time(np.array(1000.0))) == pytest.approx(expected, rel=1e-12)


def test_a_prompt_of_two_chunks_reads_the_weights_twice() -> None:
    one = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(chunk=1000))
    whole = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(chunk=2000))
    extra = one.prefill_time(np.array(2000.0)) - whole.prefill_time(np.array(2000.0))
    # All products are bound by compute either way, so what comes again is the host's exposed work,
    # the start of four kernels, and the cache of the first chunk for the second: 1000 x 1000 x 2 B.
    again = 2_000_000 / 0.78e11
    assert float(extra) == pytest.approx(0.2 * 1.36e-3 + 4 * 4e-6 + again, rel=1e-9)


def test_cached_prefixes_save_their_products_but_not_the_attention_to_them() -> None:
    half = Roofline(CARD, TINY, Parallelism(), settings=EngineSettings(prefix_hit=0.5))
    # The new half attends to all 500,500 positions but the 125,250 of the cached half.
    products = 2 * 500 * 12_000_000 / 0.7e12
    attention = 4 * 1000 * (500_500 - 125_250) / 0.60e12 + 500 * 3_000 * 2 / 0.35e11
    rest = 2 * 8_000 * 500 / READ + 4_006_000 / READ + 5 * 4e-6 + 0.2 * 1.36e-3
    expected = products + attention + rest + 1_000_000 / 0.78e11  # the cached half is read
    assert float(half.prefill_time(np.array(1000.0))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("settings", [{"chunk": 0}, {"prefix_hit": 1.0}, {"prefix_hit": -0.1}])
def test_settings_out_of_range_say_what_is_valid(settings: dict[str, float]) -> None:
    with pytest.raises(OutOfRange, match="valid are chunk >= 1 and 0 <= prefix_hit < 1"):
        EngineSettings(**settings)  # type: ignore[arg-type]


def test_the_share_of_experts_read_grows_with_the_batch() -> None:
    model = Roofline(accelerator("H200"), architecture("DeepSeek-V3"), Parallelism(tp=8), 8)
    block = model.layers.sparse
    assert block is not None
    touched = block._touched(np.array([1.0, 32.0, 1024.0]))
    # T tokens touch a share 1 - (1 - 8 of 256)^(T^0.84) of the experts
    assert touched == pytest.approx(
        [1 - (248 / 256) ** (tokens**0.84) for tokens in (1, 32, 1024)], rel=1e-9
    )


def test_expert_weights_are_read_at_the_measured_bandwidth() -> None:
    # SGLang's masked grouped products on H100 with all experts touched: 20 us and 44.04 MB at
    # 2.68 TB/s for each expert of a GPU; .087 ms measured with 4 experts, .278 with 16.
    model = architecture("DeepSeek-V3")
    for gpus, measured in ((64, 0.087e-3), (16, 0.278e-3)):
        island = Roofline(accelerator("H100"), model, Parallelism(dp=gpus, ep=gpus), 8)
        assert island.layers.sparse is not None
        seconds = island.layers.sparse.routed(np.array(8.0)) + 20e-6  # of the kernel alone
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
    # Inside a node engines take the faster of this and gathering all tokens.
    for gpus, measured in ((32, 406e-6), (64, 472e-6)):
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


DISTSERVE = (
    Path(__file__)
    .parents[2]
    .joinpath(
        "../shared/data/measured/distserve/simdistserve/estimators/profile_data/max_num_tokens.csv"
    )
)


def test_deepseek_needs_sixteen_h800_but_only_eight_h20_or_h200() -> None:
    model, whole = architecture("DeepSeek-V3"), Parallelism(tp=8, ep=8)
    with pytest.raises(
        DoesNotFit, match=r"DeepSeek-V3 in fp8 as tp8-ep8 needs 85\.1 GB .* H800 has 75\.2 GB"
    ):
        Roofline(accelerator("H800"), model, whole, 8)
    assert 50_000 < Roofline(accelerator("H20"), model, whole, 8).kv_capacity() < 100_000
    assert Roofline(accelerator("H200"), model, whole, 8).kv_capacity() > 600_000
    assert Roofline(accelerator("H800"), model, Parallelism(dp=16, ep=16), 8).kv_capacity() > 10**6


def test_weights_of_a_sliced_dense_model_by_hand() -> None:
    model = architecture("Llama-3.1-70B")
    # Everything but the norms is sliced: 70.55e9 parameters x 2 B / 8; norms 80 x 2 x 8192 x 2 B
    norms = 80 * 2 * 8192
    expected = (model.parameters - norms - 8192) * 2 / 8 + norms * 2
    assert weights_per_gpu(model, Parallelism(tp=8)) == pytest.approx(expected, rel=1e-9)


def test_experts_spread_over_all_gpus_while_attention_is_repeated() -> None:
    model = architecture("DeepSeek-V3")
    narrow = weights_per_gpu(model, Parallelism(dp=8, ep=8))
    wide = weights_per_gpu(model, Parallelism(dp=32, ep=32))
    # 24 experts fewer per layer: 58 x 24 x 3 x 7168 x 2048 parameters of one byte and its scale
    expert = 3 * 7168 * 2048 * (1 + 4 / 128**2)
    assert narrow - wide == pytest.approx(58 * 24 * expert, rel=1e-9)


def test_a_latent_cache_is_whole_on_every_tensor_rank() -> None:
    model = architecture("DeepSeek-V3")
    for tp in (1, 8):
        tokens = kv_tokens_per_copy(model, Parallelism(tp=tp), 70272 * 16_000.0, 1024)
        assert tokens == 16_000


def test_kv_heads_are_sliced_down_to_one_per_rank() -> None:
    model = architecture("Qwen3-235B-A22B")  # 4 KV heads
    per_token = model.kv_bytes_per_token
    assert kv_tokens_per_copy(model, Parallelism(tp=4), per_token / 4 * 1600, 1) == 1600
    assert kv_tokens_per_copy(model, Parallelism(tp=8), per_token / 4 * 1600, 1) == 1600


def test_sliding_windows_take_cache_once_per_sequence() -> None:
    model = architecture("gpt-oss-120b")
    few, many = (kv_tokens_per_copy(model, Parallelism(), 1e10, n) for n in (1, 1025))
    # 1,024 windows of 18 layers x 128 tokens over 18 full layers: 128 tokens each
    assert few - many == 1024 * 128


def test_cache_blocks_agree_with_a_measured_engine() -> None:
    # vLLM 0.19, Llama-3.1-8B bf16, chunk 2048, memory share 0.9 on a 24 GiB card: 2,588 blocks
    card = Accelerator("RTX-4090", "ada", 165e12, 24 * 2.0**30, 1008e9, 1)
    settings = EngineSettings(chunk=2048)
    model = Roofline(card, architecture("Llama-3.1-8B"), Parallelism(), settings=settings)
    assert model.kv_capacity() / 16 == pytest.approx(2588, rel=0.02)


@pytest.mark.skipif(not DISTSERVE.exists(), reason=f"{DISTSERVE.name}: reference data is absent")
def test_cache_capacity_agrees_with_distserve() -> None:
    # Its own accounting is 79.85e9 B - 2 V D - 24 L D^2 / (tp pp), with the whole embedding on
    # every rank where ours is sliced.
    for row in csv.DictReader(DISTSERVE.read_text().splitlines()):
        parallelism = Parallelism(tp=int(row["tp"]), pp=int(row["pp"]))
        model = opt(row["model"])
        whole = model.embedding_parameters * 2 * (1 - 1 / parallelism.tp)
        free = 79.85e9 - weights_per_gpu(model, parallelism) - whole
        if model.layers % parallelism.pp or free < 0:
            continue
        found = kv_tokens_per_copy(model, parallelism, free, 0)
        assert found == pytest.approx(int(row["max_num_tokens"]), rel=0.005), row


def test_a_split_is_written_without_degrees_of_one() -> None:
    assert str(Parallelism(tp=8, dp=2, ep=16)) == "tp8-dp2-ep16"
    assert str(Parallelism()) == "tp1"
    assert Parallelism(tp=8, pp=2).gpus == 16


@pytest.mark.parametrize("degrees", [{"tp": 0}, {"tp": 8, "dp": 2, "ep": 8}, {"ep": 4}])
def test_a_split_that_makes_no_island_is_refused(degrees: dict[str, int]) -> None:
    with pytest.raises(PerfModelError, match="parallelism"):
        Parallelism(**degrees)


def test_a_dense_model_slices_inside_the_node_and_stacks_nodes_as_stages() -> None:
    model, h100 = architecture("Llama-3.1-70B"), accelerator("H100")
    found = candidates(model, h100, 16, 8, "decode")
    assert found == (Parallelism(tp=4, pp=4), Parallelism(tp=8, pp=2))


def test_cards_without_a_scale_up_link_may_use_stages_alone() -> None:
    found = candidates(architecture("Llama-3.1-8B"), accelerator("L40S"), 4, 8, "prefill")
    assert Parallelism(pp=4) in found


def test_a_mixture_of_experts_spreads_over_every_gpu() -> None:
    model, h800 = architecture("DeepSeek-V3"), accelerator("H800")
    found = candidates(model, h800, 32, 8, "decode")
    assert found == (Parallelism(dp=32, ep=32), Parallelism(tp=8, dp=4, ep=32))


def test_a_rack_scale_domain_may_slice_across_nodes() -> None:
    found = candidates(architecture("DeepSeek-V3"), accelerator("GB200"), 16, 4, "decode")
    assert Parallelism(tp=16) in found


def test_a_mixed_island_may_split_as_prefill_or_as_decode() -> None:
    for name, gpus in (("DeepSeek-V3", 32), ("Llama-3.1-70B", 8), ("Mixtral-8x7B", 4)):
        model, h100 = architecture(name), accelerator("H100")
        split = {p: candidates(model, h100, gpus, 8, p) for p in ("prefill", "decode", "mixed")}
        assert split["mixed"] == tuple(sorted({*split["prefill"], *split["decode"]}))


@pytest.mark.parametrize("gpus", [1, 2, 3, 6, 8, 24, 72, 128])
@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_every_candidate_is_an_island_of_that_size_and_there_are_few(gpus: int, phase: str) -> None:
    for model in architectures():
        for name in ("H200", "GB200", "L40S"):
            found = candidates(model, accelerator(name), gpus, 8, phase)
            assert len(found) <= 5
            # A stage needs a layer: small models do not fill many GPUs.
            assert found or model.experts is not None or gpus > model.layers
            for parallelism in found:
                assert parallelism.gpus == gpus
                assert model.attention.heads % parallelism.tp == 0
