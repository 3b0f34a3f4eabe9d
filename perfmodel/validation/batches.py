"""Whole batches: LLM-Inference-Bench, by fits without the deployment, the model or its class.

Beside each report stands the four-parameter roofline of ``fits/baseline.py`` on the same split.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.fits.baseline import FourParameters
from archipelago.perfmodel.fits.engine import Problem, fit_engine
from archipelago.perfmodel.fits.series import batch_benches, batch_problem
from archipelago.perfmodel.measurements.inference_bench import FILE, LARGE, load
from archipelago.perfmodel.validation.case import Bar, Case, Report, by_key, median_error
from archipelago.perfmodel.validation.heldout import CHOSEN, Line, points, split_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archipelago.perfmodel.measurements.inference_bench import BatchRun
    from archipelago.perfmodel.measurements.rules import Loaded
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.validation.case import Point

_PRIORS = "; priors from the fits of the engine's other accelerators"
_BASELINE = "the four-parameter roofline, fitted on the same split"

_Key = tuple[str, str]


@cache
def _loaded(root: Path) -> Loaded[BatchRun]:
    return load(root)


@cache
def _series(root: Path) -> Mapping[_Key, Sequence[BatchRun]]:
    """Runs by accelerator and engine."""
    found: dict[_Key, list[BatchRun]] = {}
    for run in _loaded(root).rows:
        found.setdefault(run.series, []).append(run)
    return dict(sorted(found.items()))


def _problems(root: Path, *, large: bool) -> dict[_Key, Problem]:
    """A problem per set, with priors from fits of the others; ``large``: with the 70B class."""
    fitted = {}
    for key, runs in _series(root).items():
        kept = [run for run in runs if large or not run.large]
        fitted[key] = fit_engine(batch_problem(kept)).values
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
    """Every run by a fit without its model on that many GPUs."""
    return _split(root, lambda problem, _: problem.groups)


def _split(root: Path, grouped: Callable[[Problem, Line], FloatArray]) -> tuple[Point, ...]:
    found: list[Point] = []
    for key, problem in _problems(root, large=True).items():
        line = _line(_series(root)[key])
        found += split_points(problem, grouped(problem, line), line)
    return tuple(found)


def _baseline(root: Path, grouped: Callable[[Problem, Line], FloatArray]) -> Iterator[Point]:
    for runs in _series(root).values():
        problem, line = batch_problem(runs), _line(runs)
        groups = grouped(problem, line)
        residuals = FourParameters(batch_benches(runs)).held_out(groups)
        yield from points(problem, residuals, groups, line)


def _by_model(_: Problem, line: Line) -> FloatArray:
    return np.array(line.models)


def held_out(root: Path) -> Iterator[Report]:
    """Deployments, models and the 70B class left out."""
    dropped, name = _loaded(root).dropped, "LLM-Inference-Bench"
    yield _told(
        Report(
            f"{name}, deployments left out",
            Bar(median=0.045, p90=0.12),
            "a model on so many GPUs left out" + _PRIORS,
            dropped,
            deployment_points(root),
            baseline=list(_baseline(root, lambda problem, _: problem.groups)),
            baseline_name=_BASELINE,
        )
    )
    yield _told(
        Report(
            f"{name}, models left out",
            Bar(median=0.06, p90=0.15),
            "a model left out on all its numbers of GPUs" + _PRIORS,
            dropped,
            _split(root, _by_model),
            baseline=list(_baseline(root, _by_model)),
            baseline_name=_BASELINE,
        )
    )
    yield _large(root, f"{name}, the 70B class left out", dropped)


def _large(root: Path, name: str, dropped: Mapping[str, int]) -> Report:
    """Llama-2-70B, Llama-3-70B and Qwen2-72B from models of a tenth of their size."""
    found: list[Point] = []
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
        found += _only(points(problem, residuals, groups, line), large)
        residuals = FourParameters(batch_benches(runs)).without(large)
        baseline += _only(points(problem, residuals, groups, line), large)
    split = (
        "the models of 60 billion parameters and more left out of every set, of those that make "
        "the priors too"
    )
    bar = Bar(median=0.08, p90=0.15)
    return _told(Report(name, bar, split, dropped, found, (), baseline, _BASELINE))


def _told(report: Report) -> Report:
    """The report with the lines on which the baseline is the better one."""
    ours, theirs = by_key(report.points), by_key(report.baseline)
    lines = [
        f"{' '.join(key[:3])} ({median_error(theirs[key]):.1%} to {median_error(own):.1%})"
        for key, own in ours.items()
        if median_error(theirs[key]) < median_error(own)
    ]
    better = "; ".join(lines) or "none"
    note = f"lines where the four-parameter roofline has the lower median: {better}"
    return replace(report, notes=(CHOSEN, *report.notes, note))


def _only(made: Sequence[Point], keep: FloatArray) -> list[Point]:
    return [point for point, kept in zip(made, keep, strict=True) if kept]


CASES = (Case("inference-bench", "Whole batches: LLM-Inference-Bench", (FILE,), held_out),)
"""The one case of this module."""
