"""Grouped attention kernels: decode reads the cache, prefill multiplies a causal triangle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample, smooth_max
from benchmarks.accuracy.kernels.tables import MERGED, Table, merge_repeats, named, tables, variants

FOLDS = 5

EXCLUDED = "H200 vllm 0.19.0 context_attention (whole table): up to 260 times the hardware's peak"

_KEYS = (
    "batch_size",
    "isl",
    "step",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "window_size",
    "kv_cache_dtype",
)


def _decode_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return launch + max(cache bytes, blocks, chain along the context) [s].

    A kernel has a block of threads per sequence and KV head, and as many more as it splits the
    context into; without groups (as many KV heads as heads) some do not split at all. ``honoured``
    is the share of the tokens behind a sliding window that the kernel really skips.
    """
    launch, bandwidth, whole, split, block, power, honoured = values
    context = columns["context"]
    context = context - honoured * (context - np.minimum(context, columns["window"]))
    memory = columns["cached"] * context / (bandwidth * columns["bandwidth"])
    chain = context * np.where(columns["grouped"] > 0, split, whole)
    blocks = block * columns["sequences"] * columns["kv_heads"]
    return np.asarray(launch + smooth_max(memory, chain, blocks, power=power))


DECODE = Law(
    "decode attention",
    (
        Parameter("launch", "s", 6e-6, 1e-6, 1e-3),
        Parameter("bandwidth", "share of the memory bandwidth", 0.8, 0.1, 1.5),
        Parameter("whole", "s per token of context, without groups", 1e-9, 1e-12, 1e-6),
        Parameter("split", "s per token of context, with groups", 1e-9, 1e-12, 1e-6),
        Parameter("block", "s per sequence and KV head", 2e-8, 1e-10, 1e-6),
        Parameter("power", "1 adds, infinity takes the largest", 3.0, 1.0, 12.0),
        Parameter("honoured", "share of tokens behind a window", 0.5, 0.01, 1.0),
    ),
    _decode_seconds,
)


def _context_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return launch + max(operations and bytes, chain along the prompt) + blocks [s].

    Operations are those of the causal half. The last rows of a prompt attend to all of it, one
    block of threads each: a chain that grows with the length, however many heads there are.
    """
    launch, compute, bandwidth, chain, block, power = values
    operations = columns["operations"] / (compute * columns["peak"])
    memory = columns["bytes"] / (bandwidth * columns["bandwidth"])
    core = smooth_max(operations + memory, chain * columns["length"], power=power)
    return np.asarray(launch + core + block * columns["sequences"] * columns["heads"])


CONTEXT = Law(
    "context attention",
    (
        Parameter("launch", "s", 8e-6, 1e-6, 1e-3),
        Parameter("compute", "share of the peak", 0.55, 0.05, 1.5),
        Parameter("bandwidth", "share of the memory bandwidth", 0.8, 0.02, 5.0),
        Parameter("chain", "s per token", 1e-8, 1e-12, 1e-5),
        Parameter("block", "s per sequence and head", 1e-9, 1e-13, 1e-6),
        Parameter("power", "1 adds, infinity takes the largest", 2.0, 1.0, 10.0),
    ),
    _context_seconds,
)


def decode_samples(data: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    """Yield decode attention by cache type; a group is (heads, KV heads, head size, window)."""
    for table in tables(data, "attention/*/*/generation_attention_perf.parquet"):
        yield from _by_cache(table, dropped)


def context_samples(data: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    """Yield prefill attention by cache type, grouped likewise; the H200's table is left out."""
    for table in tables(data, "attention/*/*/context_attention_perf.parquet"):
        if table.accelerator.name == "H200":
            dropped[EXCLUDED] = len(table)
        else:
            yield from _by_cache(table, dropped)


def _by_cache(table: Table, dropped: dict[str, int]) -> Iterator[Sample]:
    merged, repeats = merge_repeats(table, _KEYS)
    dropped[MERGED] = dropped.get(MERGED, 0) + repeats
    for (dtype,), rows in variants(merged.texts("kv_cache_dtype")):
        yield _sample(merged.where(rows), dtype)


def _sample(table: Table, dtype: str) -> Sample:
    width = 1.0 if dtype == "fp8" else 2.0
    heads, kv_heads = table.floats("num_heads"), table.floats("num_key_value_heads")
    size, sequences = table.floats("head_dim"), table.floats("batch_size")
    stated = table.floats("window_size") if "window_size" in table.columns else table.constant(0)
    window = np.where(stated > 0, stated, np.inf)
    length = table.floats("isl")
    card = table.accelerator
    columns = {
        "sequences": sequences,
        "heads": heads,
        "kv_heads": kv_heads,
        "grouped": (heads > kv_heads).astype(np.float64),
        "window": window,
        "context": table.floats("step") + length,
        "length": length,
        "cached": sequences * 2 * kv_heads * size * width,
        "operations": 4 * sequences * heads * size * attended(length, window),
        "bytes": sequences * length * 2 * (heads + kv_heads) * size * 2.0,
        "peak": table.constant(card.half),
        "bandwidth": table.constant(card.bandwidth),
    }
    groups = named(heads, kv_heads, size, stated)
    variant = f"kv {dtype}"
    return Sample(card.name, table.engine, variant, columns, table.seconds, groups)


def attended(length: FloatArray, window: FloatArray) -> FloatArray:
    """Return the pairs of positions of a causal prompt of ``length`` with a ``window``."""
    near = np.minimum(length, window)
    far = np.where(length > near, length - near, 0.0)
    return np.asarray(near * (near + 1) / 2 + np.where(far > 0, far * near, 0.0))
