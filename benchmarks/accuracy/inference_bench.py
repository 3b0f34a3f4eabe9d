"""Whole batches: LLM-Inference-Bench against fits that did not see the deployment, model or class.

``measured/llm_inference_bench``: argonne-lcf/LLM-Inference-Bench @ 4211f5d (BSD-3-Clause), seconds
from the start to the last token of a batch. Inputs and outputs have the same length. Times come
from ``Latency``: ``Throughput`` lacks the batch in all rows of llama.cpp.

The bar to beat is a roofline with four parameters, fitted on the same split:

T = (2 P B n + 2 B D n^2 L) / (MFU F t) + n ((2 P + 1.5 B kv n) / (MBU BW t) + t0 + 2 L a)

for a batch of B prompts of n tokens with n tokens of output each: P parameters, D hidden size, L
layers, kv bytes of cache per token, F and BW peaks of one of t GPUs. t0 [s] per step and a [s] per
all-reduce (0 on one GPU) with the efficiencies MFU and MBU are the four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from archipelago.perfmodel.calibration import fit
from archipelago.perfmodel.calibration.benches import (
    BatchBench,
    Deployment,
    column,
)
from archipelago.perfmodel.calibration.fit import Problem, fit_engine
from archipelago.perfmodel.calibration.measurements import (
    Loaded,
    clean,
    grouped,
    read_csv,
)
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy.case import Bar, Case, Point, Report, by_key, median_error
from benchmarks.accuracy.held_out import CHOSEN, Line, points, split_points

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
        """Return accelerator and engine, the key of one set of efficiencies."""
        return (self.accelerator, self.engine)

    @property
    def deployment(self) -> str:
        """Return model and parallelism: the group of a split."""
        return f"{self.model} {self.parallelism}"

    @property
    def large(self) -> bool:
        """Return whether the model is of the 70B class."""
        return architecture(self.model, "bf16").parameters > LARGE

    @property
    def waves(self) -> bool:
        """Return whether the engine runs the batch in parts, because its caches do not fit."""
        try:
            island = Roofline(
                accelerator(self.accelerator), architecture(self.model, "bf16"), self.parallelism, 8
            )
        except DoesNotFit:
            return True
        return 2 * self.length * self.batch > island.kv_capacity()


def load(root: Path) -> Loaded[BatchRun]:
    """Return runs of TensorRT-LLM and vLLM below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    usable, dropped = clean(read_csv(root / FILE, _NEEDS), _RULES)
    runs: list[BatchRun] = []
    for repeats in grouped(map(_parse, usable), lambda run: replace(run, seconds=0.0)):
        logs = [math.log(run.seconds) for run in repeats]
        runs.append(replace(repeats[0], seconds=math.exp(sum(logs) / len(logs))))
    dropped["repeat of a configuration: geometric mean taken"] += len(usable) - len(runs)
    runs, dropped = clean(runs, _RUN_RULES, dropped)
    return Loaded(tuple(runs), dict(dropped))


_RULES: Mapping[str, Callable[[_Row], bool]] = {
    "engine or accelerator outside the question": lambda row: (
        row["Hardware"] not in _ACCELERATORS or row["Framework"] not in _ENGINES
    ),
    "no latency": lambda row: not row["Latency"] or float(row["Latency"]) <= 0,
}


def _failed(run: BatchRun) -> bool:
    """Return whether a run beats 0.8 x reading weights and cache n times: tokens miss."""
    model = architecture(run.model, "bf16")
    cache = model.kv_bytes_per_token * 1.5 * run.length * run.batch
    read = (model.active_parameters * model.precision.linear + cache) / run.parallelism.tp
    floor = run.length * read / accelerator(run.accelerator).bandwidth
    return run.seconds < _FLOOR * floor


_RUN_RULES: Mapping[str, Callable[[BatchRun], bool]] = {
    "below the physical floor: the run failed": _failed,
    "Mixtral: identical prompts touch few experts": lambda run: run.model == "Mixtral-8x7B",
    "MI300X: erratic (4.6: 30 % median at best)": lambda run: run.accelerator == "MI300X",
    # twice the time of Llama-3-8B, which has no window
    "Mistral-7B batch 64 on H100 vLLM: sliding-window path": lambda run: (
        (*run.series, run.model, run.batch) == ("H100", "vllm", "Mistral-7B", 64)
    ),
    "waves: the batch's caches do not fit at once": lambda run: run.waves,
}


