"""Grouped attention kernels: decode reads the cache, prefill multiplies a causal triangle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample
from benchmarks.accuracy.kernels.tables import MERGED, Table, merge_repeats, named, tables, variants

FOLDS = 5

EXCLUDED = "H200 vllm 0.19.0 context_attention (whole table): up to 260 times the hardware's peak"

WINDOWS = "sliding windows: some kernels read all of the context, and which of them is not stated"

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
    """Return start + max(operations, bytes and blocks of threads) [s], as ``operators.attention``.

    A block of threads for each sequence and KV head takes its time beside the cache's reading.
    """
    start, bandwidth, compute, block = values
    reach = np.minimum(columns["context"], columns["window"])
    moved = columns["cached"] * reach + columns["queries"]
    memory = moved / (bandwidth * columns["bandwidth"])
    memory = memory + block * columns["sequences"] * columns["kv_heads"]
    operations = columns["per_position"] * reach / (compute * columns["peak"])
    return np.asarray(start + np.maximum(operations, memory))


BANDS = (1e3, 1e4, 1e5, 1e6)
"""Between tokens of all caches that a kernel reads, or of all prompts [tokens]."""

DECODE = Law(
    "decode attention",
    (
        Parameter("start", "s", 8e-6, 1e-6, 1e-4),
        Parameter("mbu", "share of the memory bandwidth", 0.8, 0.1, 1.0),
        Parameter("mfu", "share of the peak", 0.1, 0.02, 1.0),
        Parameter("block", "s per sequence and KV head", 2e-8, 1e-12, 1e-6),
    ),
    _decode_seconds,
    BANDS,
)


def _context_seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return start + operations + bytes [s], as ``operators.attention``; of the causal half."""
    start, compute, bandwidth = values
    operations = columns["operations"] / (compute * columns["peak"])
    return np.asarray(start + operations + columns["bytes"] / (bandwidth * columns["bandwidth"]))


CONTEXT = Law(
    "context attention",
    (
        Parameter("start", "s", 8e-6, 1e-6, 1e-4),
        Parameter("mfu", "share of the peak", 0.55, 0.05, 1.0),
        Parameter("mbu", "share of the memory bandwidth", 0.4, 0.02, 1.0),
    ),
    _context_seconds,
    BANDS,
)


def decode_samples(folder: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    """Yield decode attention by cache type; a group is (heads, KV heads, head size)."""
    for table in tables(folder, "attention/*/*/generation_attention_perf.parquet"):
        yield from _by_cache(table, dropped)


def context_samples(folder: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    """Yield prefill attention by cache type, grouped likewise; the H200's table is left out."""
    for table in tables(folder, "attention/*/*/context_attention_perf.parquet"):
        if table.accelerator.name == "H200":
            dropped[EXCLUDED] = len(table)
        else:
            yield from _by_cache(table, dropped)


def _by_cache(table: Table, dropped: dict[str, int]) -> Iterator[Sample]:
    merged, repeats = merge_repeats(table, _KEYS)
    dropped[MERGED] = dropped.get(MERGED, 0) + repeats
    for (dtype,), rows in variants(merged.texts("kv_cache_dtype")):
        sample = _sample(merged.where(rows), dtype)
        whole = np.isinf(sample.columns["window"])
        dropped[WINDOWS] = dropped.get(WINDOWS, 0) + int((~whole).sum())
        yield sample.only(whole)


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
        "size": size,
        "window": window,
        "context": table.floats("step") + length,
        "length": length,
        "cached": sequences * 2 * kv_heads * size * width,
        "queries": sequences * (2 * heads * 2.0 + 2 * kv_heads * width) * size,
        "per_position": 4 * sequences * heads * size,
        "operations": 4 * sequences * heads * size * attended(length, window),
        "bytes": sequences * length * 2 * (heads + kv_heads) * size * 2.0,
        "peak": table.constant(card.half),
        "bandwidth": table.constant(card.bandwidth),
    }
    groups = named(heads, kv_heads, size, stated)
    reached = sequences * (columns["context"] if "generation" in table.name else length)
    return Sample(card.name, table.engine, dtype, columns, table.seconds, groups, reached)


def attended(length: FloatArray, window: FloatArray) -> FloatArray:
    """Return the pairs of positions of a causal prompt of ``length`` with a ``window``."""
    near = np.minimum(length, window)
    far = np.where(length > near, length - near, 0.0)
    return np.asarray(near * (near + 1) / 2 + np.where(far > 0, far * near, 0.0))
