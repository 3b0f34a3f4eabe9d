"""An RTX 4090 with Llama-3.1-8B: matrix products and attention of one layer.

Source: casys-kaist/LLMServingSim @ 5daddb2 (MIT), vLLM 0.19 in bfloat16, us.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.precision import BF16
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.capacity import rtx_4090
from benchmarks.accuracy.case import Bar, Case, Report
from benchmarks.accuracy.kernels import attention as attention_kernels
from benchmarks.accuracy.kernels import gemm
from benchmarks.accuracy.kernels.law import (
    Columns,
    Law,
    Parameter,
    Sample,
    fit_law,
    points,
    smooth_max,
)

OPERATORS = "measured/operators_rtx4090"

_SHAPES = {
    "qkv_proj": (4096, 6144),
    "o_proj": (4096, 4096),
    "gate_up_proj": (4096, 28672),
    "down_proj": (14336, 4096),
    "lm_head": (4096, 128256),
}
"""k and n of each product of Llama-3.1-8B."""

KV_BYTES = 2 * 8 * 128 * 2
"""Bytes of one token's keys and values in one layer: 8 KV heads of 128, BF16."""

_FOLDS = 5

_OPERATORS = Bar(median=0.15, p90=0.35)

_MEMORY = 24 * 2.0**30


def operators(data: Path) -> Iterator[Report]:
    """Yield products of the model, each predicted by a law fitted to the other four."""
    sample = products(data / OPERATORS)
    judged = tuple(points(gemm.LAW, sample, "time", len(_SHAPES)))
    split = "each product predicted by the law of matrix products fitted to the other four"
    yield Report("RTX 4090: matrix products", _OPERATORS, split, {}, judged)


def attention(data: Path) -> Iterator[Report]:
    """Yield attention of decode batches and of prompt chunks, and of steps that hold both."""
    decode, prefill, mixed = _attention(data / OPERATORS)
    alone = [
        *points(attention_kernels.DECODE, decode, "time", _FOLDS),
        *points(attention_kernels.CONTEXT, prefill, "time", _FOLDS),
    ]
    split = f"numbers of sequences, and of prompt tokens, in {_FOLDS} folds"
    yield Report("RTX 4090: attention", _OPERATORS, split, {}, alone)
    split = f"numbers of sequences in {_FOLDS} folds; chunks by the law fitted to chunks alone"
    together = list(points(MIXED, _beside(prefill, mixed), "time", _FOLDS))
    yield Report("RTX 4090: attention of mixed steps", _OPERATORS, split, {}, together)


def _beside_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return launch, a chunk's attention, and that of the sequences in the same launch [s].

    There the query heads of a sequence are not packed onto their KV head and the context is not
    split: a block of threads per sequence and query head, and a chain along the context.
    """
    launch, bandwidth, block, chain, beside, power = values
    memory = columns["cached"] * columns["context"] / (bandwidth * columns["bandwidth"])
    blocks = block * columns["sequences"] * columns["heads"]
    sequences = smooth_max(memory, blocks, chain * columns["context"], power=power)
    return np.asarray(launch + sequences + beside * columns["prefill"])


MIXED = Law(
    "mixed attention",
    (
        Parameter("launch", "s", 6e-6, 1e-6, 1e-4),
        Parameter("bandwidth", "share of the memory bandwidth", 0.5, 0.05, 1.5),
        Parameter("block", "s per sequence and head", 1e-8, 1e-10, 1e-6),
        Parameter("chain", "s per token of context", 1e-8, 1e-12, 1e-6),
        Parameter("beside", "times the chunk's attention alone", 1.0, 0.5, 2.0),
        Parameter("power", "1 adds, infinity takes the largest", 3.0, 1.0, 12.0),
    ),
    _beside_seconds,
)


def _beside(prefill: Sample, mixed: Sample) -> Sample:
    """Return mixed steps with what their chunks would take alone, but for the start [s]."""
    law = attention_kernels.CONTEXT
    values = fit_law(law, prefill.columns, prefill.seconds)
    start = values[[parameter.name for parameter in law.parameters].index("start")]
    alone = np.asarray(law.seconds(mixed.columns, values) - start)
    return replace(mixed, columns=dict(mixed.columns) | {"prefill": alone})


def _attention(folder: Path) -> tuple[Sample, Sample, Sample]:
    """Return steps of sequences alone, of a chunk alone, and of both."""
    rows = list(csv.DictReader((folder / "attention.csv").read_text().splitlines()))
    table = np.array([[float(value) for value in row.values()] for row in rows]).T
    chunk, before, sequences, context, micros = table
    card, ones = rtx_4090(_MEMORY), np.ones(len(rows))
    columns = {
        "sequences": np.maximum(1.0, sequences),
        "heads": 32 * ones,
        "kv_heads": 8 * ones,
        "window": np.inf * ones,
        "context": context,
        "cached": sequences * KV_BYTES,
        "queries": sequences * 4 * (32 + 8) * 128,
        "per_position": 4 * sequences * 32 * 128,
        "operations": 4 * 32 * 128 * (chunk * before + chunk * (chunk + 1) / 2),
        "bytes": chunk * 2 * (32 + 8) * 128 * 2.0 + before * KV_BYTES,
        "peak": card.half * ones,
        "bandwidth": card.bandwidth * ones,
    }
    kinds = (chunk == 0, sequences == 0, (chunk > 0) & (sequences > 0))
    groups = (sequences, chunk, sequences)
    made = [
        Sample(
            card.name,
            "vllm 0.19.0",
            "Llama-3.1-8B",
            {name: column[kind] for name, column in columns.items()},
            micros[kind] * 1e-6,
            by[kind].astype(int).astype(np.str_),
        )
        for kind, by in zip(kinds, groups, strict=True)
    ]
    return made[0], made[1], made[2]


def products(folder: Path) -> Sample:
    """Return times of the five products, a group each."""
    rows = [
        (row["layer"], float(row.get("tokens") or row["sequences"]), float(row["time_us"]))
        for name in ("dense.csv", "per_sequence.csv")
        for row in csv.DictReader((folder / name).read_text().splitlines())
        if row["layer"] in _SHAPES
    ]
    card = rtx_4090(_MEMORY)
    m, k, n, seconds = np.array([(t, *_SHAPES[layer], us * 1e-6) for layer, t, us in rows]).T
    columns = {"m": m, "n": n, "k": k} | gemm.constants(card, BF16, len(m))
    groups = np.array([layer for layer, _, _ in rows])
    return Sample(card.name, "vllm 0.19.0", "bfloat16", columns, seconds, groups)


CASES = (
    Case("rtx4090-operators", "RTX 4090: operators", (OPERATORS,), operators),
    Case("rtx4090-attention", "RTX 4090: attention", (OPERATORS,), attention),
)
