"""Whole engines: TPOT of closed loops against fits that did not see the group.

For information: bars are on what plans use, in ``defaults.py``. These are fits to most of a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.calibration.benches import loop_benches, loop_problem
from archipelago.perfmodel.calibration.fit import Problem, fit_engine
from archipelago.perfmodel.calibration.measurements import FILE, EnginePoint, Loaded, load
from archipelago.perfmodel.capacity.closed_loop import collocated_ttft
from archipelago.perfmodel.catalogue.efficiency import EngineFit
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Bar, Case, Point, Report
from benchmarks.accuracy.held_out import CHOSEN, MILLISECONDS, Line, points, split_points

_SWEEPS = "one sweep of clients (a model, a parallelism, an input and an output length) left out"
_DEPLOYMENTS = "one parallelism left out, all its lengths and clients"
_CACHE = (
    "the cache is BF16, except for TensorRT-LLM's FP8 checkpoints: they admit requests for "
    "which a BF16 cache would be too small, so an FP8 cache is assumed"
)
_NOTES = (
    "input and output lengths are nominal; chunk size and memory fraction are not stated",
    _CACHE,
    CHOSEN,
)
_FAMILY = "; priors from the fits of the other sets"
_QUEUE = (
    "no goal, and not usable: the prediction is one prompt, half a step and the queue of a "
    "full server, but all clients start at once and their prompts queue"
)
_BESIDE = (
    "TPOT tells only how long a prompt holds up the others, which is less than it takes where "
    "chunks run beside tokens: `archipelago calibrate` corrects TTFT by a factor of its own"
)
_FIRST = (_QUEUE, _BESIDE)
_CLIENTS = (4, 128)
_FEWEST = 5
"""Rows below which a set is not judged: gpt-oss on H100 with TensorRT-LLM has three."""

_HOPPER = ("H100", "H200")


@cache
def _loaded(root: Path) -> Loaded[EnginePoint]:
    return load(root)


def series(
    root: Path, keep: Callable[[EnginePoint], bool] = lambda _: True
) -> dict[tuple[str, str, str, str], list[EnginePoint]]:
    """Return the chosen points by accelerator, engine, model and precision."""
    by_series: dict[tuple[str, str, str, str], list[EnginePoint]] = {}
    for point in _loaded(root).only(keep):
        by_series.setdefault(point.series, []).append(point)
    return {key: by_series[key] for key in sorted(by_series) if len(by_series[key]) >= _FEWEST}


def _is_dense(point: EnginePoint) -> bool:
    return point.model.startswith("Llama") and _CLIENTS[0] <= point.clients <= _CLIENTS[1]


def _line(rows: Sequence[EnginePoint]) -> Line:
    """Return the names of a set's points, in the order of its benches."""
    benches = loop_benches(rows)
    models = [bench.deployment.model.name for bench in benches for _ in bench.groups]
    return Line(rows[0].accelerator, rows[0].engine, models, "decode", "TPOT")


@cache
def dense_points(root: Path) -> tuple[Point, ...]:
    """Return dense models on H100 and H200, sweeps left out."""
    collected: list[Point] = []
    for rows, problem in _dense_family(root):
        collected += split_points(problem, problem.groups, _line(rows))
    return tuple(collected)


def _dense_family(root: Path) -> Iterator[tuple[Sequence[EnginePoint], Problem]]:
    """Yield dense sets of H100 and H200, each with priors from the others."""
    by_key = series(root, lambda p: _is_dense(p) and p.accelerator in _HOPPER)
    alone = {key: fit_engine(loop_problem(rows)).values for key, rows in by_key.items()}
    for key, rows in by_key.items():
        others = [values for other, values in alone.items() if other != key]
        yield rows, loop_problem(rows).informed(others)


@cache
def sparse_points(root: Path) -> tuple[Point, ...]:
    """Return Qwen3-235B and gpt-oss, sweeps left out."""
    return _swept(root, lambda p: p.model in ("Qwen3-235B-A22B", "gpt-oss-120b"))


@cache
def latent_points(root: Path) -> tuple[Point, ...]:
    """Return DeepSeek-R1, sweeps left out."""
    return _swept(root, lambda p: p.model == "DeepSeek-R1")


def _swept(root: Path, keep: Callable[[EnginePoint], bool]) -> tuple[Point, ...]:
    collected: list[Point] = []
    for rows in series(root, keep).values():
        problem = loop_problem(rows)
        collected += split_points(problem, problem.groups, _line(rows))
    return tuple(collected)


def _report(
    root: Path, name: str, bar: Bar, split: str, judged: Sequence[Point], *notes: str
) -> Report:
    loaded = _loaded(root)
    corrected = "; ".join(f"{count} rows: {rule}" for rule, count in loaded.corrected.items())
    return Report(name, bar, split, loaded.dropped, judged, (*notes, f"corrected: {corrected}"))


def dense(root: Path) -> Iterator[Report]:
    """Yield dense models, split by sweeps and, harder, by parallelisms."""
    bar = Bar()
    name = "Dense TPOT, H100 and H200"
    yield _report(root, name, bar, _SWEEPS + _FAMILY, dense_points(root), *_NOTES)
    collected: list[Point] = []
    for rows, problem in _dense_family(root):
        benches = loop_benches(rows)
        names = np.array([str(b.deployment.parallelism) for b in benches for _ in b.groups])
        collected += split_points(problem, names, _line(rows))
    split = _DEPLOYMENTS + _FAMILY
    yield _report(root, f"{name}, parallelisms left out", bar, split, collected, *_NOTES)
    blackwell = _swept(root, lambda p: _is_dense(p) and p.accelerator == "B200")
    yield _report(root, "Dense TPOT, B200", Bar(), _SWEEPS, blackwell, "no goal; for information")


