"""Latent attention (MLA) kernels and modules of DeepSeek-V3's shape, by heads per rank.

Tables of vLLM 0.14 hold the attention alone; those of vLLM 0.19 and SGLang hold the module with its
projections. In SGLang's the context is ``isl`` (``step`` is 0), in vLLM's step + isl.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.architectures import LatentAttention, architecture
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample, smooth_max
from benchmarks.accuracy.kernels.tables import Table, named, tables, variants

FOLDS = 8
"""More than there are numbers of heads: one is left out at a time."""


def _decode_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return launch + projections + max(bytes, operations, combining) + host work [s].

    Absorbed: 2 H (2 r_kv + d_r) operations per cached token (DeepSeek-V2, arXiv:2405.04434). A
    context is split over blocks and combined again, in a time that grows with its logarithm.
    """
    launch, stream, project, bandwidth, compute, sequence, power, combine = values
    tokens = columns["sequences"]
    weights = columns["weights"] / (stream * columns["bandwidth"])
    products = columns["per_token"] * tokens / (project * columns["peak"])
    read = columns["cached"] / (bandwidth * columns["bandwidth"])
    multiply = columns["operations"] / (compute * columns["bf16"])
    merge = combine * np.log2(1 + columns["context"])
    core = smooth_max(read, multiply, merge, power=power)
    return np.asarray(launch + np.maximum(weights, products) + core + sequence * tokens)


DECODE = Law(
    "MLA decode",
    (
        Parameter("launch", "s", 3e-5, 1e-6, 1e-3),
        Parameter("stream", "share of the memory bandwidth, weights", 0.7, 0.1, 1.5),
        Parameter("project", "share of the peak, projections", 0.5, 0.02, 1.2),
        Parameter("bandwidth", "share of the memory bandwidth, cache", 0.7, 0.02, 1.5),
        Parameter("compute", "share of the BF16 peak", 0.5, 0.005, 1.5),
        Parameter("sequence", "s per sequence", 1e-8, 1e-12, 1e-5),
        Parameter("power", "1 adds, infinity takes the largest", 2.0, 1.0, 10.0),
        Parameter("combine", "s per doubling of the context", 1e-6, 1e-9, 1e-4),
    ),
    _decode_seconds,
)


def _context_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return max(launches, projections + attention + traffic) + time per sequence [s].

    Unabsorbed: 2 H (d_n + d_r + d_v) operations per pair of positions, causal. Without a graph the
    host launches kernel after kernel, which hides short prompts.
    """
    launch, stream, project, compute, token, power, sequence, chain = values
    tokens = columns["sequences"] * columns["length"]
    weights = columns["weights"] / (stream * columns["bandwidth"])
    products = columns["per_token"] * tokens / (project * columns["peak"])
    multiply = columns["triangle"] / (compute * columns["bf16"])
    traffic = token * tokens * columns["heads"] + chain * columns["length"]
    work = weights + products + multiply + traffic
    start = launch * np.ones_like(work)
    return np.asarray(smooth_max(start, work, power=power) + sequence * columns["sequences"])


CONTEXT = Law(
    "MLA prefill",
    (
        Parameter("launch", "s", 2e-4, 1e-6, 3e-3),
        Parameter("stream", "share of the memory bandwidth, weights", 0.7, 0.02, 1.5),
        Parameter("project", "share of the peak, projections", 0.5, 0.02, 1.5),
        Parameter("compute", "share of the BF16 peak", 0.5, 0.02, 1.5),
        Parameter("token", "s per token and head", 1e-10, 1e-14, 1e-6),
        Parameter("power", "1 adds, infinity takes the largest", 3.0, 1.0, 12.0),
        Parameter("sequence", "s per sequence", 1e-7, 1e-10, 1e-4),
        Parameter("chain", "s per token of the prompt", 1e-9, 1e-12, 1e-6),
    ),
    _context_seconds,
)


def decode_samples(folder: Path) -> Iterator[Sample]:
    """Yield decode by kernel, cache and weight type; a group is a number of heads."""
    for pattern in ("generation_mla", "mla_generation_module", "wideep_generation_mla"):
        yield from _samples(folder, pattern)


def context_samples(folder: Path) -> Iterator[Sample]:
    """Yield prefill likewise."""
    for pattern in ("context_mla", "mla_context_module", "wideep_context_mla"):
        yield from _samples(folder, pattern)


def _samples(folder: Path, name: str) -> Iterator[Sample]:
    for table in tables(folder, f"mla/*/*/{name}_perf.parquet"):
        wide = name.startswith("wideep")
        weights = table.texts("gemm_type", "fp8_block" if wide else "none")
        kinds = variants(table.texts("kernel_source"), table.texts("kv_cache_dtype"), weights)
        for (kernel, cache, weight), rows in kinds:
            yield _sample(table.where(rows), (kernel, cache, weight), wide=wide)


def _sample(table: Table, variant: tuple[str, str, str], *, wide: bool) -> Sample:
    kernel, cache, weight = variant
    card, shape = table.accelerator, _shape()
    heads, sequences = table.floats("num_heads"), table.floats("batch_size")
    length = table.floats("isl")
    context = length if wide else table.floats("step") + length
    per_head = shape.nope_dim + shape.rope_dim + shape.v_dim
    columns = {
        "sequences": sequences,
        "heads": heads,
        "length": length,
        "context": context,
        "cached": sequences * context * shape.kv_elements * (1.0 if cache == "fp8" else 2.0),
        "operations": 2 * sequences * context * heads * (2 * shape.kv_rank + shape.rope_dim),
        "triangle": sequences * length * (length + 1) * heads * per_head,
        "peak": table.constant(card.peak("fp8" if weight == "fp8_block" else "bf16")),
        "bf16": table.constant(card.half),
        "bandwidth": table.constant(card.bandwidth),
    } | _projections(heads, weight)
    kind = f"{kernel}, kv {cache}" + ("" if weight == "none" else f", weights {weight}")
    return Sample(card.name, table.engine, kind, columns, table.seconds, named(heads))


def _projections(heads: FloatArray, weight: str) -> dict[str, FloatArray]:
    """Return bytes of the module's weights and operations per token; 0 for attention alone."""
    if weight == "none":
        return {"weights": 0 * heads, "per_token": 0 * heads}
    shape, hidden = _shape(), architecture("DeepSeek-V3").hidden
    down = hidden * ((shape.q_rank or 0) + shape.kv_elements)
    queries = (shape.q_rank or 0) * (shape.nope_dim + shape.rope_dim)
    linear = down + heads * (queries + shape.v_dim * hidden)
    absorbed = heads * shape.kv_rank * (shape.nope_dim + shape.v_dim)
    width = 1.0 if weight == "fp8_block" else 2.0
    return {"weights": linear * width + absorbed * 2.0, "per_token": 2 * (linear + absorbed)}


def _shape() -> LatentAttention:
    shape = architecture("DeepSeek-V3").attention
    if not isinstance(shape, LatentAttention):
        raise TypeError("DeepSeek-V3 has latent attention")
    return shape
