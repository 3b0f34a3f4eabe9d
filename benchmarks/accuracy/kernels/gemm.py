"""Matrix products: m x k times k x n, weights streamed, activations quantised where narrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.accelerators import Accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.catalogue.precision import (
    BF16,
    BF16_BYTES,
    FP8,
    FP8_BLOCK,
    MXFP4,
    NVFP4,
    Format,
    integer,
)
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.operators import ACTIVATION_BYTES, Kernels
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample
from benchmarks.accuracy.kernels.tables import Table, named, tables, variants

FORMATS = {
    "bfloat16": BF16,
    "fp8": FP8,
    "fp8_block": FP8_BLOCK,
    "nvfp4": NVFP4,
    "int4_wo": integer(4, 128),
    "w4a16_mxfp4": replace(MXFP4, compute="bf16"),
}
"""Formats of weights by their name in the tables."""


def operand(card: Accelerator, form: Format) -> str:
    """Return the class of products of a format, as ``Kernels.operand``."""
    return Kernels(card, _ANY, engine_fit(card)).operand(form)


_ANY = architecture("Llama-3.1-8B")

BANDS = (8.5, 64.5, 512.5, 4096.5)
"""Between sizes of a pass [tokens]."""

FOLDS = 5


def _seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return start + chain k + max(operations and ramp, weights and activations) [s].

    The formula of ``Kernels.product``.
    """
    start, mbu, mfu, chain, ramp, quantise = values
    m, n, k = columns["m"], columns["n"], columns["k"]
    read = m * k * (columns["operand"] + quantise)
    moved = n * k * columns["weight"] + read + m * n * BF16_BYTES
    compute = 2 * n * k * (m + ramp) / (mfu * columns["peak"])
    return np.asarray(start + chain * k + np.maximum(compute, moved / (mbu * columns["bandwidth"])))


LAW = Law(
    "GEMM",
    (
        Parameter("start", "s", 4e-6, 2e-7, 5e-5),
        Parameter("mbu", "share of the memory bandwidth", 0.75, 0.2, 1.0, 0.2),
        Parameter("mfu", "share of the peak", 0.6, 0.05, 1.0),
        Parameter("chain", "s per element of k", 3e-10, 1e-13, 1e-8),
        Parameter("ramp_rows", "rows", 8.0, 0.01, 2000.0),
        Parameter("quantise_bytes", "B per activation", 2.0, 0.01, 60.0),
    ),
    _seconds,
    BANDS,
)


def samples(folder: Path) -> Iterator[Sample]:
    """Yield measured products by operand type; a group is one pair (n, k)."""
    for table in tables(folder, "gemm/*/*/gemm_perf.parquet"):
        for (dtype,), rows in variants(table.texts("gemm_dtype")):
            if dtype not in FORMATS:
                continue
            yield _sample(table.where(rows), dtype)


def _sample(table: Table, dtype: str) -> Sample:
    card = table.accelerator
    columns = {name: table.floats(name) for name in ("m", "n", "k")}
    columns |= constants(card, FORMATS[dtype], len(table))
    groups = named(columns["n"], columns["k"])
    return Sample(card.name, table.engine, dtype, columns, table.seconds, groups, columns["m"])


def constants(card: Accelerator, form: Format, rows: int) -> dict[str, FloatArray]:
    """Return what is the same for all products with weights of a format, shape (rows,) each.

    Bytes of a weight and of an activation as it is multiplied [B], the peak [FLOP/s] and the
    memory's bandwidth [B/s].
    """
    values = {
        "weight": form.size,
        "operand": ACTIVATION_BYTES[operand(card, form)],
        "peak": card.peak(form.compute),
        "bandwidth": card.bandwidth,
    }
    return {name: np.full(rows, value) for name, value in values.items()}
