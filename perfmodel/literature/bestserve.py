"""BestServe's estimator (Hu et al., arXiv:2506.05871): algorithm 1 with the counts of its appendix.

For comparison with the roofline: each operation of a LLaMa block separately, one MFU and one MBU
per phase, and dispatch times for which the GPU may wait. Letters as there: b batch, s sequence,
h hidden, h0 width of the feed-forward, g = h_kv / h_q, t tensor replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import GroupedAttention, ModelArchitecture
from ..errors import PerfModelError
from ..model import FloatArray
from ..roofline.island import Roofline
from ..roofline.parallelism import Parallelism
from .measured import FixedCapacity, Limits


@dataclass(frozen=True)
class Module:
    """One of the four modules of a block [s]: host dispatch, compute, communication."""

    dispatch: float
    compute: FloatArray
    communicate: FloatArray


@dataclass(frozen=True)
class PhaseEfficiency:
    """e_c, e_m and e_+: shares of peak, memory and link bandwidth."""

    mfu: float
    mbu: float
    link: float


PREFILL = PhaseEfficiency(0.65, 0.6, 0.6)
DECODE = PhaseEfficiency(0.65, 0.3, 0.3)
"""Section 4.1, fitted there to an Ascend 910B3 with vLLM."""

NORM, ATTENTION, MLP = 0.024e-3, 0.190e-3, 0.041e-3
"""Dispatch times of table 3 [s]; the paper takes them as equal for all models of the family."""


@dataclass(frozen=True)
class TableThree:
    """One half of table 3 [ms]: rows of dispatch, compute, communicate, and the printed total."""

    rows: tuple[tuple[float, float, float], ...]
    printed: float


TABLE_3 = {
    "prefill": TableThree(
        ((0.024, 0.223, 0.0), (0.190, 2.122, 0.1), (0.024, 0.223, 0.0), (0.041, 2.809, 0.1)),
        265.123,
    ),
    "decode": TableThree(
        ((0.024, 0.0, 0.0), (0.190, 0.176, 0.1), (0.024, 0.0, 0.0), (0.041, 0.530, 0.1)),
        33.573,
    ),
}
"""CodeLlama-34b on four 910B3, 48 blocks: its algorithm does not give its totals."""


def algorithm_1(modules: Sequence[Module], layers: int, *, inside: bool = False) -> FloatArray:
    """Return seconds of a pass [s]: the GPU waits if dispatching was slower than computing.

    Per module: dispatched += dispatch; computed = max(dispatched, computed) + compute +
    communicate.

    Source: arXiv:2506.05871 (BestServe), algorithm 1.

    Args:
        modules: Norm, attention, norm, feed-forward.
        layers: Equal blocks [layers].
        inside: Add up after every module, as line 15 stands in the paper; otherwise once per block,
            as the text means.
    """
    dispatched, computed, total = 0.0, np.array(0.0), np.array(0.0)
    for module in modules:
        dispatched += module.dispatch
        computed = np.maximum(dispatched, computed) + module.compute + module.communicate
        total = total + computed if inside else computed
    return np.asarray(layers * total)


def table_3(phase: str, *, inside: bool = False) -> float:
    """Return what algorithm 1 yields from table 3 [s], to compare with the printed total.

    Source: arXiv:2506.05871 (BestServe), table 3;
    docs/explanation/performance-model.md#other-models-of-the-same-island.
    """
    rows = [
        Module(d * 1e-3, np.array(c * 1e-3), np.array(m * 1e-3)) for d, c, m in TABLE_3[phase].rows
    ]
    return float(algorithm_1(rows, 48, inside=inside))


@dataclass(frozen=True)
class Counts:
    """Operations and bytes of a list of operations; arrays broadcast."""

    flops: FloatArray
    size: FloatArray

    def seconds(self, rate: float, bandwidth: float) -> FloatArray:
        """Return seconds [s]: W / min(I, I*) e_m S_m, which is the larger of the two times.

        Source: arXiv:2506.05871 (BestServe), equations 3, 7, 10, 11, 12.

        Args:
            rate: Reached operations per second [FLOP/s].
            bandwidth: Reached bytes per second [B/s].
        """
        return np.asarray(np.maximum(self.flops / rate, self.size / bandwidth))


@dataclass(frozen=True)
class Block:
    """Counts of one LLaMa block over ``t`` replicas; tables 6 to 13, tables 1 and 2 with t = 1.

    ``rows``: tokens that are computed (b s in prefill, b in decode). ``pairs``: b s^2 in prefill,
    b s in decode.
    """

    h: float
    h0: float
    heads: float
    g: float
    t: float

    def norm(self, rows: FloatArray) -> list[Counts]:
        """Return the operations of tables 6 and 7."""
        x, h = rows * self.h, self.h
        sizes = (4 * x, 2 * x + 2 * rows, 4 * rows, 4 * rows, 4 * x + 2 * rows, 4 * x + 2 * h)
        return [Counts(w, q) for w, q in zip((x, x, rows, rows, x, x), sizes, strict=True)]

    def mlp(self, rows: FloatArray) -> list[Counts]:
        """Return the operations of tables 12 and 13.

        The product's bytes in decode are read as b h0; b s h0 is printed.
        """
        h, h0, t = self.h, self.h0, self.t
        product = Counts(2 * rows * h * h0 / t, 2 * (rows * (h + h0) + h * h0) / t)
        silu = Counts(5 * rows * h0 / t, 4 * rows * h0 / t)
        mul, add = Counts(rows * h0 / t, 6 * rows * h0 / t), Counts(rows * h / t, 4 * rows * h0 / t)
        return [product, silu, product, mul, product, add]

    def projections(self, rows: FloatArray) -> list[Counts]:
        """Return the rows 1 to 4 and the last row of tables 10 and 11: projections and rotation."""
        x, h, g, t = rows * self.h, self.h, self.g, self.t
        query = Counts(2 * x * h / t, 2 * (2 * x + h * h) / t)
        key = Counts(2 * x * h * g / t, 2 * (x + h * h * g / t + x * g / t))
        rope = Counts(3.5 * x * (1 + g), 2 * x * (8.5 + 8.5 * g + 2 / self.heads))
        out = Counts(2 * x * h / t, 2 * (x + h * h / t + x / t))
        return [query, key, key, rope, out]

    def prefill_core(self, rows: FloatArray, pairs: FloatArray) -> list[Counts]:
        """Return the rows 5 to 9 of table 10: the whole square, scores in memory."""
        x, n, t = rows * self.h, self.heads, self.t
        scores = Counts(2 * pairs * self.h / t, 2 * (2 * x + n * pairs) / t)
        divided = Counts(n * pairs / t, 4 * n * pairs / t)
        masked = Counts(n * pairs / t, 2 * (2 * n * pairs / t + pairs))
        softmax = Counts(3 * n * pairs / t, 4 * n * pairs / t)
        return [scores, divided, masked, softmax, scores]

    def decode_core(self, rows: FloatArray, pairs: FloatArray) -> list[Counts]:
        """Return the rows 5 to 11 of table 11; update, repeat and upcast only move bytes."""
        n, h, g, t = self.heads, self.h, self.g, self.t
        scores = Counts(2 * pairs * h / t, 2 * (rows * h + h * pairs + n * pairs) / t)
        divided = Counts(n * pairs / t, 4 * n * pairs / t)
        masked = Counts(n * pairs / t, 2 * (2 * n * pairs / t + pairs))
        softmax = Counts(3 * n * pairs, 4 * n * pairs / t)
        none = np.zeros_like(pairs)
        moved = [2 * h * g * pairs / t, 4 * n * pairs / t]
        if g < 1:
            moved.append(2 * h * (1 + g) * pairs / t)
        return [scores, divided, masked, softmax, scores, *(Counts(none, q) for q in moved)]


class BestServe(FixedCapacity):
    """One island by BestServe's estimator; implements ``PerformanceModel``.

    Memory and limits are the roofline's: the paper has none. The three rates kappa that it does not
    state (update, repeat, upcast) are taken as the reached bandwidth.

    Args:
        accelerator: The GPU type: BF16 peak, memory and local link.
        architecture: A dense model with grouped attention.
        parallelism: Tensor parallelism alone.
        gpus_per_node: As in ``Roofline``.
        max_sequences: Largest batch.

    Raises:
        PerfModelError: another kind of model or parallelism.
        DoesNotFit: as in ``Roofline``.
    """

    name = "bestserve"

    def __init__(
        self,
        accelerator: Accelerator,
        architecture: ModelArchitecture,
        parallelism: Parallelism,
        gpus_per_node: int | None = None,
        max_sequences: int = 1024,
    ) -> None:
        shape = architecture.attention
        if not isinstance(shape, GroupedAttention) or architecture.experts is not None:
            raise PerfModelError(
                f"BestServe counts LLaMa blocks, {architecture.name} has others; take the roofline"
            )
        if parallelism.gpus != parallelism.tp:
            raise PerfModelError(f"BestServe knows tensor parallelism alone, not {parallelism}")
        like = Roofline(accelerator, architecture, parallelism, gpus_per_node, max_sequences)
        super().__init__(Limits.of(like))
        self.accelerator = accelerator
        self.architecture = architecture
        self.block = Block(
            architecture.hidden,
            architecture.intermediate,
            shape.heads,
            shape.kv_heads / shape.heads,
            parallelism.tp,
        )

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] of one prompt (b = 1) of ``length`` [tokens].

        Source: arXiv:2506.05871 (BestServe), algorithm 1, tables 6, 10 and 12.
        """
        rows = np.maximum(1.0, np.asarray(length, dtype=np.float64))
        core = self.block.prefill_core(rows, rows * rows)
        return self._estimate(PREFILL, rows, core)

    prefill_occupancy = prefill_time  # one prompt at a time

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds of a step [s]; b s is the cached tokens of all sequences.

        Source: arXiv:2506.05871 (BestServe), algorithm 1, tables 7, 11 and 13.

        Args:
            sequences: b, running sequences [sequences].
            kv_tokens: b s, cached tokens of all of them [tokens].
        """
        rows, cached = np.broadcast_arrays(
            np.maximum(1.0, np.asarray(sequences, dtype=np.float64)),
            np.asarray(kv_tokens, dtype=np.float64),
        )
        return self._estimate(DECODE, rows, self.block.decode_core(rows, cached))

    def _estimate(self, phase: PhaseEfficiency, rows: FloatArray, core: list[Counts]) -> FloatArray:
        def seconds(counts: list[Counts]) -> FloatArray:
            rate = phase.mfu * self.accelerator.half
            bandwidth = phase.mbu * self.accelerator.bandwidth
            return np.asarray(sum(count.seconds(rate, bandwidth) for count in counts))

        block, none = self.block, np.zeros_like(rows)
        # Equation 8: elements, not bytes, and no ring: b s h / t over the reached bandwidth.
        moved = rows * block.h / block.t / (phase.link * self.accelerator.local_bandwidth)
        shared = moved if block.t > 1 else none
        norm = Module(NORM, seconds(block.norm(rows)), none)
        attention = Module(ATTENTION, seconds([*block.projections(rows), *core]), shared)
        mlp = Module(MLP, seconds(block.mlp(rows)), shared)
        return algorithm_1((norm, attention, norm, mlp), self.architecture.layers)