def _parse(row: _Row) -> BatchRun:
    return BatchRun(
        accelerator=_ACCELERATORS[row["Hardware"]],
        engine=_ENGINES[row["Framework"]],
        model=architecture(row["Model"], "bf16").name,
        parallelism=Parallelism(tp=int(row["Num of Hardware"])),
        length=float(row["Input Output Length"]),
        batch=float(row["Batch Size"]),
        seconds=float(row["Latency"]),
    )


def batch_problem(runs: Sequence[BatchRun]) -> Problem:
    """Return whole batches of one accelerator and engine, with deployments as groups."""
    first = runs[0]
    benches = batch_benches(runs)
    base = engine_fit(accelerator(first.accelerator), first.engine)
    return Problem(benches, base.replaced({"link": 0.5}), fit.BATCH)


def batch_benches(runs: Iterable[BatchRun]) -> list[BatchBench]:
    """Return a bench per deployment."""
    benches = []
    for rows in grouped(runs, lambda run: run.deployment):
        model, parallelism = architecture(rows[0].model, "bf16"), rows[0].parallelism
        length = column(rows, lambda run: run.length)
        benches.append(
            BatchBench(
                Deployment(accelerator(rows[0].accelerator), model, parallelism),
                length=length,
                output=length,
                batch=column(rows, lambda run: run.batch),
                measured=column(rows, lambda run: run.seconds),
                groups=tuple(run.deployment for run in rows),
            )
        )
    return benches


_START = np.log([0.3, 0.8, 1e-3, 3e-5])
_LOW = np.log([0.01, 0.1, 1e-5, 1e-7])
_HIGH = np.log([1.0, 1.0, 1e-1, 1e-2])


@dataclass(frozen=True, eq=False)
class FourParameters:
    """Whole batches of one accelerator and engine by the formula above."""

    benches: Sequence[BatchBench]

    def residuals(self, logs: FloatArray) -> FloatArray:
        """Return log(predicted / measured) for (MFU, MBU, t0, a) = exp(``logs``), shape (rows,)."""
        parts = [_seconds(bench, *np.exp(logs)) / bench.measured for bench in self.benches]
        return np.asarray(np.log(np.concatenate(parts)))

    def held_out(self, groups: FloatArray) -> FloatArray:
        """Return the same for every row by a fit without its group."""
        residuals = np.empty(len(groups))
        for group in np.unique(groups):
            members = groups == group
            residuals[members] = self.without(members)[members]
        return residuals

    def without(self, left_out: FloatArray) -> FloatArray:
        """Return residuals of all rows by a fit to those that are not left out."""
        fitting = np.logical_not(left_out)
        fitted = least_squares(
            lambda logs: self.residuals(logs)[fitting], _START, bounds=(_LOW, _HIGH), loss="soft_l1"
        )
        return self.residuals(fitted.x)


def _seconds(bench: BatchBench, mfu: float, mbu: float, t0: float, wait: float) -> FloatArray:
    model, gpu = bench.deployment.model, bench.deployment.accelerator
    tp = bench.deployment.parallelism.tp
    n, batch = bench.length, bench.batch
    work = 2 * model.parameters * batch * n + 2 * batch * model.hidden * n**2 * model.layers
    read = 2 * model.parameters + 1.5 * batch * model.kv_bytes_per_token * n
    waits = 2 * model.layers * wait if tp > 1 else 0.0
    step = read / (mbu * gpu.bandwidth * tp) + t0 + waits
    return np.asarray(work / (mfu * gpu.half * tp) + n * step)


_PRIORS = "; priors from the fits of the engine's other accelerators"
_BASELINE = "the four-parameter roofline, fitted on the same split"

_Key = tuple[str, str]


@cache
def _loaded(root: Path) -> Loaded[BatchRun]:
    return load(root)


@cache
def _series(root: Path) -> Mapping[_Key, Sequence[BatchRun]]:
    """Return runs by accelerator and engine."""
    by_series: dict[_Key, list[BatchRun]] = {}
    for run in _loaded(root).rows:
        by_series.setdefault(run.series, []).append(run)
    return dict(sorted(by_series.items()))


