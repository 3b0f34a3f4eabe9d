"""Pipelines over several accelerators: by hand, against the roofline, against all splits."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import ModelArchitecture, architecture
from archipelago.perfmodel.errors import DoesNotFit, PerfModelError
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.memory import LayerCounts, consecutive
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section, TypicalRequest, layer_splits
from tests.support.perfmodel import tiny_model

LENGTHS = np.geomspace(1, 100_000, 40)
BATCHES = np.geomspace(0.5, 1000, 30)[:, None]

# Two accelerators that only the last fall-back row speaks of: mfu 0.70, mbu 0.75, prefill
# attention 0.45, decode attention 0.04, cache 0.75. The second is twice as fast, its NIC half.
SLOW = Accelerator("slow", "none", bf16=1e12, memory=1e11, bandwidth=1e11, domain=8, nic=1e10)
FAST = Accelerator("fast", "none", bf16=2e12, memory=1e11, bandwidth=2e11, domain=8, nic=5e9)


def pipeline(
    model: ModelArchitecture, tp: int, *parts: tuple[Accelerator, int, int], batch: int = 1024
) -> Pipeline:
    sections = [Section(card, gpus, layers, 8) for card, gpus, layers in parts]
    return Pipeline(sections, model, tp, batch)


EVEN = [
    ("L40S", "Llama-3.1-8B", "bf16", 1, 4),
    ("H100", "Llama-3.1-8B", "bf16", 2, 1),
    ("A100-80GB", "Llama-3.1-70B", "bf16", 4, 2),
    ("H100", "Mixtral-8x7B", "bf16", 4, 2),
    ("H100", "gpt-oss-120b", "fp4", 2, 2),
    ("H200", "DeepSeek-V3", "fp8", 8, 1),
]


@pytest.mark.parametrize(("card", "name", "precision", "tp", "pp"), EVEN)
def test_one_section_of_even_stages_is_the_roofline(
    card: str, name: str, precision: str, tp: int, pp: int
) -> None:
    model = architecture(name, precision)
    alone = Roofline(accelerator(card), model, Parallelism(tp=tp, pp=pp), 8)
    staged = pipeline(model, tp, (accelerator(card), tp * pp, model.layers))
    assert staged.parallelism == alone.parallelism
    assert staged.kv_capacity() == alone.kv_capacity()
    assert staged.kv_bytes(LENGTHS).tolist() == alone.kv_bytes(LENGTHS).tolist()
    assert staged.prefill_time(LENGTHS) == pytest.approx(alone.prefill_time(LENGTHS), rel=1e-12)
    # The roofline spreads the output head over the stages; here the last one has it all, and the
    # others wait: at most P - 1 heads more per step, and per prompt that of one token. (Less the
    # hand-over, which the last stage does not have.)
    tokens = np.maximum(1.0, BATCHES / pp)
    head = alone.layers.head(tokens)
    cached = np.linspace(0, alone.kv_capacity(), 5)[None, :]
    more = staged.decode_step_time(BATCHES, cached) - alone.decode_step_time(BATCHES, cached)
    slack = 1e-12 * staged.decode_step_time(BATCHES, cached)
    handover = alone.handovers(tokens) / max(1, pp - 1)
    assert (more >= -slack).all()
    assert (more <= (pp - 1) * np.maximum(head, handover) + slack).all()
    busier = staged.prefill_occupancy(LENGTHS) / alone.prefill_occupancy(LENGTHS)
    assert (busier >= 1 - 1e-12).all()
    if pp == 1:
        assert more == pytest.approx(0.0, abs=1e-12)
        assert busier == pytest.approx(1.0, rel=1e-12)


def test_a_step_over_two_accelerators_by_hand() -> None:
    # One layer on each; one sequence per micro-batch with 1,000 cached tokens.
    layer = (
        2 * 8_000  # two norms: 4 x 1000 x 2 B
        + 4_006_000  # qkv 1000 x 2000 and activations
        + 2_004_000  # attention output
        + 12_014_000  # gate and up
        + 6_008_000  # down
    )
    # 4 operations per query element and position; cache 1000 x 1000 x 2 B, q, result, k and v
    heads = max(4 * 1000 * 1000 / 0.10e12, 2_006_000 / 0.78e11)
    send = 10e-6 + 2000 / (0.72 * 5e9)  # 1000 x 2 B over the slower NIC
    gaps = 8.6e-6 + 4 * 4e-6  # of a layer, and the start of its four products
    slow = layer / 0.75e11 + heads + gaps + send
    fast = (layer + 4_006_000) / 1.5e11 + heads / 2 + gaps + 4e-6  # with the output head
    island = pipeline(tiny_model(2), 1, (SLOW, 1, 1), (FAST, 1, 1))

    def beside(gpus: float, sequences: int) -> float:
        host = 1.36e-3 + sequences * 37e-6
        return max(gpus, 0.8 * host) + 0.2 * host

    one = float(island.decode_step_time(np.array(1.0), np.array(2000.0)))
    assert one == pytest.approx(beside(slow + fast, 1), rel=1e-12)
    # Two sequences are two micro-batches, and the slow stage is busy with both.
    two = float(island.decode_step_time(np.array(2.0), np.array(2000.0)))
    assert two == pytest.approx(beside(2 * slow, 2), rel=1e-12)
    # Turned round, the slow stage has the head but no hand-over.
    turned = pipeline(tiny_model(2), 1, (FAST, 1, 1), (SLOW, 1, 1))
    last = (layer + 4_006_000) / 0.75e11 + heads + gaps + 4e-6
    again = float(turned.decode_step_time(np.array(2.0), np.array(2000.0)))
    assert again == pytest.approx(beside(2 * last, 2), rel=1e-12)


def test_a_prompt_passes_all_stages_and_occupies_the_slowest() -> None:
    island = pipeline(tiny_model(2), 1, (SLOW, 1, 1), (FAST, 1, 1))
    host = 0.2 * 1.36e-3  # what is exposed of it
    alone = {
        card.name: float(
            Roofline(card, tiny_model(1), Parallelism()).prefill_time(np.array(1000.0)) - host
        )
        for card in (SLOW, FAST)
    }
    # A model of one layer has the head of one token too: 4 MB of weights over the bandwidth.
    head = {"slow": 4_006_000 / 0.75e11 + 4e-6, "fast": 4_006_000 / 1.5e11 + 4e-6}
    send = 10e-6 + 1000 * 2000 / (0.72 * 5e9)
    slow, fast = alone["slow"] - head["slow"] + send, alone["fast"]
    length = np.array(1000.0)
    assert float(island.prefill_time(length)) == pytest.approx(slow + fast + host, rel=1e-12)
    assert float(island.prefill_occupancy(length)) == pytest.approx(slow + host / 2, rel=1e-12)


def test_the_stage_with_least_room_limits_the_cache() -> None:
    small = replace(FAST, memory=1e10)
    island = pipeline(tiny_model(4), 1, (SLOW, 1, 2), (small, 1, 2), batch=8)
    # 0.9 x 10 GB - 1.4 GB - 0.41 GB; two layers of 12 M parameters in BF16 and their norms, the
    # output head of 2 M; working space of 8192 tokens; 2 x 1000 elements x 2 B per token.
    layers = 2 * (2_000_000 + 1_000_000 + 9_000_000 + 2 * 1000) * 2
    working = 8192 * 2 * (6 * 1000 + 3 * 3000)
    free = 9e9 - 1.4e9 - 0.41e9 - layers - 4_000_000 - working
    assert island.kv_capacity() == int(free // (2 * 1000 * 2 * 16)) * 16
    assert (
        pipeline(tiny_model(4), 1, (SLOW, 1, 2), (SLOW, 1, 2)).kv_capacity() > island.kv_capacity()
    )


def test_layers_lie_where_the_architecture_has_them() -> None:
    deepseek = architecture("DeepSeek-V3")  # 3 dense layers, then 58 sparse ones
    assert consecutive(deepseek, 0, 19) == LayerCounts((19,), (3, 16))
    assert consecutive(deepseek, 2, 4) == LayerCounts((2,), (1, 1))
    assert consecutive(deepseek, 19, 61) == LayerCounts((42,), (0, 42))
    gpt = architecture("gpt-oss-120b")  # every second layer sees the whole context
    assert consecutive(gpt, 0, 3) == LayerCounts((1, 2), (3,))
    assert consecutive(gpt, 1, 2) == LayerCounts((1, 0), (1,))
    for model in (deepseek, gpt, architecture("Llama-3.1-8B")):
        counts = consecutive(model, 0, model.layers)
        assert counts.layers == model.layers
        assert sum(counts.mixers[1:]) == model.windowed_layers
        assert counts.ffns[-1] == model.sparse_layers or model.experts is None


def test_an_uneven_split_is_as_slow_as_its_fullest_stage() -> None:
    model, card = architecture("Llama-3.1-8B"), accelerator("L40S")
    # 32 layers over 3 stages are 11, 11 and 10: a prompt keeps them as busy as 33 layers would.
    uneven = pipeline(model, 1, (card, 3, 32))
    longer = pipeline(replace(model, stack=model.stack[:1] * 33), 1, (card, 3, 33))
    prompt = np.array(8000.0)
    busy = float(uneven.prefill_occupancy(prompt))
    assert busy == pytest.approx(float(longer.prefill_occupancy(prompt)), rel=1e-12)
    assert busy > float(uneven.prefill_time(prompt)) / 3 * 1.02


def test_a_mixed_pipeline_is_between_the_pipelines_of_its_accelerators() -> None:
    model, slow, fast = architecture("Llama-3.1-8B"), accelerator("L40S"), accelerator("H100")
    fast = replace(fast, nic=slow.scale_out_bandwidth)  # hand-overs alike
    both = pipeline(model, 1, (slow, 1, 16), (fast, 1, 16))
    best, worst = (pipeline(model, 1, (card, 1, 16), (card, 1, 16)) for card in (fast, slow))
    cached = np.linspace(0, worst.kv_capacity(), 7)[None, :]
    for one, other in ((best, both), (both, worst)):
        assert (
            one.decode_step_time(BATCHES, cached) <= other.decode_step_time(BATCHES, cached)
        ).all()
        assert (one.prefill_time(LENGTHS) <= other.prefill_time(LENGTHS)).all()
        assert one.kv_capacity() >= other.kv_capacity()


@pytest.mark.parametrize(
    ("tp", "parts", "message"),
    [
        (1, [], "one section or more"),
        (3, [("H100", 3, 32)], "a divisor of the 32 heads"),
        (2, [("H100", 3, 32)], "stages are tp GPUs each"),
        (2, [("H100", 1, 32)], "stages are tp GPUs each"),
        (16, [("H100", 16, 32)], "at most 8 reach each other"),
        (1, [("H100", 1, 16), ("L40S", 1, 15)], "its 32 layers must each lie in one"),
        (1, [("H100", 1, 31), ("L40S", 2, 1)], "every stage needs one or more"),
    ],
)
def test_sections_that_make_no_pipeline_are_refused(
    tp: int, parts: list[tuple[str, int, int]], message: str
) -> None:
    with pytest.raises(PerfModelError, match=message):
        pipeline(architecture("Llama-3.1-8B"), tp, *((accelerator(c), g, n) for c, g, n in parts))


def test_a_stage_that_does_not_fit_is_named_with_the_sizes() -> None:
    h100, l40s = accelerator("H100"), accelerator("L40S")
    # 30 of 80 layers: 30 x 0.856 B parameters x 2 B = 51.3 GB, and half the embeddings 2.1 GB
    with pytest.raises(DoesNotFit, match=r"stage 3 .* 30 of 80 .* 53\.4 GB of weights .* L40S"):
        pipeline(architecture("Llama-3.1-70B", "bf16"), 1, (h100, 2, 50), (l40s, 1, 30))


def splits(layers: int, stages: list[int]) -> list[tuple[int, ...]]:
    """All ways to give each section one layer per stage or more."""
    found = []
    for cut in combinations(range(1, layers), len(stages) - 1):
        split = tuple(np.diff([0, *cut, layers]).tolist())
        if all(held >= least for held, least in zip(split, stages, strict=True)):
            found.append(split)
    return found


BALANCE = [
    ("Llama-3.1-8B", "bf16", 1, [("L40S", 1), ("H100", 1)]),
    ("Llama-3.1-8B", "bf16", 1, [("H100", 1), ("L40S", 2)]),
    ("Llama-3.1-70B", "bf16", 2, [("L40S", 2), ("H100", 2)]),
    ("gpt-oss-120b", "fp4", 2, [("L40S", 4), ("H100", 2)]),
    ("DeepSeek-V3", "fp8", 8, [("H20", 8), ("H800", 8)]),
    ("Mixtral-8x7B", "bf16", 2, [("L40S", 2), ("H100", 2), ("A100-80GB", 2)]),
]


@pytest.mark.parametrize(("name", "precision", "tp", "parts"), BALANCE)
def test_the_balanced_split_is_the_best_of_all(
    name: str, precision: str, tp: int, parts: list[tuple[str, int]]
) -> None:
    model = architecture(name, precision)
    sections = [Section(accelerator(card), gpus, 0, 8) for card, gpus in parts]
    typical = TypicalRequest()
    islands = {}
    for split in splits(model.layers, [gpus // tp for _, gpus in parts]):
        held = [replace(s, layers=n) for s, n in zip(sections, split, strict=True)]
        try:
            islands[split] = Pipeline(held, model, tp)
        except DoesNotFit:
            continue
    room = max(island.kv_capacity() for island in islands.values())
    able = [i for i in islands.values() if i.kv_capacity() >= min(room, typical.longest)]

    busy = {id(i): float(i.prefill_occupancy(np.array(typical.length))) for i in able}
    chosen = islands[layer_splits(model, sections, tp, "prefill", typical)[0]]
    assert busy[id(chosen)] == pytest.approx(min(busy.values()), rel=1e-9)

    def pace(island: Pipeline) -> float:
        """Tokens per second with as many typical requests as fit."""
        context = typical.length + typical.output / 2
        batch = np.array(min(typical.sequences, island.kv_capacity() / context))
        return float(batch / island.decode_step_time(batch, batch * context))

    # Decode looks at a few sizes of the cache only, and leaves host work out.
    chosen = islands[layer_splits(model, sections, tp, "decode", typical)[0]]
    assert pace(chosen) >= 0.97 * max(pace(island) for island in islands.values())

    roomiest = [layer_splits(model, sections, tp, p, typical) for p in ("prefill", "decode")]
    for found in roomiest:
        assert max(islands[split].kv_capacity() for split in found) == room
        assert 1 <= len(found) <= 5


def test_equal_sections_share_evenly_but_for_the_output_head() -> None:
    model, card = architecture("Llama-3.1-8B"), accelerator("H100")
    sections = [Section(card, 1, 0, 8)] * 4
    assert layer_splits(model, sections, 1, "prefill")[0] == (8, 8, 8, 8)
    # The head is 1.05 GB beside 0.44 GB a layer: 2.4 layers, so the last stage has fewer.
    front = layer_splits(model, sections, 1, "decode")[0]
    assert front[-1] < 8
    assert max(front[:-1]) <= front[-1] + 3  # nobody waits for another than the last stage


def test_a_model_too_large_for_the_sections_says_how_many_layers_fit() -> None:
    sections = [Section(accelerator("L40S"), 1, 0, 8), Section(accelerator("H100"), 1, 0, 8)]
    with pytest.raises(DoesNotFit, match=r"80 layers; at most fit: \d+ on 1 x L40S, 4\d on 1 x H"):
        layer_splits(architecture("Llama-3.1-70B", "bf16"), sections, 1, "decode")


def test_a_section_of_more_gpus_than_layers_is_a_question_like_any_other() -> None:
    """Stages of two GPUs: 24 layers on 32 GPUs and 8."""
    model = tiny_model(layers=24)
    sections = [Section(accelerator("H100"), 32), Section(accelerator("L40S"), 8)]
    assert sum(layer_splits(model, sections, 2, "decode")[0]) == 24


def test_larger_requests_get_a_split_with_a_larger_cache() -> None:
    model = architecture("Llama-3.1-70B", "bf16")
    sections = [Section(accelerator("L40S"), 2, 0, 8), Section(accelerator("H100"), 2, 0, 8)]
    rooms = []
    for longest in (1000.0, 150_000.0, 250_000.0):
        split, *_ = layer_splits(model, sections, 2, "prefill", TypicalRequest(longest=longest))
        held = [replace(s, layers=n) for s, n in zip(sections, split, strict=True)]
        rooms.append(Pipeline(held, model, 2).kv_capacity())
        assert rooms[-1] >= longest
    assert rooms == sorted(rooms)
