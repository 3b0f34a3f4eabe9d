"""What the roofline knows beside plain steps: latent forms, speculation, chunks, uneven stages."""

from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.capacity.closed_loop import ClosedLoop, chunked_tpot, collocated_tpot
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.catalogue.layers import GroupedAttention
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.operators import ATTENTION, Kernels, attention
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section
from archipelago.perfmodel.roofline.settings import EngineSettings, LatentForm, Speculation

CARD = accelerator("H100")
LLAMA = architecture("Llama-3.1-8B")
DEEPSEEK = architecture("DeepSeek-V3")
GPT_OSS = architecture("gpt-oss-120b")
WIDE = Parallelism(dp=32, ep=32)


def llama(**settings: object) -> Roofline:
    made = EngineSettings(**settings)  # type: ignore[arg-type]
    return Roofline(CARD, LLAMA, Parallelism(), settings=made)


def deepseek(form: LatentForm) -> Roofline:
    return Roofline(CARD, DEEPSEEK, WIDE, 8, settings=EngineSettings(latent=form))


def test_expanding_the_context_at_every_step_costs_the_up_projection() -> None:
    """Per cached token 2 x 512 x 128 x 256 operations more: 67 MFLOP, 61 layers, 0.75 of peak."""
    batch, cached = np.array(32 * 16.0), np.array([32 * 16 * 4000.0, 32 * 16 * 8000.0])
    absorbed = np.diff(deepseek(LatentForm.DECODE).decode_step_time(batch, cached))[0]
    expanded = np.diff(deepseek(LatentForm.NEVER).decode_step_time(batch, cached))[0]
    up = 2 * 512 * 128 * 256 * 16 * 4000 / (0.75 * 989e12) * 61
    assert expanded > up
    assert expanded > 5 * absorbed


def test_absorbed_prefill_of_long_prompts_takes_longer() -> None:
    """Per pair 2 x 1,088 operations against 2 x 320 for each head."""
    length = np.array(32_768.0)
    absorbed = float(deepseek(LatentForm.ALWAYS).prefill_time(length))
    expanded = float(deepseek(LatentForm.DECODE).prefill_time(length))
    assert absorbed > 1.2 * expanded


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "gpt-oss-120b", "DeepSeek-V3"])
def test_operators_together_take_exactly_the_sum_of_each(name: str) -> None:
    """For scalars and arrays, and whichever operators read the context."""
    model = architecture(name)
    stage = Roofline(accelerator("B200"), model, Parallelism(tp=8), 8).layers
    for tokens in (np.array(3.0), np.linspace(1.0, 900.0, 66).reshape(33, 2)):
        for operators in stage.operators.values():
            attends = any(operator.attends for operator in operators.each)
            context = tokens * 1234.5 if attends else 0.0
            total = np.zeros_like(tokens)
            for operator in operators.each:
                total = total + operator.seconds(tokens, tokens * 1234.5)
            np.testing.assert_array_equal(operators.seconds(tokens, context), total)


def test_tokens_of_a_speculative_step_by_hand() -> None:
    """Three drafted, 0.5 accepted: 1 + 1/2 + 1/4 + 1/8 tokens; a draft of 0.1 adds 30 %."""
    draft = Speculation(3, 0.5, 0.1)
    assert draft.rows == 4
    assert draft.tokens_per_step == pytest.approx(1.875)
    assert draft.seconds_per_step == pytest.approx(1.3 / 1.875)


def test_speculation_helps_a_small_batch_more_than_a_large_one() -> None:
    """One sequence reads the weights for all of its rows; 512 compute four times as much."""
    plain, drafting = llama(), llama(speculation=Speculation(3, 0.8))
    for batch, most in ((1.0, 0.4), (512.0, 0.75)):
        args = np.array(batch), np.array(batch * 1000)
        ratio = float(drafting.decode_step_time(*args) / plain.decode_step_time(*args))
        assert 1 / 2.952 < ratio < most


def test_a_tile_has_room_for_the_heads_that_a_gpu_has() -> None:
    """2 KV heads for 64: each of eight GPUs has one of its own, for 8 of a tile's 64 rows."""
    kernels, shape = Kernels(CARD, LLAMA, engine_fit(CARD)), GroupedAttention(64, 2, 128)
    for tp, room in ((1, 2.0), (2, 2.0), (8, 8.0)):
        core = next(o for o in attention(kernels, shape, tp, "decode") if o.name == ATTENTION)
        assert core.room == room


def test_speculation_without_acceptance_takes_longer() -> None:
    args = np.array(16.0), np.array(16_000.0)
    slow = llama(speculation=Speculation(2, 0.0, 0.05)).decode_step_time(*args)
    assert float(slow) > 1.1 * float(llama().decode_step_time(*args))


def test_speculation_out_of_range_is_refused() -> None:
    with pytest.raises(OutOfRange, match="acceptance from 0 to 1"):
        Speculation(1, 1.5)


def test_a_step_without_prompt_tokens_is_a_plain_step() -> None:
    for model in (llama(), deepseek(LatentForm.DECODE)):
        batch, cached = np.array(64.0), np.array(64_000.0)
        mixed = model.mixed_step_time(batch, cached, np.array(0.0), np.array(0.0))
        plain = model.decode_step_time(batch, cached)
        # A mixture of experts exchanges tokens by the kernels of prefill in a mixed step.
        assert float(mixed) == pytest.approx(
            float(plain), rel=1e-9 if model.architecture is LLAMA else 0.1
        )


