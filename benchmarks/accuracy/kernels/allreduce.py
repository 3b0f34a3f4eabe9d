"""All-reduce inside a scale-up domain, replayed from a graph: three algorithms by size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.kernels.law import Columns, Law, Parameter, Sample
from benchmarks.accuracy.kernels.tables import named, tables

FOLDS = 3

EAGER = "all-reduce started from the host (vllm_eager): decode replays graphs"

_NCCL = 8 * 2**20
"""Messages of this size and more go to NCCL (vLLM, custom_all_reduce.py, max_size) [B]."""

_TWO_SHOT = {4: 512 * 1024, 8: 256 * 1024}
"""From this size four and eight GPUs reduce and gather in two steps (vLLM, csrc) [B]."""

_BF16 = 2.0


def _seconds(columns: Columns, values: FloatArray) -> FloatArray:
    """Return latency + bytes over the link [s]: one step, two steps, or NCCL's ring."""
    wait, doubling, second, share_one, share_two, nccl, nccl_doubling, share_nccl = values
    gpus, size, link = columns["gpus"], columns["size"], columns["link"]
    steps = np.log2(gpus)
    ring = 2 * (gpus - 1) / gpus * size / link
    one_shot = wait + doubling * steps + (gpus - 1) * size / (share_one * link)
    two_shot = wait + doubling * steps + second + ring / share_two
    large = nccl + nccl_doubling * steps + ring / share_nccl
    small = np.where(size < columns["two_shot"], one_shot, two_shot)
    return np.asarray(np.where(size >= _NCCL, large, small))


LAW = Law(
    "all-reduce",
    (
        Parameter("wait", "s", 4e-6, 1e-6, 1e-4),
        Parameter("doubling", "s per doubling of GPUs", 3e-7, 1e-9, 1e-5),
        Parameter("second", "s of the second step", 3e-6, 1e-9, 1e-4),
        Parameter("share_one", "share of the link, one step", 0.8, 0.05, 1.5),
        Parameter("share_two", "share of the link, two steps", 0.8, 0.05, 1.5),
        Parameter("nccl", "s", 2e-5, 1e-6, 3e-4),
        Parameter("nccl_doubling", "s per doubling of GPUs", 5e-6, 1e-8, 1e-4),
        Parameter("share_nccl", "share of the link, NCCL", 0.8, 0.05, 1.5),
    ),
    _seconds,
)


def samples(folder: Path, dropped: dict[str, int]) -> Iterator[Sample]:
    """Yield times by number of GPUs, which is the group; sizes in the tables are elements."""
    for table in tables(folder, "comm/vllm/*/custom_allreduce_perf.parquet"):
        graph = table.texts("backend") == "vllm_graph"
        dropped[EAGER] = dropped.get(EAGER, 0) + int((~graph).sum())
        usable = table.where(graph)
        gpus = usable.floats("num_gpus")
        columns = {
            "gpus": gpus,
            "size": _BF16 * usable.floats("message_size"),
            "link": usable.constant(usable.accelerator.local_bandwidth),
            "two_shot": np.array([_TWO_SHOT.get(int(n), np.inf) for n in gpus]),
        }
        card = usable.accelerator.name
        yield Sample(card, usable.engine, "bfloat16", columns, usable.seconds, named(gpus))
