"""The roofline, the default performance model: one island of one pool.

Per operator ``time = max(operations / reached rate, bytes / reached bandwidth)``. A layer is the
sum of its operators, its communication and a fixed overhead; a step is the sum of the layers. The
parts are in ``stage.py``, ``operators.py``, ``experts.py`` and ``communication.py``; sources and
limits are in docs/explanation/performance-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

import numpy as np

from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import ModelArchitecture
from ..errors import DoesNotFit
from ..model import FloatArray
from . import memory
from .communication import Network
from .parallelism import Parallelism
from .settings import EngineSettings, Prompt
from .stage import IslandLimits, Stage, beside_host


class Roofline(IslandLimits):
    """Times and capacities of one island; implements ``PerformanceModel``.

    Args:
        accelerator: The GPU type.
        architecture: The model, in its precision.
        parallelism: How the model spreads over the island's GPUs.
        gpus_per_node: None if the GPUs come one by one; the scale-up domain counts then.
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
        super().__init__(architecture, parallelism, max_sequences, settings or EngineSettings())
        self.accelerator = accelerator
        self.accelerators = (accelerator,)  # those that its times depend on
        self._network = Network(accelerator, accelerator.local_gpus(gpus_per_node))
        every = memory.consecutive(architecture, 0, architecture.layers)
        self.layers = Stage(architecture, every, parallelism, self._network, self.settings)
        self._overheads = self.settings.on(accelerator).overheads
        usable = self.settings.memory.usable(accelerator, parallelism.gpus)
        weights = memory.weights_per_gpu(architecture, parallelism)
        working = memory.activation_bytes(architecture, parallelism, self.settings.chunk)
        free = usable - weights - working
        if free <= 0:
            raise DoesNotFit(
                f"{architecture.name} in {architecture.precision.name} as {parallelism} needs "
                f"{weights / 1e9:.1f} GB of weights and {working / 1e9:.1f} GB of working space "
                f"per GPU; an engine on {accelerator.name} has {usable / 1e9:.1f} GB for them"
            )
        state = architecture.state_bytes / (parallelism.tp * parallelism.pp)
        fitting = memory.sequences_with_states(state, free, max_sequences)
        self._sequences_per_copy = fitting
        self._kv_tokens_per_copy = memory.kv_tokens_per_copy(
            architecture, parallelism, free, fitting
        )

    def refitted(self, accelerator: Accelerator, values: Mapping[str, float]) -> Roofline:
        """Return the same island with values of ``EngineFit`` changed on its accelerator.

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

    def kv_capacity(self) -> int:
        """Return the KV-cache tokens of the island over all copies [tokens]; see ``memory``.

        Source: docs/explanation/performance-model.md#memory.
        """
        return self._kv_tokens_per_copy * self.parallelism.dp

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] to the first token: passes (blocks + hand-overs) + head, or host.

        The fixed time of a request outside the GPUs comes on top, and is no part of the occupancy.
        A prompt beyond the chunk runs in length / chunk passes, and each reads the weights again.
        Valid without a queue, with one prompt on every copy.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            length: Input length of the prompt [tokens], at least 1, any shape.
        """
        prompt = Prompt.of(length, self.settings)
        blocks = self.layers.prefill_pass(prompt)
        head = self.layers.head(np.ones_like(prompt.tokens))
        spent, passes = self._overheads, prompt.passes
        work = passes * (blocks + self.handovers(prompt.tokens)) + head
        return beside_host(work, passes * spent.step, spent.exposed) + spent.request

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Return island-seconds [s] of a prompt of ``length`` [tokens]: time fullest / (pp dp).

        Copies work side by side and pipeline stages overlap. ``fullest`` is 1 for equal stages,
        else ceil(L / pp) pp / L, because all wait for the fullest stage. Valid under full load.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return (self.prefill_time(length) - self._overheads.request) * self._share_of_prompt

    def prefill_together(self, length: FloatArray, due: FloatArray) -> FloatArray:
        """Return island-seconds [s] of one of the prompts that are due in a step and share passes.

        A pass takes up to a chunk of tokens, whoever's they are, so short prompts share the
        reading of the weights and the launching of kernels; each attends to itself alone. Of x
        Poisson arrivals on a copy x / (1 - exp(-x)) come together if any do. No more than
        ``prefill_occupancy``, which it is for due -> 0.

        Source: docs/explanation/performance-model.md#mixed-islands.

        Args:
            length: Input length of each prompt [tokens].
            due: Prompts that arrive on the island during a step, on average [sequences], above 0.
        """
        alone = Prompt.of(length, self.settings)
        prompts = due / self.parallelism.dp / -np.expm1(-due / self.parallelism.dp)
        fit = np.maximum(1.0, self.settings.chunk / alone.tokens)
        shared = np.maximum(1.0, np.minimum(prompts, fit))
        # The stage divides a prompt's positions by its passes: shared prompts have 1 / shared each.
        together = Prompt(alone.length, shared * alone.tokens, alone.passes / shared)
        blocks = self.layers.prefill_pass(together)
        spent, passes = self._overheads, together.passes
        head = self.layers.head(shared) / shared
        work = passes * (blocks + self.handovers(together.tokens)) + head
        seconds = beside_host(work, passes * spent.step, spent.exposed)
        return np.asarray(seconds * self._share_of_prompt)

    @property
    def _share_of_prompt(self) -> FloatArray | float:
        """Return island-seconds of a prompt over its own seconds [1]: fullest / (pp dp)."""
        fullest = self._uneven(np.array(float(self.parallelism.pp))) / self.parallelism.pp
        return fullest / self.parallelism.dp

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds per token [s]: blocks + output head + hand-overs, or the host's work.

        The host prepares the next step while the GPUs compute, see ``beside_host``.

        A pipeline of pp stages keeps pp micro-batches of 1 / pp of the batch in flight, and a token
        passes all stages. A copy has at least one sequence. Monotone in both arguments, convex in
        ``kv_tokens``.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            sequences: B, running sequences of the island [sequences].
            kv_tokens: K, cached tokens of the island [tokens]; broadcasts with ``sequences``.
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
        """Return seconds per token [s] of a step with a chunk of prompts beside its sequences.

        The weights are read once for both; see ``Stage.mixed_pass``. All arguments broadcast.

        Source: arXiv:2403.02310 (Sarathi-Serve), section 4.2;
        docs/explanation/performance-model.md#times-the-roofline.

        Args:
            sequences: B, running sequences of the island [sequences].
            kv_tokens: K, cached tokens of the sequences [tokens].
            prompt_tokens: Tokens of prompts in the step, over all copies [tokens].
            pairs: Positions that these attend to [tokens^2]; a whole prompt of l tokens in chunks
                of c attends to c (l + 1) / 2 per chunk on average.
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
        """Return the GPUs' work (layers, output head, hand-overs) beside the host's [s]."""
        spent = self._overheads
        host = spent.step + spent.sequence * running
        gpu = blocks + self.layers.head(rows) + self.handovers(rows)
        return beside_host(gpu, host, spent.exposed)

    def _uneven(self, running: FloatArray) -> FloatArray | float:
        """Return the factor [1] of unequal stages: the fullest has ceil(L / pp) layers.

        With a micro-batch in every stage all wait for the fullest; one alone passes L layers.
        """
        layers, pp = self.architecture.layers, self.parallelism.pp
        if layers % pp == 0:
            return 1.0
        return np.maximum(1.0, np.minimum(running, pp) * -(-layers // pp) / layers)

    def handovers(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] to pass ``tokens`` [tokens] from stage to stage, pp - 1 times.

        Each tensor-parallel rank sends its 1 / tp of the 2 D bytes of a token's hidden state. 0 s
        for one stage.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        pp = self.parallelism.pp
        if pp == 1:
            return np.zeros_like(tokens)
        size = tokens * (self.layers.hidden_bytes / self.parallelism.tp)
        return (pp - 1) * self._network.send(size, self.parallelism.gpus)
