"""Benches: measured times of one deployment, and what the roofline says in their place.

Each kind of measurement asks another question of the same roofline, so that a fit to any of them
varies the very efficiencies that a plan is made with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from archipelago.perfmodel import layers
from archipelago.perfmodel.collocation import ClosedLoop, collocated_tpot
from archipelago.perfmodel.communication import Network
from archipelago.perfmodel.roofline import EngineSettings, Roofline
from archipelago.perfmodel.stage import Prompt, Stage

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.efficiency import EngineFit
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.parallelism import Parallelism


class Bench(Protocol):
    """Measured times of one deployment, shape (rows,), and a model's answer to the same."""

    @property
    def measured(self) -> FloatArray:
        """Measured times [s]."""

    @property
    def groups(self) -> tuple[str, ...]:
        """What each row is held out with."""

    def predict(self, fit: EngineFit) -> FloatArray:
        """The times with these efficiencies [s]."""


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
        """The roofline of this deployment with explicit efficiencies."""
        return Roofline(
            self.accelerator,
            self.model,
            self.parallelism,
            self.gpus_per_node,
            self.max_sequences,
            settings=replace(self.settings, fit=fit),
        )

    def stage(self, fit: EngineFit) -> Stage:
        """All layers as one stage, for prompts that are computed in batches."""
        network = Network(self.accelerator, self.accelerator.local_gpus(self.gpus_per_node))
        every = layers.whole(self.model)
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
        """Mean time per output token [s], shape (rows,)."""
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
        """Seconds to the last token [s], shape (rows,)."""
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
        """Seconds to the first tokens [s], shape (rows,)."""
        return prefill_of_batch(self.deployment, fit, self.length, self.batch)


def prefill_of_batch(
    deployment: Deployment, fit: EngineFit, length: FloatArray, batch: FloatArray
) -> FloatArray:
    """Seconds to compute ``batch`` prompts of ``length`` tokens together, in chunks.

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
