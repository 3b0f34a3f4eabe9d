"""Prompts alone: Splitwise's profile against fits that did not see the deployment.

``measured/splitwise/perf_model.csv``: Mutinifni/splitwise-sim @ 8f99e7d (MIT), prompt and token
times of Llama-2-70B and BLOOM-176B on DGX-A100 and DGX-H100, FP16 on an engine of 2023. Each
configuration was repeated five times; the median counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from archipelago.perfmodel.calibration import fit
from archipelago.perfmodel.calibration.benches import (
    Deployment,
    PrefillBench,
    column,
)
from archipelago.perfmodel.calibration.fit import Problem
from archipelago.perfmodel.calibration.measurements import (
    Loaded,
    clean,
    grouped,
    read_csv,
)
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy.case import Bar, Case, Point, Report
from benchmarks.accuracy.held_out import Line, split_points

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
        """Return model and parallelism: the group of a split."""
        return f"{self.model} {self.parallelism}"


def load(root: Path) -> Loaded[PhaseRun]:
    """Return medians of the repeats below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    usable, dropped = clean(read_csv(root / FILE, _NEEDS), _RULES)
    names = ("hardware", "model", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    runs = [_parse(rows) for rows in grouped(usable, lambda row: tuple(row[n] for n in names))]
    dropped["repeat of a configuration: median taken"] = len(usable) - len(runs)
    return Loaded(tuple(runs), dict(dropped))


_RULES: Mapping[str, Callable[[_Row], bool]] = {
    "power-capped": lambda row: row["hardware"].endswith("-pcap"),
    "Llama-2-70B TP2 batch 64: faster than the peak allows": lambda row: (
        (row["model"], row["tensor_parallel"], row["batch_size"]) == ("llama2-70b", "2", "64")
    ),
}


def _parse(rows: list[_Row]) -> PhaseRun:
    """Return one configuration from its repeats."""
    first = rows[0]
    return PhaseRun(
        accelerator=_ACCELERATORS[first["hardware"]],
        model=_MODELS[first["model"]],
        parallelism=Parallelism(tp=int(first["tensor_parallel"])),
        length=float(first["prompt_size"]),
        batch=float(first["batch_size"]),
        outputs=float(first["token_size"]),
        prefill=median(float(row["prompt_time"]) for row in rows) / 1e3,
        token=median(float(row["token_time"]) for row in rows) / 1e3,
    )


def prefill_problem(runs: Sequence[PhaseRun]) -> Problem:
    """Return prompts of one accelerator, with deployments as groups."""
    base = engine_fit(accelerator(runs[0].accelerator))
    return Problem(prefill_benches(runs), base, fit.PREFILL)


def prefill_benches(runs: Iterable[PhaseRun]) -> list[PrefillBench]:
    """Return a bench per deployment."""
    benches = []
    for rows in grouped(runs, lambda run: run.deployment):
        model, parallelism = architecture(rows[0].model, "bf16"), rows[0].parallelism
        benches.append(
            PrefillBench(
                Deployment(accelerator(rows[0].accelerator), model, parallelism),
                length=column(rows, lambda run: run.length),
                batch=column(rows, lambda run: run.batch),
                measured=column(rows, lambda run: run.prefill),
                groups=tuple(run.deployment for run in rows),
            )
        )
    return benches


_PROFILED = 128.0
"""Tokens of output in the sweeps over prompts and batches; other outputs repeat one prompt."""


@cache
def prompt_points(root: Path) -> tuple[Point, ...]:
    """Return every prefill time by a fit without its model and parallelism."""
    rows = load(root).only(lambda run: run.outputs == _PROFILED)
    collected: list[Point] = []
    for name in sorted({run.accelerator for run in rows}):
        runs = [run for run in rows if run.accelerator == name]
        problem = prefill_problem(runs)
        models = [b.deployment.model.name for b in prefill_benches(runs) for _ in b.groups]
        line = Line(name, "splitwise's", models, "prefill", "prompt time")
        collected += split_points(problem, problem.groups, line)
    return tuple(collected)


def splitwise(root: Path) -> Iterator[Report]:
    """Yield Llama-2-70B and BLOOM-176B on DGX-A100 and DGX-H100."""
    yield Report(
        "Prefill: Splitwise",
        Bar(median=0.15, p90=0.30),
        "one (model, number of GPUs) left out; one fit for each accelerator, without priors "
        "from the other",
        load(root).dropped,
        prompt_points(root),
        ("an engine of 2023, whose FP16 prefill reaches 0.26 to 0.66 of the peak",),
    )


CASES = (Case("splitwise", "Prefill: Splitwise", (FILE,), splitwise),)
"""The one case of this module."""
