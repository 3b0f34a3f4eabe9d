"""Layers beyond full attention: what they keep, what a step reads; promises of all models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import (
    ModelArchitecture,
    architecture,
    architectures,
)
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.kv_transfer import CacheLayout
from archipelago.perfmodel.roofline.memory import consecutive, kept_per_gpu, weights_per_gpu
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section, layer_splits

CARD = accelerator("B200")
SPLITS = (Parallelism(tp=8), Parallelism(tp=4, pp=3), Parallelism(dp=16, ep=16))


def islands(model: ModelArchitecture) -> Iterator[Roofline]:
    for split in SPLITS:
        if split.dp > 1 and model.experts is None:
            continue
        try:
            yield Roofline(CARD, model, split, max_sequences=64)
        except DoesNotFit:
            continue


@pytest.mark.parametrize("model", architectures(), ids=lambda m: m.name)
def test_every_model_keeps_the_promises(model: ModelArchitecture) -> None:
    batch, cached = np.array([[1.0], [8.0], [64.0]]), np.linspace(0, 1e6, 21)
    length = np.array([1.0, 100.0, 1e4, 1e5])
    for island in islands(model):
        step = island.decode_step_time(batch, cached)
        assert (np.diff(step, axis=0) >= -1e-12).all()
        assert (np.diff(step, axis=1) >= -1e-12).all()
        assert (np.diff(step, 2, axis=1) >= -1e-10).all()
        assert (np.diff(island.prefill_time(length)) >= 0).all()
        assert np.isfinite(island.mixed_step_time(batch, cached, length[1], length[2])).all()
        assert (np.diff(island.kv_bytes(length)) >= 0).all()


@pytest.mark.parametrize("model", architectures(), ids=lambda m: m.name)
def test_one_gpu_holds_every_parameter_once(model: ModelArchitecture) -> None:
    """In BF16, but for vectors that the count leaves out of memory or the reverse."""
    plain = architecture(model.name, "bf16")
    held = weights_per_gpu(plain, Parallelism()) / 2
    assert held == pytest.approx(model.parameters - model.other_parameters, rel=2e-3)


def test_a_linear_layer_costs_the_same_at_any_context() -> None:
    """Qwen3-Next: 12 of 48 layers read their context; the other 36 read a state."""
    model = architecture("Qwen3-Next-80B-A3B")
    linear = tuple(layer for layer in model.stack if not layer.mixers[0].kv_elements)
    alone = Roofline(CARD, replace(model, name="linear", stack=linear), Parallelism(), 8)
    near, far = (float(alone.decode_step_time(np.array(8.0), np.array(k))) for k in (8.0, 8e5))
    assert near == far
    assert alone.kv_capacity() > 1 << 40
    # the batch ends where the states take half of what the weights leave
    assert alone.max_sequences() < 1024
    whole = Roofline(CARD, model, Parallelism())
    assert 0 < whole.max_sequences() < 1024
    assert whole.kv_capacity() > 0


def test_states_take_memory_per_sequence() -> None:
    model = architecture("Nemotron-3-Nano-30B-A3B")
    every = consecutive(model, 0, model.layers).mixers
    kept = kept_per_gpu(model, 2, every)
    # one of two KV heads of 128, key and value, in 6 layers
    assert kept.per_token == 6 * 2 * 128 * 2
    assert kept.per_sequence == model.state_bytes / 2
    # a prompt hands over its keys and values, and every state once
    sent = CacheLayout.of(model).size(np.array([0.0, 1000.0]))
    assert sent == pytest.approx([model.state_bytes, model.state_bytes + 1000 * 6144])


def test_sparse_attention_reads_what_its_indexer_chose() -> None:
    """DeepSeek-V3.2 at 128k: the step grows with the keys alone, V3's with the latents."""
    steps = {}
    for name in ("DeepSeek-V3", "DeepSeek-V3.2"):
        island = Roofline(accelerator("H200"), architecture(name), Parallelism(tp=8), 64)
        cached = np.array([16.0, 32.0]) * 131_072 / 2
        steps[name] = np.diff(island.decode_step_time(np.array(16.0), cached))[0]
    assert 0 < steps["DeepSeek-V3.2"] < 0.5 * steps["DeepSeek-V3"]


def test_interleaved_experts_lie_where_they_are() -> None:
    maverick = architecture("Llama-4-Maverick")
    counts = consecutive(maverick, 0, 8)
    # every fourth layer sees everything, every second one has experts
    assert counts.mixers == (2, 6)
    assert counts.ffns == (4, 4)
    # half of the layers on either of two stages: half of the experts, and one end each
    two = weights_per_gpu(maverick, Parallelism(pp=2))
    assert two == pytest.approx(weights_per_gpu(maverick, Parallelism()) / 2, rel=1e-3)


def test_pipelines_of_layers_of_several_kinds_are_split() -> None:
    """Nemotron-NAS-like variety: more kinds than are coded as one number."""
    model = architecture("Nemotron-3-Nano-30B-A3B")
    sections = [Section(CARD, 1), Section(accelerator("H200"), 1)]
    splits = layer_splits(model, sections, 1, "decode")
    assert all(sum(split) == model.layers for split in splits)
    held = [replace(s, layers=n) for s, n in zip(sections, splits[0], strict=True)]
    island = Pipeline(held, model, 1)
    assert island.kv_capacity() > 0
    assert 0 < island.max_sequences() <= 1024
