"""Routed experts: grouped products of the busiest rank, its touched experts, and the sorting.

``num_tokens`` is global, over all ranks of expert parallelism. ``power_law_a`` means that loads of
experts were drawn from a density x^-a and that the time is the busiest rank's: what that rank gets
is estimated from draws of our own, with a fixed seed, so one draw of theirs stays noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.catalogue.precision import BF16_BYTES
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.gemm import BANDS, FORMATS, constants
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample
from benchmarks.accuracy.kernels.tables import Table, named, tables, variants

FOLDS = 5

_SPECIAL = ("nongated", "min_latency", "situ")
"""Kernels of models without a gate, of small batches alone, and of another activation."""

_DRAWS = 24
_WIDEST = 0.8
"""Largest load that is drawn, as a share of the tokens (aiconfigurator's sampler)."""
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


@dataclass(frozen=True)
class Load:
    """What the busiest rank gets: rows (token-expert pairs) and experts that see any."""

    rows: float
    touched: float


@cache
def busiest(tokens: int, experts: int, per_token: int, ranks: int, law: str) -> Load:
    """Return the load of the busiest of ``ranks`` ranks, ``per_token`` experts a token.

    ``law``: ``balanced`` (every expert alike), ``uniform`` (drawn evenly: an expert is touched
    with probability 1 - (1 - k/E)^T), ``power_law_a``, or that with ``_eplb`` (redundant copies
    even it out).
    """
    mine = experts / ranks
    if not law.startswith("power_law") or law.endswith("eplb"):
        rows = tokens * per_token / ranks
        drawn = mine * (1 - (1 - per_token / experts) ** tokens)
        return Load(rows, min(mine, rows) if law == "balanced" else drawn)
    loads = _drawn(tokens, experts, per_token, float(law.rpartition("_")[2]))
    by_rank = loads.reshape(_DRAWS, ranks, experts // ranks)
    heaviest = by_rank[np.arange(_DRAWS), by_rank.sum(axis=2).argmax(axis=1)]
    touched = (1 - np.exp(-heaviest)).sum(axis=1)  # Poisson around the expected load
    return Load(float(np.median(heaviest.sum(axis=1))), float(np.median(touched)))


def _drawn(tokens: int, experts: int, per_token: int, exponent: float) -> FloatArray:
    """Return expected loads of experts [tokens], shape (draws, experts), by a power law."""
    uniform = np.random.default_rng(experts).random((_DRAWS, experts))
    share = _WIDEST if tokens * per_token > experts else 2.0
    widest = max(2.0, share * tokens)
    power = 1 - exponent
    drawn = ((widest**power - 1) * uniform + 1) ** (1 / power)
    loads = drawn / drawn.sum(axis=1, keepdims=True) * tokens * per_token
    return np.asarray(np.minimum(loads, tokens))


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
    hidden, inner = table.floats("hidden_size"), table.floats("inter_size")
    names = ("num_tokens", "num_experts", "topk", "moe_ep_size")
    numbers = zip(*(table.floats(name).astype(int).tolist() for name in names), strict=True)
    laws = table.texts("distribution").tolist()
    loads = [busiest(*row, law) for row, law in zip(numbers, laws, strict=True)]
    columns = {
        "rows": np.maximum(1e-9, np.array([load.rows for load in loads])),
        "touched": np.maximum(0.5, np.array([load.touched for load in loads])),
        "pairs": table.floats("num_tokens") * table.floats("topk"),
        "hidden": hidden,
        "width": inner / table.floats("moe_tp_size"),
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
