"""Fit problems from loaded measurements: one per (accelerator, engine).

A bench has the measured times of one deployment and predicts them with the roofline, so that a fit
varies the same efficiencies that a plan uses. Cache type, chunk size and free parameters are
chosen here if the measurements do not state them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..capacity.closed_loop import ClosedLoop, collocated_tpot
from ..catalogue.accelerators import Accelerator, accelerator
from ..catalogue.architectures import LatentAttention, ModelArchitecture, architecture
from ..catalogue.efficiency import ANY, EngineFit, engine_fit
from ..catalogue.precision import BF16_BYTES, KV_BYTES
from ..model import FloatArray
from ..roofline import memory
from ..roofline.communication import Network
from ..roofline.island import Roofline
from ..roofline.parallelism import Parallelism
from ..roofline.settings import EngineSettings, Prompt
from ..roofline.stage import Stage, beside_host
from . import fit
from .fit import Parameter, Problem
from .measurements import EnginePoint, Row, grouped


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
        every = memory.consecutive(self.model, 0, self.model.layers)
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
    spent = fit.overheads
    host = spent.step * passes + spent.sequence * batch
    gpu = passes * (stage.prefill_pass(prompt) + stage.head(batch / passes))
    return beside_host(gpu, host, spent.exposed)


def card_of(point: EnginePoint) -> Accelerator:
    """Return the accelerator of a run."""
    return point.card or accelerator(point.accelerator)


def served_model(point: EnginePoint) -> ModelArchitecture:
    """Return the model of a run as its engine serves it, with the cache that the run states.

    TensorRT-LLM keeps the cache of its FP8 and FP4 checkpoints of dense models in FP8 (their
    ``hf_quant_config.json``): Llama-3.1-70B on one H200 admits 32 requests of 9,216 tokens without
    a queue, which BF16 has no room for.
    """
    model = point.shape or architecture(point.model, point.precision)
    quantised = model.precision.linear < BF16_BYTES and point.engine == "tensorrt-llm"
    kv = point.kv or ("fp8" if quantised else "")
    width = KV_BYTES[kv] if kv else model.precision.kv
    if width == model.precision.kv:
        return model
    return replace(model, precision=replace(model.precision, kv=width))


def loop_parameters(model: ModelArchitecture) -> Sequence[Parameter]:
    """Return the free parameters for closed loops of a model."""
    if isinstance(model.attention, LatentAttention):
        return fit.LATENT
    return fit.LOOP if model.experts is None else fit.SPARSE


def loop_problem(points: Sequence[EnginePoint], base: EngineFit | None = None) -> Problem:
    """Return TPOT of one accelerator and engine, with sweeps as groups.

    ``base``: the values whose factors are fitted; the catalogue's without.
    """
    first = points[0]
    benches = loop_benches(points)
    base = base or engine_fit(card_of(first), first.engine, first.version or ANY)
    free = loop_parameters(benches[0].deployment.model)
    return Problem(benches, base, free, relative=True)


def loop_benches(points: Iterable[EnginePoint]) -> list[ClosedLoopBench]:
    """Return a bench per deployment."""
    benches = []
    for rows in grouped(points, lambda point: (served_model(point), point.parallelism)):
        first = rows[0]
        loop = ClosedLoop(
            column(rows, lambda point: point.clients),
            column(rows, lambda point: point.drawn * point.inputs),
            column(rows, lambda point: point.drawn * point.outputs),
        )
        benches.append(
            ClosedLoopBench(
                Deployment(card_of(first), served_model(first), first.parallelism),
                loop,
                column(rows, lambda point: point.tpot),
                tuple(f"{point.model} {point.sweep}" for point in rows),
            )
        )
    return benches


def column(rows: Iterable[Row], value: Callable[[Row], float]) -> FloatArray:
    """Return a value of each row, shape (rows,)."""
    return np.array([value(row) for row in rows], dtype=np.float64)
