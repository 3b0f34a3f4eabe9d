"""From loaded measurements to problems: one per (accelerator, engine) set.

What the measurements do not say is decided here, in one place: which type the cache has, how
large a chunk is, which parameters such runs can tell apart.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import LatentAttention
from archipelago.perfmodel.collocation import ClosedLoop
from archipelago.perfmodel.efficiency import engine_fit
from archipelago.perfmodel.fits import parameters
from archipelago.perfmodel.fits.benches import (
    BatchBench,
    ClosedLoopBench,
    Deployment,
    PrefillBench,
)
from archipelago.perfmodel.fits.engine import Problem
from archipelago.perfmodel.measurements.models import measured_model

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.fits.parameters import Parameter
    from archipelago.perfmodel.measurements.engine_points import EnginePoint
    from archipelago.perfmodel.measurements.inference_bench import BatchRun
    from archipelago.perfmodel.measurements.splitwise import PhaseRun
    from archipelago.perfmodel.model import FloatArray

Row = TypeVar("Row")

_FP8_BYTES = 1.0


def served_model(name: str, precision: str, engine: str) -> ModelArchitecture:
    """A model as an engine serves it.

    TensorRT-LLM keeps the cache of its FP8 checkpoints in FP8: Llama-3.1-70B on one H200 admits
    32 requests of 9,216 tokens without a queue, which BF16 has no room for.
    """
    model = measured_model(name, precision)
    if engine == "tensorrt-llm" and precision == "fp8":
        return replace(model, precision=replace(model.precision, kv=_FP8_BYTES))
    return model


def loop_parameters(model: ModelArchitecture) -> Sequence[Parameter]:
    """What closed loops of a model can tell apart."""
    if isinstance(model.attention, LatentAttention):
        return parameters.LATENT
    return parameters.LOOP if model.experts is None else parameters.SPARSE


def loop_problem(points: Sequence[EnginePoint]) -> Problem:
    """TPOT of one accelerator and engine, with sweeps as groups."""
    first = points[0]
    benches = loop_benches(points)
    base = engine_fit(accelerator(first.accelerator), first.engine)
    free = loop_parameters(benches[0].deployment.model)
    # Whole engines reach about 0.7 of the bandwidth of collectives alone (LLM-Inference-Bench).
    return Problem(benches, base.replaced({"link": 0.7}), free)


def loop_benches(points: Iterable[EnginePoint]) -> list[ClosedLoopBench]:
    """A bench per deployment."""
    return [_loop_bench(rows) for rows in _apart(points, _deployment)]


def _deployment(point: EnginePoint) -> Hashable:
    return (point.model, point.precision, point.parallelism)


def _loop_bench(points: Sequence[EnginePoint]) -> ClosedLoopBench:
    first = points[0]
    model = served_model(first.model, first.precision, first.engine)
    loop = ClosedLoop(
        _column(points, lambda point: point.clients),
        _column(points, lambda point: point.inputs),
        _column(points, lambda point: point.outputs),
    )
    return ClosedLoopBench(
        Deployment(accelerator(first.accelerator), model, first.parallelism),
        loop,
        _column(points, lambda point: point.tpot),
        tuple(f"{point.model} {point.sweep}" for point in points),
    )


def batch_problem(runs: Sequence[BatchRun]) -> Problem:
    """Whole batches of one accelerator and engine, with deployments as groups."""
    first = runs[0]
    benches = batch_benches(runs)
    base = engine_fit(accelerator(first.accelerator), first.engine)
    return Problem(benches, base.replaced({"link": 0.5}), parameters.BATCH)


def batch_benches(runs: Iterable[BatchRun]) -> list[BatchBench]:
    """A bench per deployment."""
    return [_batch_bench(rows) for rows in _apart(runs, lambda run: run.deployment)]


def _batch_bench(runs: Sequence[BatchRun]) -> BatchBench:
    first = runs[0]
    length = _column(runs, lambda run: run.length)
    return BatchBench(
        Deployment(accelerator(first.accelerator), measured_model(first.model), first.parallelism),
        length=length,
        output=length,
        batch=_column(runs, lambda run: run.batch),
        measured=_column(runs, lambda run: run.seconds),
        groups=tuple(run.deployment for run in runs),
    )


def prefill_problem(runs: Sequence[PhaseRun]) -> Problem:
    """Prompts of one accelerator, with deployments as groups."""
    base = engine_fit(accelerator(runs[0].accelerator))
    return Problem(prefill_benches(runs), base, parameters.PREFILL)


def prefill_benches(runs: Iterable[PhaseRun]) -> list[PrefillBench]:
    """A bench per deployment."""
    return [_prefill_bench(rows) for rows in _apart(runs, lambda run: run.deployment)]


def _prefill_bench(runs: Sequence[PhaseRun]) -> PrefillBench:
    first = runs[0]
    return PrefillBench(
        Deployment(accelerator(first.accelerator), measured_model(first.model), first.parallelism),
        length=_column(runs, lambda run: run.length),
        batch=_column(runs, lambda run: run.batch),
        measured=_column(runs, lambda run: run.prefill),
        groups=tuple(run.deployment for run in runs),
    )


def _apart(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Rows by key, in the order in which keys first occur."""
    found: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return list(found.values())


def _column(rows: Iterable[Row], value: Callable[[Row], float]) -> FloatArray:
    return np.array([value(row) for row in rows], dtype=np.float64)
