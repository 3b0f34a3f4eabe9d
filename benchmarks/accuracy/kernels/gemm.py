"""Matrix products: m x k times k x n, weights streamed, activations quantised where narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample, smooth_max
from benchmarks.accuracy.kernels.tables import Table, named, tables, variants

FORMATS = {
    "bfloat16": ("bf16", 2.0),
    "fp8": ("fp8", 1.0),
    "fp8_block": ("fp8", 1.0),
    "nvfp4": ("fp4", 4.5 / 8),
}
"""Type that products run in, and bytes per weight: NVFP4 has one byte of scale per 16 values."""

FOLDS = 5


def _seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return launch + max(weights and activations, operations, chain along k) + quantisation [s].

    Roofline with a soft corner. A chain along k bounds products of few tiles, in which no parallel
    work hides the latency of one step. Narrow operands are made from BF16 activations first, a
    pass over m k elements.
    """
    launch, bandwidth, compute, chain, power, quantise = values
    m, n, k = columns["m"], columns["n"], columns["k"]
    moved = (n * k + m * k) * columns["weight"] + 2 * m * n
    memory = moved / (bandwidth * columns["bandwidth"])
    operations = 2 * m * n * k / (compute * columns["peak"])
    core = smooth_max(memory, operations, chain * k, power=power)
    return np.asarray(launch + core + quantise * m * k / columns["bandwidth"])


LAW = Law(
    "GEMM",
    (
        Parameter("launch", "s", 3e-6, 1e-7, 1e-4),
        Parameter("bandwidth", "share of the memory bandwidth", 0.75, 0.2, 1.3),
        Parameter("compute", "share of the peak", 0.6, 0.1, 1.2),
        Parameter("chain", "s per element of k", 5e-10, 1e-12, 1e-8),
        Parameter("power", "1 adds, infinity takes the largest", 3.0, 1.0, 12.0),
        Parameter("quantise", "B per activation", 2.0, 1e-3, 100.0),
    ),
    _seconds,
)


def samples(data: Path) -> Iterator[Sample]:
    """Yield measured products by operand type; a group is one pair (n, k)."""
    for table in tables(data, "gemm/*/*/gemm_perf.parquet"):
        for (dtype,), rows in variants(table.texts("gemm_dtype")):
            yield _sample(table.where(rows), dtype)


def _sample(table: Table, dtype: str) -> Sample:
    operand, weight = FORMATS[dtype]
    card = table.accelerator
    columns = {name: table.floats(name) for name in ("m", "n", "k")}
    columns |= {
        "weight": table.constant(weight),
        "peak": table.constant(card.peak(operand)),
        "bandwidth": table.constant(card.bandwidth),
    }
    groups = named(columns["n"], columns["k"])
    return Sample(card.name, table.engine, dtype, columns, table.seconds, groups)
