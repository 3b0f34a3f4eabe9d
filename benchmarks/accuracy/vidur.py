"""Products and collectives of Vidur's profiles: A100, A40 and H100, layers of the 70B models.

Source: microsoft/vidur @ 7d47513 (MIT), ms, medians over repeats. Sizes of collectives are bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.precision import BF16
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Bar, Case, Report
from benchmarks.accuracy.kernels import gemm
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample, points

COMPUTE, NETWORK = "measured/vidur/compute", "measured/vidur/network"

CROSS = "devices_per_node below num_workers: across nodes"
COPIED = "h100_pairwise_nvlink send_recv: repeats the A100's file"

CARDS = {"a100": "A100-80GB", "a40": "A40", "h100": "H100"}

_FOLDS = 4
"""One tensor-parallel degree at a time."""


def products(data: Path) -> Iterator[Report]:
    """Yield the four products of a layer at tensor-parallel degrees 1 to 8, a degree left out."""
    collected = [
        point
        for path in sorted((data / COMPUTE).glob("*/*/*/mlp.csv"))
        for point in points(gemm.LAW, _products(path), "time", _FOLDS)
    ]
    split = "each tensor-parallel degree predicted by a fit to the other three"
    yield Report("Vidur: matrix products", Bar(median=0.15, p90=0.35), split, {}, collected)


def _products(path: Path) -> Sample:
    rows = list(csv.DictReader(path.read_text().splitlines()))
    card = accelerator(CARDS[path.parts[-4]])
    shapes = [
        (float(row["num_tokens"]), *shape, float(row[f"time_stats.{name}.median"]) * 1e-3)
        for row in rows
        for name, shape in _shapes(row).items()
    ]
    m, k, n, seconds = np.array(shapes).T
    columns = {"m": m, "n": n, "k": k} | gemm.constants(card, BF16, len(m))
    degrees = [f"tp {row['num_tensor_parallel_workers']}" for row in rows for _ in range(4)]
    return Sample(card.name, "vidur", path.parent.name, columns, seconds, np.array(degrees))


def _shapes(row: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return each product's k and n on one GPU."""
    tp, hidden = int(row["num_tensor_parallel_workers"]), int(row["n_embd"])
    wide, size = int(row["n_expanded_embd"]), hidden // int(row["n_head"])
    kv = max(1, int(row["n_kv_head"]) // tp) * size
    return {
        "attn_pre_proj": (hidden, hidden / tp + 2 * kv),
        "attn_post_proj": (hidden / tp, hidden),
        "mlp_up_proj": (hidden, 2 * wide / tp),
        "mlp_down_proj": (wide / tp, hidden),
    }


def _line(columns: Columns, values: FloatArray) -> FloatArray:
    """Return latency, growing with the GPUs, plus bytes over the usable link [s]."""
    wait, doubling, share = values
    return np.asarray(
        wait + doubling * np.log2(columns["gpus"]) + columns["volume"] / (share * columns["link"])
    )


LINE = Law(
    "collective",
    (
        Parameter("wait", "s", 1e-5, 1e-6, 1e-3),
        Parameter("doubling", "s per doubling of GPUs", 5e-6, 1e-9, 1e-3),
        Parameter("share", "share of the link", 0.7, 0.01, 1.5),
    ),
    _line,
)


def collectives(data: Path) -> Iterator[Report]:
    """Yield all-reduce and send/recv inside a node, sizes left out octave by octave."""
    dropped: dict[str, int] = {}
    collected = [
        point
        for sample in _collectives(data / NETWORK, dropped)
        for point in points(LINE, sample, "time", _FOLDS)
    ]
    split = f"octaves of the size in {_FOLDS} folds"
    note = "NVLink only: pairs inside a node without NVSwitch reach each other over PCIe in part"
    yield Report("Vidur: collectives", Bar(), split, dropped, collected, (note,))


def _collectives(folder: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    for kind in ("all_reduce", "send_recv"):
        for name in ("a100_dgx", "h100_dgx"):
            rows = list(csv.DictReader((folder / name / f"{kind}.csv").read_text().splitlines()))
            inside = [row for row in rows if row["devices_per_node"] == row["num_workers"]]
            dropped[CROSS] = dropped.get(CROSS, 0) + len(rows) - len(inside)
            card = accelerator(CARDS[name.partition("_")[0]])
            gpus = np.array([float(row["num_workers"]) for row in inside])
            size = np.array([float(row["size"]) for row in inside])
            median = f"time_stats.{kind}.median"
            seconds = np.array([float(row[median]) for row in inside]) * 1e-3
            ring = 2 * (gpus - 1) / gpus if kind == "all_reduce" else 1.0
            link = np.full(len(inside), card.local_bandwidth)
            columns = {"gpus": gpus, "volume": ring * size, "link": link}
            octaves = np.floor(np.log2(size)).astype(int).astype(np.str_)
            yield Sample(card.name, "NCCL (vidur)", kind, columns, seconds, octaves)
    copied = (folder / "h100_pairwise_nvlink" / "send_recv.csv").read_text().splitlines()
    dropped[COPIED] = len(copied) - 1


CASES = (
    Case("vidur", "Vidur: products of the 70B layers", (COMPUTE,), products),
    Case("vidur-network", "Vidur: collectives", (NETWORK,), collectives),
)
