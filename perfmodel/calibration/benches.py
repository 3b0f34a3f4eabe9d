"""Fit problems from loaded measurements: one per (accelerator, engine).

A bench has the measured times of one deployment and predicts them with the roofline, so that a fit
varies the same efficiencies that a plan uses. Cache type, chunk size and free parameters are
chosen here if the measurements do not state them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from ..capacity.closed_loop import ClosedLoop, collocated_tpot
from ..catalogue.accelerators import Accelerator, accelerator
from ..catalogue.architectures import LatentAttention, ModelArchitecture
from ..catalogue.efficiency import EngineFit, engine_fit
from ..model import FloatArray
from ..roofline import memory
from ..roofline.communication import Network
from ..roofline.island import Roofline
from ..roofline.parallelism import Parallelism
from ..roofline.settings import EngineSettings, Prompt
from ..roofline.stage import Stage
from . import fit
from .fit import Parameter, Problem
from .measurements import EnginePoint, measured_model


@dataclass(frozen=True, eq=False)
class Deployment:
    """A model on the GPUs of one island, as an engine runs it; ``gpus_per_node`` of its hosts."""

    accelerator: Accelerator
    model: ModelArchitecture
    parallelism: Parallelism
    settings: EngineSettings = field(default_factory=EngineSettings)
    gpus_per_node: int = 8
    max_sequences: int = 1024

    def roofline(self, fit: EngineFit) -> Roofline:
        """Return the roofline of this deployment with explicit efficiencies."""
        return Roofline(
            self.accelerator,
            self.model,
            self.parallelism,
            self.gpus_per_node,
            self.max_sequences,
            settings=replace(self.settings, fit=fit),
        )

    def stage(self, fit: EngineFit) -> Stage:
        """Return all layers as one stage, for prompts that are computed in batches."""
        network = Network(self.accelerator, self.accelerator.local_gpus(self.gpus_per_node))
        every = memory.whole(self.model)
        settings = replace(self.settings, fit=fit)
        return Stage(self.model, every, self.parallelism, network, settings)


@dataclass(frozen=True, eq=False)
class ClosedLoopBench:
    """TPOT against closed-loop clients: steps, and the prompts that interrupt them."""

    deployment: Deployment
    loop: ClosedLoop
    measured: FloatArray
    groups: tuple[str, ...]

    def predict(self, fit: EngineFit) -> FloatArray:
        """Return the mean time per output token [s], shape (rows,)."""
        model = self.deployment.roofline(fit)
        return collocated_tpot(model, self.loop, fit.overheads.interference)


@dataclass(frozen=True, eq=False)
class BatchBench:
    """Whole batches: prompts computed together, then one token for each sequence per step.

    ``length`` in, ``output`` out [tokens] and ``batch`` sequences, each of shape (rows,).
    """

    deployment: Deployment
    length: FloatArray
    output: FloatArray
    batch: FloatArray
    measured: FloatArray
    groups: tuple[str, ...]

    def predict(self, fit: EngineFit) -> FloatArray:
        """Return seconds to the last token [s], shape (rows,)."""
        model = self.deployment.roofline(fit)
        first = prefill_of_batch(self.deployment, fit, self.length, self.batch)
        context = self.batch * (self.length + self.output / 2)
        step = model.decode_step_time(self.batch, context)
        return np.asarray(fit.overheads.interference * first + self.output * step)


@dataclass(frozen=True, eq=False)
class PrefillBench:
    """Batches of prompts, timed to their first tokens."""

    deployment: Deployment
    length: FloatArray
    batch: FloatArray
    measured: FloatArray
    groups: tuple[str, ...]

    def predict(self, fit: EngineFit) -> FloatArray:
        """Return seconds to the first tokens [s], shape (rows,)."""
        return prefill_of_batch(self.deployment, fit, self.length, self.batch)


def prefill_of_batch(
    deployment: Deployment, fit: EngineFit, length: FloatArray, batch: FloatArray
) -> FloatArray:
    """Return seconds to compute ``batch`` prompts of ``length`` tokens together, in chunks.

    A pass takes up to a chunk of tokens of any prompts, so short prompts share the reading of
    the weights; attention grows with each prompt's own length.
    """
    stage = deployment.stage(fit)
    tokens = batch * length
    passes = np.maximum(1.0, tokens / deployment.settings.chunk)
    # Stage divides the positions of one prompt by the passes; with batch prompts that is passes
    # per prompt.
    prompt = Prompt(length, tokens / passes, passes / batch)
    host = fit.overheads.step + fit.overheads.sequence * batch / passes
    head = stage.head(batch / passes)
    return np.asarray(passes * (stage.prefill_pass(prompt) + head + host))


Row = TypeVar("Row")

_FP8_BYTES = 1.0


def served_model(name: str, precision: str, engine: str) -> ModelArchitecture:
    """Return a model as an engine serves it.

    TensorRT-LLM keeps the cache of its FP8 checkpoints in FP8: Llama-3.1-70B on one H200 admits
    32 requests of 9,216 tokens without a queue, which BF16 has no room for.
    """
    model = measured_model(name, precision)
    if engine == "tensorrt-llm" and precision == "fp8":
        return replace(model, precision=replace(model.precision, kv=_FP8_BYTES))
    return model


def loop_parameters(model: ModelArchitecture) -> Sequence[Parameter]:
    """Return the free parameters for closed loops of a model."""
    if isinstance(model.attention, LatentAttention):
        return fit.LATENT
    return fit.LOOP if model.experts is None else fit.SPARSE


def loop_problem(points: Sequence[EnginePoint]) -> Problem:
    """Return TPOT of one accelerator and engine, with sweeps as groups."""
    first = points[0]
    benches = loop_benches(points)
    base = engine_fit(accelerator(first.accelerator), first.engine)
    free = loop_parameters(benches[0].deployment.model)
    # Whole engines reach about 0.7 of the bandwidth of collectives alone (LLM-Inference-Bench).
    return Problem(benches, base.replaced({"link": 0.7}), free)


def loop_benches(points: Iterable[EnginePoint]) -> list[ClosedLoopBench]:
    """Return a bench per deployment."""
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


def _apart(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Return the rows by key, in the order in which keys first occur."""
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return list(groups.values())


def _column(rows: Iterable[Row], value: Callable[[Row], float]) -> FloatArray:
    return np.array([value(row) for row in rows], dtype=np.float64)