def test_a_chunk_beside_tokens_is_cheaper_than_after_them() -> None:
    """The weights are read once: 16 GB at 0.82 of 3.35 TB/s are 5.5 ms less than apart."""
    model = llama()
    batch, cached = np.array(64.0), np.array(64_000.0)
    chunk = np.array(256.0)
    mixed = float(model.mixed_step_time(batch, cached, chunk, chunk * 512))
    apart = float(model.decode_step_time(batch, cached)) + float(model.prefill_time(chunk))
    assert float(model.decode_step_time(batch, cached)) < mixed < apart - 4e-3


def test_chunked_prefill_delays_decode_less_than_whole_prompts() -> None:
    model = llama()
    loop = ClosedLoop(np.array(64.0), np.array(2000.0), np.array(500.0))
    whole, chunked = collocated_tpot(model, loop), chunked_tpot(model, loop, 512)
    alone = model.decode_step_time(np.array(64.0), 64 * loop.context)
    assert float(alone) < float(chunked) < float(whole)


def test_chunked_prefill_limits_the_batch_if_prompts_arrive_faster_than_chunks() -> None:
    """64 clients of 4,000 in and 40 out owe 6,400 tokens per step; 512 feed 5.12 sequences."""
    model = llama()
    loop = ClosedLoop(np.array(64.0), np.array(4000.0), np.array(40.0))
    kept, cached = np.array(5.12), np.array(5.12 * 4020)
    mixed = model.mixed_step_time(kept, cached, np.array(512.0), np.array(512 * 4001 / 2))
    assert float(chunked_tpot(model, loop, 512)) == pytest.approx(float(mixed))


def test_a_cached_prefix_shortens_prefill() -> None:
    """Half of 4,000 tokens cached: the products halve, and attention keeps 3/4 of its pairs."""
    half, whole = llama(prefix_hit=0.5), llama()
    length = np.array(4000.0)
    assert 0.45 < float(half.prefill_time(length) / whole.prefill_time(length)) < 0.65


def test_more_imbalance_takes_longer() -> None:
    fit = engine_fit(CARD)
    times = []
    for imbalance in (1.0, 1.5):
        settings = EngineSettings(fit=fit.replaced({"expert_imbalance": imbalance}))
        model = Roofline(CARD, DEEPSEEK, WIDE, 8, settings=settings)
        times.append(float(model.prefill_time(np.array(4096.0))))
    assert times[1] > 1.05 * times[0]


def test_two_batches_hide_transfers_but_read_the_weights_twice() -> None:
    """By hand from the parts of one layer: max(attention, combine) + max(experts, dispatch)."""
    settings = EngineSettings(two_batch_overlap=True)
    apart = Roofline(CARD, DEEPSEEK, WIDE, 8)
    beside = Roofline(CARD, DEEPSEEK, WIDE, 8, settings=settings)
    half, context = np.array(64.0), np.array(64 * 4000.0)
    stage = beside.layers
    block = stage.sparse
    assert block is not None
    attends = stage.operators["decode", 0].seconds(half, context) + stage.overheads.decode_layer
    always = stage.operators["sparse", 1].seconds(half)
    experts = always + block.routed(half) + block.fixed
    dispatch, combine = block.ways(half, "low_latency")
    layer = np.maximum(2 * attends, 2 * combine) + 2 * np.maximum(experts, dispatch)
    dense = stage.operators["dense", 0].seconds(2 * half)
    # DeepSeek-V3 has 3 dense layers and 58 with experts.
    assert stage.decode_pass(2 * half, 2 * context) == pytest.approx(
        58 * layer + 3 * (2 * attends + dense)
    )
    many, few = (np.array(batch * 32.0) for batch in (128, 2))
    full = float(beside.decode_step_time(many, 4000 * many))
    assert full < 0.95 * float(apart.decode_step_time(many, 4000 * many))
    assert beside.decode_step_time(few, 4000 * few) > apart.decode_step_time(few, 4000 * few)
    long = np.array(16_000.0)
    assert beside.prefill_time(long) < apart.prefill_time(long)


def test_islands_without_transfers_run_one_batch_whatever_is_set() -> None:
    for split in (Parallelism(tp=8), Parallelism(tp=8, ep=8)):
        times = [
            Roofline(CARD, GPT_OSS, split, 8, settings=EngineSettings(two_batch_overlap=on))
            for on in (False, True)
        ]
        batch = np.array([1.0, 64.0])
        steps = [model.decode_step_time(batch, 1000 * batch).tolist() for model in times]
        assert steps[0] == steps[1]


def test_uneven_stages_wait_for_the_fullest() -> None:
    """33 layers on 2 stages are 17 and 16: 34/33 of an even split at saturation, 1 alone."""
    odd = replace(LLAMA, stack=LLAMA.stack[:1] * 33)
    model = Roofline(CARD, odd, Parallelism(pp=2))
    length = np.array(4000.0)
    occupied = float(model.prefill_occupancy(length) / model.prefill_time(length))
    assert occupied == pytest.approx(34 / 33 / 2)
    assert model._uneven(np.array(1.0)) == 1.0


def test_a_pipeline_of_one_pool_may_have_stages_of_its_own_lengths() -> None:
    """20 and 12 layers: the first stage takes 20 / 16 of an even one's time per prompt."""
    parts = [[Section(CARD, 1, layers) for layers in split] for split in ((16, 16), (20, 12))]
    even, uneven = (Pipeline(sections, LLAMA, 1) for sections in parts)
    length = np.array(8000.0)
    ratio = float(uneven.prefill_occupancy(length) / even.prefill_occupancy(length))
    assert ratio == pytest.approx(20 / 16, rel=0.03)
