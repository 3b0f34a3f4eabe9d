"""What fits on a GPU: against hand counts, DistServe's formula and a measured engine."""

import csv
from pathlib import Path

import pytest

from archipelago.perfmodel.accelerators import Accelerator, accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.memory import kv_tokens_per_copy, weights_per_gpu
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.roofline import EngineSettings, Roofline
from archipelago.perfmodel.validation.capacity import opt

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
        DoesNotFit, match=r"DeepSeek-V3 in fp8 as tp8-ep8 needs 85\.1 GB .* H800 has 75\.5 GB"
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


def test_shared_heads_are_split_until_one_is_left_per_rank() -> None:
    model = architecture("Qwen3-235B-A22B")  # 4 KV heads
    per_token = model.kv_bytes_per_token
    assert kv_tokens_per_copy(model, Parallelism(tp=4), per_token / 4 * 1600, 1) == 1600
    assert kv_tokens_per_copy(model, Parallelism(tp=8), per_token / 4 * 1600, 1) == 1600


def test_windows_are_paid_once_per_sequence() -> None:
    model = architecture("gpt-oss-120b")
    few, many = (kv_tokens_per_copy(model, Parallelism(), 1e10, n) for n in (1, 1025))
    # 1,024 windows of 18 layers x 128 tokens over 18 full layers: 128 tokens each
    assert few - many == 1024 * 128


def test_a_measured_engine_holds_as_many_blocks() -> None:
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
