"""Prompt and token times of Llama-2-70B and BLOOM-176B on DGX-A100 and DGX-H100.

``measured/splitwise/perf_model.csv``: Mutinifni/splitwise-sim @ 8f99e7d (MIT), FP16 on an engine of
2023. Five repeats of each configuration; their median counts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from archipelago.perfmodel.measurements.rules import Loaded, Rule, read_csv, sift
from archipelago.perfmodel.parallelism import Parallelism

if TYPE_CHECKING:
    from pathlib import Path

FILE = "measured/splitwise/perf_model.csv"

_MODELS = {"llama2-70b": "Llama-2-70B", "bloom-176b": "BLOOM-176B"}
_ACCELERATORS = {"a100-80gb": "A100-80GB", "h100-80gb": "H100"}
_NEEDS = ("model", "hardware", "prompt_size", "batch_size", "prompt_time", "token_time")

_Row = dict[str, str]


@dataclass(frozen=True)
class PhaseRun:
    """A batch of prompts computed together, then decoded; ``prefill`` and ``token`` in [s]."""

    accelerator: str
    model: str
    parallelism: Parallelism
    length: float
    batch: float
    outputs: float
    prefill: float
    token: float

    @property
    def deployment(self) -> str:
        """Model and parallelism: the group of a split."""
        return f"{self.model} {self.parallelism}"


def load(root: Path) -> Loaded[PhaseRun]:
    """Medians of the repeats below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    kept, dropped = sift(read_csv(root / FILE, _NEEDS), _RULES)
    by_key: dict[tuple[str, ...], list[_Row]] = defaultdict(list)
    names = ("hardware", "model", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    for row in kept:
        by_key[tuple(row[name] for name in names)].append(row)
    dropped["repeat of a configuration: median taken"] = len(kept) - len(by_key)
    return Loaded(tuple(_parse(rows) for rows in by_key.values()), dict(dropped))


def _impossible(row: _Row) -> bool:
    key = (row["model"], row["tensor_parallel"], row["batch_size"])
    return key == ("llama2-70b", "2", "64")


_RULES = (
    Rule[_Row]("power-capped", lambda row: row["hardware"].endswith("-pcap")),
    Rule[_Row]("Llama-2-70B TP2 batch 64: faster than the peak allows", _impossible),
)


def _parse(rows: list[_Row]) -> PhaseRun:
    """One configuration from its repeats."""
    one = rows[0]
    return PhaseRun(
        accelerator=_ACCELERATORS[one["hardware"]],
        model=_MODELS[one["model"]],
        parallelism=Parallelism(tp=int(one["tensor_parallel"])),
        length=float(one["prompt_size"]),
        batch=float(one["batch_size"]),
        outputs=float(one["token_size"]),
        prefill=median(float(row["prompt_time"]) for row in rows) / 1e3,
        token=median(float(row["token_time"]) for row in rows) / 1e3,
    )
