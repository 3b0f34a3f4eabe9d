"""The time of consecutive layers on one kind of GPU: a pipeline stage, or a whole model.

``roofline.py`` runs all layers of a model as one such stack; ``pipeline.py`` places one per stage.
A layer is the sum of its operators, its communication and a fixed overhead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.efficiency import ANY, engine_fit
from archipelago.perfmodel.errors import OutOfRange
from archipelago.perfmodel.experts import SparseBlock
from archipelago.perfmodel.memory import MemoryPolicy
from archipelago.perfmodel.operators import Kernels, attention, dense_ffn, output_head
from archipelago.perfmodel.precision import BF16_BYTES

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.communication import Network
    from archipelago.perfmodel.efficiency import EngineFit, Overheads
    from archipelago.perfmodel.layers import LayerCounts
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.operators import Operator
    from archipelago.perfmodel.parallelism import Parallelism


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs the model.

    ``engine`` and ``version``: key of the efficiencies; ``fit``: explicit values in their place,
    for one accelerator (a fit to measurements). ``chunk``: tokens of a prefill pass; longer
    prompts run in several (vLLM's default for servers). ``prefix_hit``: share of a prompt whose
    cache is already there, in [0, 1).
    """

    engine: str = ANY
    chunk: int = 8192
    prefix_hit: float = 0.0
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    version: str = ANY
    fit: EngineFit | None = None

    def __post_init__(self) -> None:
        if self.chunk < 1 or not 0 <= self.prefix_hit < 1:
            raise OutOfRange(
                f"chunk is {self.chunk} and prefix_hit {self.prefix_hit}; "
                f"valid are chunk >= 1 and 0 <= prefix_hit < 1"
            )

    def on(self, accelerator: Accelerator) -> EngineFit:
        """What the engine reaches and costs on ``accelerator``."""
        return self.fit or engine_fit(accelerator, self.engine, self.version)


@dataclass(frozen=True)
class Prompt:
    """A prompt as the engine computes it: ``passes`` passes of ``tokens`` new tokens each.

    Passes are not rounded, so that the time grows smoothly with ``length`` [tokens].
    """

    length: FloatArray
    tokens: FloatArray
    passes: FloatArray

    @classmethod
    def of(cls, length: FloatArray, settings: EngineSettings) -> Prompt:
        """What is left to compute of ``length`` tokens, in chunks."""
        length = np.asarray(length, dtype=np.float64)
        new = length * (1 - settings.prefix_hit)
        passes = np.maximum(1.0, new / settings.chunk)
        return cls(length, np.maximum(1.0, new / passes), passes)


@dataclass(frozen=True)
class Stage:
    """Layers that follow each other on the GPUs of one stage, ``parallelism.tp`` wide."""

    model: ModelArchitecture
    counts: LayerCounts
    parallelism: Parallelism
    network: Network
    settings: EngineSettings

    def prefill_pass(self, prompt: Prompt) -> FloatArray:
        """All layers of one pass [s]; launching the kernels counts where it takes longer.

        That is BestServe's rule (arXiv:2506.05871, algorithm 1): no graph is replayed in prefill.
        """
        hit = self.settings.prefix_hit
        launch = self._overheads.dispatch / 2
        tokens = prompt.tokens
        total = np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            seen = _attended(prompt.length, window) - _attended(hit * prompt.length, window)
            block = self._attention(tokens, seen / prompt.passes, "prefill")
            total = total + layers * np.maximum(block, launch)
        if self.counts.dense:
            total = total + self.counts.dense * np.maximum(self._dense_ffn(tokens), launch)
        if self._sparse is not None:
            block = self._sparse_ffn(self._sparse, tokens, "normal")
            total = total + self.counts.sparse * np.maximum(block, launch)
        return total

    def decode_pass(self, tokens: FloatArray, context: FloatArray) -> FloatArray:
        """All layers of one token step of ``tokens`` sequences with ``context`` tokens in all [s].

        A windowed layer is charged a full window per sequence, whatever the context: the true
        min(context, window) would not be convex in the cached tokens.
        """
        total = self.counts.layers * self._overheads.decode_layer + np.zeros_like(tokens)
        for layers, window in self._attention_layers:
            seen = context if window is None else tokens * window
            total = total + layers * self._attention(tokens, seen, "decode")
        if self.counts.dense:
            total = total + self.counts.dense * self._dense_ffn(tokens)
        if self._sparse is not None:
            block = self._sparse_ffn(self._sparse, tokens, "low_latency")
            total = total + self.counts.sparse * block
        return total

    def head(self, tokens: FloatArray) -> FloatArray:
        """The output head for ``tokens`` tokens [s]; only the last stage has one."""
        return self._head.seconds(tokens, np.zeros_like(tokens))

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one token's hidden state."""
        return self.model.hidden * BF16_BYTES

    @cached_property
    def _attention_layers(self) -> tuple[tuple[int, int | None], ...]:
        """How many layers see everything, and how many no more than their window."""
        pairs = ((self.counts.full, None), (self.counts.windowed, self.model.window))
        return tuple((layers, window) for layers, window in pairs if layers)

    @cached_property
    def _fit(self) -> EngineFit:
        return self.settings.on(self.network.accelerator)

    @property
    def _overheads(self) -> Overheads:
        return self._fit.overheads

    @cached_property
    def _links(self) -> Network:
        return self.network.run_by(self._overheads)

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self.network.accelerator, self.model, self._fit)

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
        experts = self.model.experts
        if experts is None or not self.counts.sparse:
            return None
        return SparseBlock(self._kernels, experts, self.parallelism, self._links)

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
        return self._links.all_reduce(tokens * self.hidden_bytes, self.parallelism.tp)


def handed_over(model: ModelArchitecture, length: FloatArray) -> FloatArray:
    """Bytes of cache of a prompt; windowed layers hand over their window only [B]."""
    grown = model.kv_bytes_per_token * np.asarray(length, dtype=np.float64)
    if not model.window:
        return grown
    filled = np.minimum(1.0, np.asarray(length) / model.window)
    return np.asarray(grown + model.kv_window_bytes * filled)


def _attended(length: FloatArray, window: int | None) -> FloatArray:
    """Positions that the first ``length`` tokens attend to in all, causally.

    1 + 2 + ... = l (l + 1) / 2; behind a window w each further token sees w positions.
    """
    if window is None:
        return length * (length + 1) / 2
    short = np.minimum(length, window)
    return np.asarray(short * (short + 1) / 2 + (length - short) * window)
