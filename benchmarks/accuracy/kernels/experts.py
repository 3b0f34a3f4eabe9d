"""Routed experts: grouped products of the busiest rank, its touched experts, and the sorting.

``num_tokens`` is global, over all ranks of expert parallelism, and the time is the busiest rank's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.catalogue.precision import BF16_BYTES
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.gemm import BANDS, FORMATS, constants
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample
from benchmarks.accuracy.kernels.loads import Routing, busiest, takes_turns
from benchmarks.accuracy.kernels.tables import Table, named, tables, variants

FOLDS = 5

_SPECIAL = ("nongated", "min_latency", "situ")
"""Kernels of models without a gate, of small batches alone, and of another activation."""

_FEW_CONFIGURATIONS = 3
"""Up to so many model shapes, the expert-parallel degree is part of the group."""


def _seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return layer + ranks + sorting + max(operations with padding, weights and rows) [s].

    The formula of ``SparseBlock``: pairs of token and expert are sorted on every rank.
    """
    layer, ranks, mbu, mfu, pad, pair, chain = values
    rows, touched, operand = columns["rows"], columns["touched"], columns["operand"]
    hidden, width = columns["hidden"], columns["width"]
    parameters = 3 * hidden * width
    moved = hidden * (operand + BF16_BYTES) + width * (2 * BF16_BYTES + operand)
    weights = touched * parameters * columns["weight"]
    memory = (weights + rows * moved) / (mbu * columns["bandwidth"])
    compute = 2 * (rows + pad * touched) * parameters / (mfu * columns["peak"])
    fixed = layer + ranks * (columns["ranks"] > 1)
    along = (chain + pair * columns["pairs"]) * (hidden + width)
    return np.asarray(fixed + along + np.maximum(compute, memory))


LAW = Law(
    "MoE",
    (
        Parameter("layer", "s", 2e-5, 1e-6, 5e-4),
        Parameter("ranks", "s more if experts are spread", 1e-5, 1e-7, 2e-4),
        Parameter("mbu", "share of the memory bandwidth", 0.7, 0.1, 1.0, 0.2),
        Parameter("mfu", "share of the peak", 0.4, 0.02, 1.0),
        Parameter("pad", "rows per touched expert", 30.0, 0.01, 300.0),
        Parameter("pair", "s per element of a pair", 1e-13, 1e-16, 1e-10),
        Parameter("chain", "s per element", 5e-10, 1e-13, 1e-8),
    ),
    _seconds,
    BANDS,
)


def samples(folder: Path) -> Iterator[Sample]:
    """Yield grouped products by kernel and type; a group is a model shape, or that and a degree."""
    for name in ("moe", "wideep_context_moe", "wideep_generation_moe", "wideep_moe"):
        for table in tables(folder, f"moe/*/*/{name}_perf.parquet"):
            kernels = variants(
                table.texts("kernel_source"), table.texts("moe_dtype"), table.texts("op_name")
            )
            for (kernel, dtype, operation), rows in kernels:
                if dtype not in FORMATS or any(word in kernel for word in _SPECIAL):
                    continue
                yield _sample(table.where(rows), f"{operation} {kernel} {dtype}", dtype)


def _sample(table: Table, variant: str, dtype: str) -> Sample:
    card = table.accelerator
    hidden, width = table.floats("hidden_size"), table.floats("inter_size")
    width = width / table.floats("moe_tp_size")
    names = ("num_tokens", "num_experts", "topk", "moe_ep_size")
    numbers = [table.floats(name).astype(int).tolist() for name in names]
    laws = table.texts("distribution").tolist()
    routings = [Routing(*row) for row in zip(*numbers, laws, strict=True)]
    in_turn = takes_turns(routings, table.seconds, hidden * width)
    loads = [busiest(routing, in_turn) for routing in routings]
    columns = {
        "rows": np.array([load.rows for load in loads]),
        "touched": np.array([load.touched for load in loads]),
        "pairs": table.floats("num_tokens") * table.floats("topk"),
        "hidden": hidden,
        "width": width,
        "ranks": table.floats("moe_ep_size"),
        "experts": table.floats("num_experts"),
        **constants(card, FORMATS[dtype], len(table)),
    }
    tokens = table.floats("num_tokens")
    return Sample(card.name, table.engine, variant, columns, table.seconds, _groups(table), tokens)


def _groups(table: Table) -> NDArray[np.str_]:
    shape = [table.floats(name) for name in ("hidden_size", "inter_size", "topk", "num_experts")]
    alone = named(*shape)
    if len(np.unique(alone)) > _FEW_CONFIGURATIONS:
        return alone
    return named(*shape, table.floats("moe_ep_size"))