def _problems(root: Path, *, large: bool) -> dict[_Key, Problem]:
    """Return a problem per set with priors from fits of the others; ``large``: with 70B models."""
    fitted = {}
    for key, runs in _series(root).items():
        fitting = [run for run in runs if large or not run.large]
        fitted[key] = fit_engine(batch_problem(fitting)).values
    return {
        key: batch_problem(runs).informed(
            [values for other, values in fitted.items() if other != key and other[1] == key[1]]
        )
        for key, runs in _series(root).items()
    }


def _line(runs: Sequence[BatchRun]) -> Line:
    models = [b.deployment.model.name for b in batch_benches(runs) for _ in b.groups]
    return Line(runs[0].accelerator, runs[0].engine, models, "batch", "latency")


@cache
def deployment_points(root: Path) -> tuple[Point, ...]:
    """Return every run by a fit without its model on that many GPUs."""
    return _split(root, lambda problem, _: problem.groups)


def _split(root: Path, grouped: Callable[[Problem, Line], FloatArray]) -> tuple[Point, ...]:
    collected: list[Point] = []
    for key, problem in _problems(root, large=True).items():
        line = _line(_series(root)[key])
        collected += split_points(problem, grouped(problem, line), line)
    return tuple(collected)


def _baseline(root: Path, grouped: Callable[[Problem, Line], FloatArray]) -> Iterator[Point]:
    for runs in _series(root).values():
        problem, line = batch_problem(runs), _line(runs)
        groups = grouped(problem, line)
        residuals = FourParameters(batch_benches(runs)).held_out(groups)
        yield from points(problem, residuals, groups, line)


def _by_model(_: Problem, line: Line) -> FloatArray:
    return np.array(line.models)


def held_out(root: Path) -> Iterator[Report]:
    """Yield deployments, models and the 70B class left out."""
    dropped, name = _loaded(root).dropped, "LLM-Inference-Bench"
    yield _told(
        Report(
            f"{name}, deployments left out",
            Bar(),
            "one (model, number of GPUs) left out" + _PRIORS,
            dropped,
            deployment_points(root),
            baseline=list(_baseline(root, lambda problem, _: problem.groups)),
            baseline_name=_BASELINE,
        )
    )
    yield _told(
        Report(
            f"{name}, models left out",
            Bar(),
            "a model left out on all its numbers of GPUs" + _PRIORS,
            dropped,
            _split(root, _by_model),
            baseline=list(_baseline(root, _by_model)),
            baseline_name=_BASELINE,
        )
    )
    yield _large(root, f"{name}, the 70B class left out", dropped)


def _large(root: Path, name: str, dropped: Mapping[str, int]) -> Report:
    """Return Llama-2-70B, Llama-3-70B and Qwen2-72B from models of a tenth of their size."""
    collected: list[Point] = []
    baseline: list[Point] = []
    for key, problem in _problems(root, large=False).items():
        runs = _series(root)[key]
        line, groups = _line(runs), problem.groups
        large = np.array(
            [b.deployment.model.parameters > LARGE for b in batch_benches(runs) for _ in b.groups]
        )
        if not large.any():
            continue
        residuals = fit_engine(problem, (~large).astype(float)).residuals
        collected += _only(points(problem, residuals, groups, line), large)
        residuals = FourParameters(batch_benches(runs)).without(large)
        baseline += _only(points(problem, residuals, groups, line), large)
    split = (
        "the models of 60 billion parameters and more left out of every set, of those that make "
        "the priors too"
    )
    bar = Bar()
    return _told(Report(name, bar, split, dropped, collected, (), baseline, _BASELINE))


def _told(report: Report) -> Report:
    """Return the report with the lines on which the baseline is the better one."""
    ours, theirs = by_key(report.points), by_key(report.baseline)
    lines = [
        f"{' '.join(key[:3])} ({median_error(theirs[key]):.1%} to {median_error(ours_here):.1%})"
        for key, ours_here in ours.items()
        if median_error(theirs[key]) < median_error(ours_here)
    ]
    better = "; ".join(lines) or "none"
    note = f"lines where the four-parameter roofline has the lower median: {better}"
    return replace(report, notes=(CHOSEN, *report.notes, note))


def _only(made: Sequence[Point], keep: FloatArray) -> list[Point]:
    return [point for point, chosen in zip(made, keep, strict=True) if chosen]


CASES = (Case("inference-bench", "Whole batches: LLM-Inference-Bench", (FILE,), held_out),)
"""The one case of this module."""
