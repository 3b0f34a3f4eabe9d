"""Roofline: the default performance model.

Per operator ``time = max(operations / reached rate, bytes / reached bandwidth)``; a layer is the
sum of its operators, its communication and a fixed overhead; a step is the sum of the layers. What
each part counts is in ``stage.py``, ``operators.py``, ``experts.py`` and ``communication.py``;
sources and limits are in docs/performance-model.md.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel import layers, memory
from archipelago.perfmodel.communication import Network
from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.settings import EngineSettings, LatentForm, Prompt, Speculation
from archipelago.perfmodel.stage import Stage, handed_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.parallelism import Parallelism

__all__ = ["EngineSettings", "LatentForm", "Roofline", "Speculation"]


class Roofline:
    """Times and capacities of one island; implements ``PerformanceModel``.

    Args:
        accelerator: The GPU type.
        architecture: The model, in its precision.
        parallelism: How the model spreads over the island's GPUs.
        gpus_per_node: None where the GPUs come one by one; the scale-up domain counts then.
        max_sequences: Largest batch that the engine runs on one copy (``dp`` copies, ``dp``
            times as many on the island).
        settings: Engine, chunk size, prefix hits and memory policy.

    Raises:
        DoesNotFit: the weights need more memory than a GPU leaves for them.
    """

    name = "roofline"

    def __init__(
        self,
        accelerator: Accelerator,
        architecture: ModelArchitecture,
        parallelism: Parallelism,
        gpus_per_node: int | None = None,
        max_sequences: int = 1024,
        *,
        settings: EngineSettings | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.architecture = architecture
        self.parallelism = parallelism
        self.settings = settings or EngineSettings()
        self._sequences_per_copy = max_sequences
        self._network = Network(accelerator, accelerator.local_gpus(gpus_per_node))
        every = layers.whole(architecture)
        self.layers = Stage(architecture, every, parallelism, self._network, self.settings)
        self._kv_tokens_per_copy = self._fit()
        self._overheads = self.settings.on(accelerator).overheads

    @property
    def max_length(self) -> int:
        """Longest sequence that the architecture accepts [tokens]."""
        return self.architecture.max_length

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerators that its times depend on: its own."""
        return (self.accelerator,)

    def refitted(self, accelerator: Accelerator, values: Mapping[str, float]) -> Roofline:
        """The same island with values of ``EngineFit`` changed; unchanged for another accelerator.

        Raises:
            UnknownName: a fit has no such value.
        """
        if accelerator != self.accelerator:
            return self
        fit = self.settings.on(accelerator).replaced(values)
        other = copy(self)
        other.settings = replace(self.settings, fit=fit)
        other.layers = replace(self.layers, settings=other.settings)
        other._overheads = fit.overheads  # noqa: SLF001
        return other

    def max_sequences(self) -> int:
        """Largest batch of the island: the engine's limit times the copies [sequences]."""
        return self._sequences_per_copy * self.parallelism.dp

    def kv_capacity(self) -> int:
        """KV-cache tokens of the island, over all copies [tokens]."""
        return self._kv_tokens_per_copy * self.parallelism.dp

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Bytes of cache of a prompt [B]."""
        return handed_over(self.architecture, length)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Seconds to the first token of one prompt, every copy of the island at work on its own.

        Prompts beyond the chunk run in ``length / chunk`` passes; each reads the weights again.
        """
        prompt = Prompt.of(length, self.settings)
        blocks = self.layers.prefill_pass(prompt)
        head = self.layers.head(np.ones_like(prompt.tokens))
        host = self._overheads.step
        return prompt.passes * (blocks + self.handovers(prompt.tokens) + host) + head

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Island-seconds of one prompt: copies work side by side, pipeline stages overlap.

        Where the stages are unequal the fullest decides.
        """
        fullest = self._uneven(np.array(float(self.parallelism.pp))) / self.parallelism.pp
        return self.prefill_time(length) * (fullest / self.parallelism.dp)

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds per token with ``sequences`` running and ``kv_tokens`` cached on the island.

        A pipeline of pp stages keeps pp micro-batches in flight, each of 1/pp of the batch, and
        a token passes all stages; a copy has at least one sequence.
        """
        sequences, kv_tokens = np.broadcast_arrays(
            np.asarray(sequences, dtype=np.float64), np.asarray(kv_tokens, dtype=np.float64)
        )
        running = np.maximum(1.0, sequences / self.parallelism.dp)
        tokens = np.maximum(1.0, running / self.parallelism.pp)
        context = kv_tokens / (self.parallelism.dp * self.parallelism.pp)
        blocks = self._uneven(running) * self.layers.decode_pass(tokens, context)
        return self._step(blocks, tokens * self.settings.rows, running) * self.settings.per_token

    def mixed_step_time(
        self,
        sequences: FloatArray,
        kv_tokens: FloatArray,
        prompt_tokens: FloatArray,
        pairs: FloatArray,
    ) -> FloatArray:
        """Seconds per token of a step that carries a chunk of prompts beside its sequences.

        Args:
            sequences: As in ``decode_step_time``.
            kv_tokens: Cached tokens of the sequences.
            prompt_tokens: Tokens of prompts in the step, over all copies.
            pairs: Positions that these attend to in all; a whole prompt of l tokens in chunks of c
                attends to c (l + 1) / 2 per chunk on average.
        """
        sequences, kv_tokens, prompt_tokens, pairs = np.broadcast_arrays(
            *(np.asarray(x, dtype=float) for x in (sequences, kv_tokens, prompt_tokens, pairs))
        )
        running = np.maximum(1.0, sequences / self.parallelism.dp)
        ways = self.parallelism.dp * self.parallelism.pp
        tokens = np.maximum(1.0, running / self.parallelism.pp)
        blocks = self.layers.mixed_pass(
            tokens, kv_tokens / ways, prompt_tokens / ways, pairs / ways
        )
        rows = tokens * self.settings.rows + prompt_tokens / ways
        step = self._step(self._uneven(running) * blocks, rows, running)
        return np.asarray(step * self.settings.per_token)

    def _step(self, blocks: FloatArray, rows: FloatArray, running: FloatArray) -> FloatArray:
        """Layers, output head, hand-overs and host work of one step [s]."""
        spent = self._overheads
        host = spent.step + spent.sequence * running
        return blocks + self.layers.head(rows) + self.handovers(rows) + host

    def _uneven(self, running: FloatArray) -> FloatArray | float:
        """What stages of unequal length cost: the fullest has ceil(L / pp) layers, not L / pp.

        With a micro-batch in every stage all wait for the fullest; one alone passes L layers.
        """
        layers, pp = self.architecture.layers, self.parallelism.pp
        if layers % pp == 0:
            return 1.0
        return np.maximum(1.0, np.minimum(running, pp) * -(-layers // pp) / layers)

    def _fit(self) -> int:
        """KV tokens of one copy; raises where not even the weights fit."""
        gpus = self.parallelism.gpus
        model = self.architecture
        usable = self.settings.memory.usable(self.accelerator, gpus)
        weights = memory.weights_per_gpu(model, self.parallelism)
        working = memory.activation_bytes(model, self.parallelism, self.settings.chunk)
        free = usable - weights - working
        if free <= 0:
            raise DoesNotFit(
                f"{model.name} in {model.precision.name} as {self.parallelism} needs "
                f"{weights / 1e9:.1f} GB of weights and {working / 1e9:.1f} GB of working space "
                f"per GPU; an engine on {self.accelerator.name} has {usable / 1e9:.1f} GB for them"
            )
        return memory.kv_tokens_per_copy(model, self.parallelism, free, self._sequences_per_copy)

    def handovers(self, tokens: FloatArray) -> FloatArray:
        """Hidden states between pipeline stages; each tensor-parallel rank sends its part."""
        pp = self.parallelism.pp
        if pp == 1:
            return np.zeros_like(tokens)
        size = tokens * (self.layers.hidden_bytes / self.parallelism.tp)
        return (pp - 1) * self._network.send(size, self.parallelism.gpus)