def first_tokens(root: Path) -> Iterator[Report]:
    """Time to the first token, to which nothing is fitted."""
    collected: list[Point] = []
    for rows, problem in _dense_family(root):
        fewest = {point.sweep: point for point in sorted(rows, key=lambda p: -p.clients)}
        collected += _waiting(list(fewest.values()), fit_engine(problem).fit)
    split = "the run with the fewest clients of each sweep; fitted to TPOT, no TTFT was fitted"
    yield _report(root, "TTFT, dense models on H100 and H200", Bar(), split, collected, *_FIRST)


def _waiting(rows: Sequence[EnginePoint], fit: EngineFit) -> list[Point]:
    collected = []
    for point, bench in zip(rows, map(loop_benches, zip(rows)), strict=True):
        island = bench[0].deployment.roofline(fit)
        predicted = float(collocated_ttft(island, bench[0].loop)[0])
        collected.append(
            Point(
                group=f"{point.accelerator} {point.engine} {point.model} {point.sweep}",
                accelerator=point.accelerator,
                engine=point.engine,
                model=point.model,
                phase="prefill",
                metric="TTFT",
                predicted=MILLISECONDS * predicted,
                measured=MILLISECONDS * point.ttft,
                unit="ms",
            )
        )
    return collected


def transfer(root: Path) -> Iterator[Report]:
    """Yield the H100's fit with the H200's data sheet."""
    split = "fitted to H100 alone; every H200 row is held out, only the data sheet changes"
    name = "H100 to H200 by data sheet"
    made = _across(root, _is_dense)
    yield _report(root, f"{name}, dense", Bar(), split, made, *_NOTES)
    made = _across(root, lambda point: point.model == "gpt-oss-120b")
    yield _report(root, f"{name}, gpt-oss", Bar(), split, made, *_NOTES, "no goal; for information")


def _across(root: Path, keep: Callable[[EnginePoint], bool]) -> list[Point]:
    by_key = series(root, keep)
    collected: list[Point] = []
    for (accelerator, engine, model, precision), rows in by_key.items():
        source = by_key.get(("H100", engine, model, precision))
        if accelerator == "H200" and source:
            problem = loop_problem(rows)
            residuals = problem.residuals(fit_engine(loop_problem(source)).logs)
            collected += points(problem, residuals, problem.groups, _line(rows))
    return collected


def few(root: Path) -> Iterator[Report]:
    """Yield a new engine from eight rows: priors from other engines only."""
    collected: list[Point] = []
    by_key = series(root, lambda p: _is_dense(p) and p.accelerator in _HOPPER)
    alone = {key: fit_engine(loop_problem(rows)).values for key, rows in by_key.items()}
    for key, rows in by_key.items():
        others = [values for other, values in alone.items() if other[1] != key[1]]
        for draw in range(3):
            collected += _from_few(loop_problem(rows).informed(others), rows, draw)
    split = (
        "fitted to 8 rows: of each parallelism one pair of lengths, with the fewest and the most "
        "clients, then the middle ones; three draws that start at other lengths. Sweeps with any "
        "of the 8 are not judged. Priors: fits of the other engines"
    )
    yield _report(root, "A new engine from 8 rows", Bar(), split, collected, *_NOTES)


_ROWS = 8


def _from_few(problem: Problem, rows: Sequence[EnginePoint], draw: int) -> list[Point]:
    used = drawn(problem, draw)
    fitted = fit_engine(problem, used)
    shown = set(problem.groups[used > 0])
    judged = np.array([group not in shown for group in problem.groups])
    groups = np.array([f"draw {draw} {group}" for group in problem.groups])
    made = points(problem, fitted.residuals, groups, _line(rows))
    return [point for point, keep in zip(made, judged, strict=True) if keep]


def drawn(problem: Problem, draw: int) -> FloatArray:
    """Return 1 for the rows that a user would measure, by their design and not by their times."""
    names = problem.groups
    sweeps: list[NDArray[np.intp]] = []
    for turn, bench in enumerate(problem.benches):
        members = list(dict.fromkeys(bench.groups))
        chosen = members[(draw + turn) % len(members)]
        sweeps.append(np.flatnonzero(names == chosen))
    order = [rows[[0, -1]] for rows in sweeps] + [rows[len(rows) // 2 :] for rows in sweeps]
    picked = list(dict.fromkeys(int(row) for rows in order for row in rows))[:_ROWS]
    used = np.zeros(len(names))
    used[picked] = 1.0
    return used


def sparse(root: Path) -> Iterator[Report]:
    """Yield mixtures of experts with grouped attention."""
    bar = Bar()
    name = "MoE TPOT, Qwen3-235B and gpt-oss"
    yield _report(root, name, bar, _SWEEPS, sparse_points(root), *_NOTES)


def latent(root: Path) -> Iterator[Report]:
    """Yield DeepSeek-R1 on eight H200."""
    note = "whether these servers speculate is unknown: with equal inputs and clients TPOT is 1.22 "
    note += "times as long for 1,024 as for 8,192 tokens of output at every number of clients"
    bar = Bar()
    yield _report(
        root, "DeepSeek-R1 on H200, aggregated", bar, _SWEEPS, latent_points(root), *_NOTES, note
    )


CASES = (
    Case("engines-dense", "Engines: dense models", (FILE,), dense),
    Case("engines-ttft", "Engines: time to the first token", (FILE,), first_tokens),
    Case("engines-transfer", "Engines: from H100 to H200", (FILE,), transfer),
    Case("engines-few", "Engines: a new one from eight rows", (FILE,), few),
    Case("engines-moe", "Engines: mixtures of experts", (FILE,), sparse),
    Case("engines-deepseek", "Engines: DeepSeek-R1", (FILE,), latent),
)
