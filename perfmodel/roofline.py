"""Roofline: the default performance model.

Per operator ``time = max(operations / reached rate, bytes / reached bandwidth)``; a layer is the
sum of its operators, its communication and a fixed overhead; a step is the sum of the layers. What
each part counts is in ``operators.py``, ``experts.py`` and ``communication.py``; sources and limits
are in docs/performance-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel import memory
from archipelago.perfmodel.communication import Network
from archipelago.perfmodel.efficiency import ANY, overheads
from archipelago.perfmodel.errors import DoesNotFit, OutOfRange
from archipelago.perfmodel.experts import SparseBlock
from archipelago.perfmodel.memory import MemoryPolicy
from archipelago.perfmodel.operators import Kernels, attention, dense_ffn, output_head
from archipelago.perfmodel.precision import BF16_BYTES

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.efficiency import Overheads
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.operators import Operator
    from archipelago.perfmodel.parallelism import Parallelism


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs the model.

    ``engine``: key of the efficiencies. ``chunk``: tokens of a prefill pass; longer prompts run
    in several (vLLM's default for servers). ``prefix_hit``: share of a prompt whose cache is
    already there, in [0, 1).
    """

    engine: str = ANY
    chunk: int = 8192
    prefix_hit: float = 0.0
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)

    def __post_init__(self) -> None:
        if self.chunk < 1 or not 0 <= self.prefix_hit < 1:
            raise OutOfRange(
                f"chunk is {self.chunk} and prefix_hit {self.prefix_hit}; "
                f"valid are chunk >= 1 and 0 <= prefix_hit < 1"
            )


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
        self._overheads: Overheads = overheads(self.settings.engine)
        self._kernels = Kernels(accelerator, architecture, self.settings.engine)
        self._kv_tokens_per_copy = self._fit()

    @property
    def max_length(self) -> int:
        """Longest sequence that the architecture accepts [tokens]."""
        return self.architecture.max_length

    def max_sequences(self) -> int:
        """Largest batch of the island: the engine's limit times the copies [sequences]."""
        return self._sequences_per_copy * self.parallelism.dp

    def kv_capacity(self) -> int:
        """KV-cache tokens of the island, over all copies [tokens]."""
        return self._kv_tokens_per_copy * self.parallelism.dp

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Bytes of cache of a prompt; windowed layers hand over their window only [B]."""
        model = self.architecture
        grown = model.kv_bytes_per_token * np.asarray(length, dtype=np.float64)
        if not model.window:
            return grown
        filled = np.minimum(1.0, np.asarray(length) / model.window)
        return np.asarray(grown + model.kv_window_bytes * filled)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Seconds to the first token of one prompt, every copy of the island at work on its own.

        Prompts beyond the chunk run in ``length / chunk`` passes (not rounded, so that the time
        grows smoothly); each reads the weights again.
        """
        length = np.asarray(length, dtype=np.float64)
        new = length * (1 - self.settings.prefix_hit)
        passes = np.maximum(1.0, new / self.settings.chunk)
        tokens = np.maximum(1.0, new / passes)
        blocks = self._prefill_blocks(tokens, length, passes)
        head = self._head.seconds(np.ones_like(tokens), np.zeros_like(tokens))
        return passes * (blocks + self._handovers(tokens) + self._overheads.step) + head

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Island-seconds of one prompt: copies work side by side, pipeline stages overlap."""
        return self.prefill_time(length) / (self.parallelism.dp * self.parallelism.pp)

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
        blocks = self._decode_blocks(tokens, context)
        head = self._head.seconds(tokens, np.zeros_like(tokens))
        host = self._overheads.step + self._overheads.sequence * running
        return blocks + head + self._handovers(tokens) + host

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

    def _prefill_blocks(
        self, tokens: FloatArray, length: FloatArray, passes: FloatArray
    ) -> FloatArray:
        """All layers of one pass; launching the kernels counts where it takes longer.

        That is BestServe's rule (arXiv:2506.05871, algorithm 1): no graph is replayed in prefill.
        """
        model = self.architecture
        hit = self.settings.prefix_hit
        launch = self._overheads.dispatch / 2
        total = np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            context = (_attended(length, window) - _attended(hit * length, window)) / passes
            block = self._attention(tokens, context, "prefill")
            total = total + layers * np.maximum(block, launch)
        dense = model.layers - model.sparse_layers
        if dense:
            total = total + dense * np.maximum(self._dense_ffn(tokens), launch)
        if self._sparse is not None:
            block = self._sparse_ffn(self._sparse, tokens, "normal")
            total = total + model.sparse_layers * np.maximum(block, launch)
        return total

    def _decode_blocks(self, tokens: FloatArray, context: FloatArray) -> FloatArray:
        """All layers of one token step.

        A windowed layer is charged a full window per sequence, whatever the context: the true
        min(context, window) would not be convex in the cached tokens.
        """
        model = self.architecture
        total = model.layers * self._overheads.decode_layer + np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            seen = context if window is None else tokens * window
            total = total + layers * self._attention(tokens, seen, "decode")
        dense = model.layers - model.sparse_layers
        if dense:
            total = total + dense * self._dense_ffn(tokens)
        if self._sparse is not None:
            block = self._sparse_ffn(self._sparse, tokens, "low_latency")
            total = total + model.sparse_layers * block
        return total

    @cached_property
    def _attention_layers(self) -> tuple[tuple[int, int | None], ...]:
        """How many layers see everything, and how many no more than their window."""
        model = self.architecture
        pairs = (
            (model.layers - model.windowed_layers, None),
            (model.windowed_layers, model.window),
        )
        return tuple((layers, window) for layers, window in pairs if layers)

    @cached_property
    def _operators(self) -> dict[str, tuple[Operator, ...]]:
        tp = self.parallelism.tp
        return {
            "prefill": attention(self._kernels, tp, "prefill"),
            "decode": attention(self._kernels, tp, "decode"),
            "dense": dense_ffn(self._kernels, tp),
            "sparse": self._sparse.always if self._sparse else (),
        }

    @cached_property
    def _head(self) -> Operator:
        return output_head(self._kernels, self.parallelism.tp)

    @cached_property
    def _sparse(self) -> SparseBlock | None:
        experts = self.architecture.experts
        if experts is None:
            return None
        imbalance = self._overheads.expert_imbalance
        return SparseBlock(self._kernels, experts, self.parallelism, self._network, imbalance)

    def _attention(self, tokens: FloatArray, context: FloatArray, phase: str) -> FloatArray:
        return self._run(phase, tokens, context) + self._all_reduce(tokens)

    def _dense_ffn(self, tokens: FloatArray) -> FloatArray:
        return self._run("dense", tokens, np.zeros_like(tokens)) + self._all_reduce(tokens)

    def _sparse_ffn(self, block: SparseBlock, tokens: FloatArray, mode: str) -> FloatArray:
        always = self._run("sparse", tokens, np.zeros_like(tokens))
        moved = block.exchange(tokens, mode)
        return always + block.routed(tokens) + moved + self._overheads.expert_layer

    def _run(self, kind: str, tokens: FloatArray, context: FloatArray) -> FloatArray:
        total = np.zeros_like(tokens)
        for operator in self._operators[kind]:
            total = total + operator.seconds(tokens, context)
        return total

    def _all_reduce(self, tokens: FloatArray) -> FloatArray:
        size = tokens * (self.architecture.hidden * BF16_BYTES)
        return self._network.all_reduce(size, self.parallelism.tp)

    def _handovers(self, tokens: FloatArray) -> FloatArray:
        """Hidden states between pipeline stages; each tensor-parallel rank sends its part."""
        pp = self.parallelism.pp
        if pp == 1:
            return np.zeros_like(tokens)
        size = tokens * (self.architecture.hidden * BF16_BYTES / self.parallelism.tp)
        return (pp - 1) * self._network.send(size, self.parallelism.gpus)


def _attended(length: FloatArray, window: int | None) -> FloatArray:
    """Positions that the first ``length`` tokens attend to in all, causally.

    1 + 2 + ... = l (l + 1) / 2; behind a window w each further token sees w positions.
    """
    if window is None:
        return length * (length + 1) / 2
    short = np.minimum(length, window)
    return np.asarray(short * (short + 1) / 2 + (length - short) * window)
