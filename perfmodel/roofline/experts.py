"""The sparse feed-forward: routed and shared experts of one layer, with their communication.

Few tokens touch few experts, so the weights to read grow with the batch: with T tokens that each
choose k of E experts evenly, an expert is touched with probability 1 - (1 - k/E)^T. Equal prompts
choose alike: T^g in place of T, with g below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..catalogue.architectures import Experts
from ..catalogue.precision import BF16_BYTES
from ..model import FloatArray
from .communication import Network, expert_copies
from .memory import experts_per_gpu
from .operators import ACTIVATION_BYTES, Kernels, Operator, ffn
from .parallelism import Parallelism


@dataclass(frozen=True)
class SparseBlock:
    """One sparse feed-forward on one GPU of an island."""

    kernels: Kernels
    experts: Experts
    parallelism: Parallelism
    network: Network

    @property
    def imbalance(self) -> float:
        """Return the load of the busiest GPU over the mean [1] under expert parallelism.

        Source: docs/explanation/performance-model.md#times-the-roofline; value in
        ``efficiencies.yaml``.
        """
        return self.kernels.fit.overheads.expert_imbalance

    @property
    def always(self) -> tuple[Operator, ...]:
        """Return the operators that every token passes: norm, router and shared experts."""
        hidden = self.kernels.model.hidden
        router = self.kernels.product("router", hidden, self.experts.routed, BF16_BYTES)
        if not self.experts.shared:
            return (self.kernels.norm(), router)
        width = self.experts.shared * self.experts.intermediate / self.parallelism.tp
        return (router, *ffn(self.kernels, width, 2 * width))

    def routed(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] of the routed experts: max(compute, memory) + sorting.

        Of T tokens on all copies the busiest GPU computes T k / ep times the imbalance, and reads a
        share min(1, imbalance (1 - (1 - k/E)^(T^g))) of its experts. Sorting takes a fixed time per
        pair of token and expert. Valid for experts that are drawn evenly (g = 1) or alike (g < 1).

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            tokens: Tokens in each copy [tokens], at least 1.
        """
        spread = self.parallelism.ep > 1
        together = tokens * (self.parallelism.dp if spread else 1)
        share, worst = (1 / self.parallelism.ep, self.imbalance) if spread else (1.0, 1.0)
        rows = together * self.experts.per_token * share * worst
        touched = np.minimum(1.0, worst * self._touched(together))
        sorting = self.kernels.fit.overheads.expert_pair * together * self.experts.per_token
        return np.maximum(self._compute(rows), self._memory(rows, touched)) + sorting

    def _touched(self, tokens: FloatArray) -> FloatArray:
        spread = self.kernels.fit.overheads.expert_spread
        tokens = tokens if spread == 1 else tokens**spread
        missed = np.log1p(-self.experts.per_token / self.experts.routed)
        return np.asarray(-np.expm1(tokens * missed))

    def _compute(self, rows: FloatArray) -> FloatArray:
        kernels = self.kernels
        dtype = kernels.model.precision.expert_compute
        rate = kernels.reached(dtype).expert_mfu * kernels.accelerator.peak(dtype)
        slices = 1 if self.parallelism.ep > 1 else self.parallelism.tp
        parameters = self.experts.parameters_of_one(kernels.model.hidden)
        return rows * (2 * parameters / slices / rate)

    def _memory(self, rows: FloatArray, touched: FloatArray) -> FloatArray:
        kernels = self.kernels
        precision = kernels.model.precision
        reached = kernels.reached(precision.expert_compute)
        held = experts_per_gpu(self.experts, self.parallelism)
        weights = held * self.experts.parameters_of_one(kernels.model.hidden) * precision.expert
        moved = 2 * kernels.model.hidden + 3 * self.experts.intermediate
        read = max(kernels.activation(precision.expert_compute), BF16_BYTES)
        bandwidth = reached.expert_mbu * kernels.accelerator.bandwidth
        return (touched * weights + rows * moved * read) / bandwidth

    def exchange(self, tokens: FloatArray, mode: str) -> FloatArray:
        """Return seconds [s] to move ``tokens`` tokens [tokens] per copy to their experts and back.

        One copy: every rank holds the tokens already, and an all-reduce adds the results up.
        Several copies: each rank dispatches its part of the tokens (FP8 if the experts multiply in
        FP8) and gets BF16 results back. With tp > 1 the ranks of a copy then gather, which is half
        of an all-reduce: each rank sends (n - 1) / n of the message once. ``mode`` is that of
        ``Network.all_to_all``.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        hidden = self.kernels.model.hidden
        size = tokens * hidden * BF16_BYTES
        tp = self.parallelism.tp
        if self.parallelism.ep == 1 or self.parallelism.dp == 1:
            return self.network.all_reduce(size, tp)
        operand = self.kernels.accelerator.operand(self.kernels.model.precision.expert_compute)
        inside, outside = self._copies(mode)
        sent = tokens * hidden / tp
        way = [
            self.network.all_to_all(sent * inside * width, sent * outside * width, mode)
            for width in (max(ACTIVATION_BYTES[operand], 1.0), BF16_BYTES)
        ]
        # Gathering is half of an all-reduce: each rank sends (n - 1) / n of the message once.
        return way[0] + way[1] + self.network.all_reduce(size / 2, tp)

    def _copies(self, mode: str) -> tuple[float, float]:
        limited = self.experts.groups_per_token if self.experts.groups > 1 else None
        return expert_copies(
            self.parallelism.ep, self.network.local, self.experts.per_token, limited, mode
        )
