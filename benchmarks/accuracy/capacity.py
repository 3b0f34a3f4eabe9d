"""KV capacity: DistServe's profiled tokens, and the blocks of a measured vLLM server.

No parameter is fitted to the server; DistServe's engine has one constant, the bytes of a GPU that
it takes, and its own rule for embeddings: whole on every rank, where ours are sliced.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from archipelago.perfmodel.catalogue.accelerators import Accelerator
from archipelago.perfmodel.catalogue.architectures import (
    ModelArchitecture,
    architecture,
    from_config,
)
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.memory import kv_tokens_per_copy, weights_per_gpu
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.settings import EngineSettings
from benchmarks.accuracy.case import Bar, Case, Point, Report

PROFILE = "measured/distserve/simdistserve/estimators/profile_data/max_num_tokens.csv"
SERVER = "measured/llmservingsim_rtx4090/vllm/meta.json"

_TAKEN = 79.85e9
"""Bytes of an 80 GiB A100 that DistServe's engine takes: 0.93 of it."""

_OPT = {
    "facebook/opt-13b": (40, 5120, 40),
    "facebook/opt-66b": (64, 9216, 72),
    "facebook/opt-175b": (96, 12288, 96),
}
"""Layers, hidden size and heads (OPT, arXiv:2205.01068, table 1)."""


def rtx_4090(memory: float) -> Accelerator:
    """Return an RTX 4090 with so much memory [B]; FP32 accumulation, data sheet bandwidth.

    165.2 TFLOP/s and 1,008 GB/s: NVIDIA Ada GPU architecture white paper, appendix A.
    """
    return Accelerator("RTX-4090", "ada", 165.2e12, memory, 1008e9, 1, pcie=32e9)


def distserve(data: Path) -> Iterator[Report]:
    """Yield 76 capacities of OPT models over tensor- and pipeline-parallel degrees."""
    rows = list(csv.DictReader((data / PROFILE).read_text().splitlines()))
    yield Report(
        "KV capacity, DistServe",
        Bar(largest=0.005),
        "one constant for all (bytes of a GPU that the engine takes); nothing else is fitted",
        {},
        [_profiled(row) for row in rows],
    )


def _profiled(row: dict[str, str]) -> Point:
    model = opt(row["model"])
    parallelism = Parallelism(tp=int(row["tp"]), pp=int(row["pp"]))
    whole = model.embedding_parameters * 2 * (1 - 1 / parallelism.tp)
    free = _TAKEN - weights_per_gpu(model, parallelism) - whole
    name = row["model"].partition("/")[2]
    tokens = kv_tokens_per_copy(model, parallelism, free, 0)
    measured = float(row["max_num_tokens"])
    group = f"{name} {parallelism}"
    return Point(
        group, "A100-80GB", "distserve", name, "memory", "KV tokens", tokens, measured, "token"
    )


def opt(name: str) -> ModelArchitecture:
    """Return one of the OPT models by the name that DistServe gives it."""
    layers, hidden, heads = _OPT[name]
    config = {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "ffn_dim": 4 * hidden,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    return from_config(config, name)


def server(data: Path) -> Iterator[Report]:
    """Yield the cache blocks that vLLM found room for on an RTX 4090."""
    meta = json.loads((data / SERVER).read_text())
    card = rtx_4090(meta["hardware"]["device_total_memory_bytes"])
    settings = EngineSettings(chunk=meta["engine_kwargs"]["max_num_batched_tokens"])
    model = architecture("Llama-3.1-8B")
    sequences = meta["engine_kwargs"]["max_num_seqs"]
    island = Roofline(card, model, Parallelism(), None, sequences, settings=settings)
    cache = meta["kv_cache"]
    predicted = island.kv_capacity() / cache["block_size"]
    engine = f"vllm {meta['vllm_version']}"
    key = ("server", card.name, engine, model.name, "memory", "KV blocks")
    point = Point(*key, predicted, cache["num_gpu_blocks"], "block")
    note = (
        "the default reserve of 1.4 GB was set with this run in view, at the nominal 24 GiB; here "
        "the card has the 25.25 GB that it reports"
    )
    name, split = "KV capacity, vLLM on an RTX 4090", "nothing is fitted"
    yield Report(name, Bar(largest=0.10), split, {}, [point], [note])


CASES = (
    Case("distserve", "KV capacity: DistServe", (PROFILE,), distserve),
    Case("kv-blocks", "KV capacity: a vLLM server", (SERVER,), server),
)
