"""Whole-batch runs of LLM-Inference-Bench: seconds from the start to the last token of a batch.

``measured/llm_inference_bench``: argonne-lcf/LLM-Inference-Bench @ 4211f5d (BSD-3-Clause). Inputs
and outputs have the same length. Times come from ``Latency``: ``Throughput`` lacks the batch in
all rows of llama.cpp.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.measurements.models import measured_model
from archipelago.perfmodel.measurements.rules import Loaded, Rule, read_csv, sift
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.roofline import Roofline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE = "measured/llm_inference_bench/Plots/All_results.csv"

# The A100 of that study is the 40 GB card.
_ACCELERATORS = {
    "Nvidia A100 GPU": "A100-40GB",
    "Nvidia H100 GPU": "H100",
    "Nvidia GH200 GPU": "GH200",
    "AMD MI300X GPU": "MI300X",
}
_ENGINES = {"TensorRT-LLM": "tensorrt-llm", "vLLM": "vllm"}
_NEEDS = ("Hardware", "Num of Hardware", "Framework", "Model", "Input Output Length", "Latency")

_FLOOR = 0.8
"""A run faster than this share of reading all weights once per token has failed."""

LARGE = 60e9
"""Parameters from which a model is of the 70B class."""

_Row = dict[str, str]


@dataclass(frozen=True)
class BatchRun:
    """A batch of ``batch`` prompts of ``length`` tokens, each with ``length`` tokens of output.

    ``seconds`` from start to the end of the last one.
    """

    accelerator: str
    engine: str
    model: str
    parallelism: Parallelism
    length: float
    batch: float
    seconds: float

    @property
    def series(self) -> tuple[str, str]:
        """Accelerator and engine: what one set of efficiencies speaks of."""
        return (self.accelerator, self.engine)

    @property
    def deployment(self) -> str:
        """Model and parallelism: the group of a split."""
        return f"{self.model} {self.parallelism}"

    @property
    def large(self) -> bool:
        """Whether the model is of the 70B class."""
        return measured_model(self.model).parameters > LARGE

    @property
    def waves(self) -> bool:
        """Whether the engine has to run the batch in parts, for its caches do not fit at once."""
        try:
            island = Roofline(
                accelerator(self.accelerator), measured_model(self.model), self.parallelism, 8
            )
        except DoesNotFit:
            return True
        return 2 * self.length * self.batch > island.kv_capacity()


def load(root: Path) -> Loaded[BatchRun]:
    """Runs of TensorRT-LLM and vLLM below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    kept, dropped = sift(read_csv(root / FILE, _NEEDS), _RULES)
    runs, repeats = _merged(_parse(row) for row in kept)
    dropped["repeat of a configuration: geometric mean taken"] += repeats
    runs, dropped = sift(runs, _RUN_RULES, dropped)
    return Loaded(tuple(runs), dict(dropped))


def _known(row: _Row) -> bool:
    return row["Hardware"] in _ACCELERATORS and row["Framework"] in _ENGINES


_RULES = (
    Rule[_Row]("engine or accelerator outside the question", lambda row: not _known(row)),
    Rule[_Row]("no latency", lambda row: not row["Latency"] or float(row["Latency"]) <= 0),
)


def _failed(run: BatchRun) -> bool:
    """Faster than 0.8 x reading weights and mean cache n times: not every token was made."""
    model = measured_model(run.model)
    cache = model.kv_bytes_per_token * 1.5 * run.length * run.batch
    read = (model.active_parameters * model.precision.linear + cache) / run.parallelism.tp
    floor = run.length * read / accelerator(run.accelerator).bandwidth
    return run.seconds < _FLOOR * floor


def _sliding(run: BatchRun) -> bool:
    """Twice the time of Llama-3-8B, which has the same shape apart from the window."""
    return (*run.series, run.model, run.batch) == ("H100", "vllm", "Mistral-7B", 64)


_RUN_RULES = (
    Rule[BatchRun]("below the physical floor: the run failed", _failed),
    Rule[BatchRun](
        "Mixtral: identical prompts touch few experts", lambda run: run.model == "Mixtral-8x7B"
    ),
    Rule[BatchRun](
        "MI300X: erratic (4.6: 30 % median at best)", lambda run: run.accelerator == "MI300X"
    ),
    Rule[BatchRun]("Mistral-7B batch 64 on H100 vLLM: sliding-window path", _sliding),
    Rule[BatchRun]("waves: the batch's caches do not fit at once", lambda run: run.waves),
)


def _parse(row: _Row) -> BatchRun:
    return BatchRun(
        accelerator=_ACCELERATORS[row["Hardware"]],
        engine=_ENGINES[row["Framework"]],
        model=measured_model(row["Model"]).name,
        parallelism=Parallelism(tp=int(row["Num of Hardware"])),
        length=float(row["Input Output Length"]),
        batch=float(row["Batch Size"]),
        seconds=float(row["Latency"]),
    )


def _merged(runs: Iterable[BatchRun]) -> tuple[list[BatchRun], int]:
    """One run per configuration, and how many were merged away."""
    by_key: dict[BatchRun, list[float]] = defaultdict(list)
    for run in runs:
        by_key[replace(run, seconds=0.0)].append(run.seconds)
    merged = [
        replace(key, seconds=math.exp(sum(map(math.log, found)) / len(found)))
        for key, found in by_key.items()
    ]
    return merged, sum(len(found) - 1 for found in by_key.values())
