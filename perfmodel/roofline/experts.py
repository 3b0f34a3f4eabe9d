"""The sparse feed-forward: routed and shared experts of one layer, with their communication.

Few tokens touch few experts, so the weights to read grow with the batch: with T tokens that each
choose k of E experts evenly, an expert is touched with probability 1 - (1 - k/E)^T. Equal prompts
choose alike: T^g in place of T, with g below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..catalogue.layers import Experts
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
    def always(self) -> tuple[Operator, ...]:
        """Return the operators that every token passes: norm, router and shared experts."""
        hidden = self.kernels.model.hidden
        router = self.kernels.product("router", hidden, self.experts.routed, "router")
        latent = self.experts.latent
        around = [self.kernels.product("latent", hidden, 2 * latent, "router")] if latent else []
        if not self.experts.shared:
            return (self.kernels.norm(), router, *around)
        width = self.experts.shared_width / self.parallelism.tp
        return (router, *around, *ffn(self.kernels, width, self.experts.ups * width, "shared"))

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
        kernels, experts = self.kernels, self.experts
        spent, model = kernels.fit.overheads, kernels.model
        share, worst = (1 / self.parallelism.ep, spent.expert_imbalance) if spread else (1.0, 1.0)
        rows = together * experts.per_token * share * worst
        touched = np.minimum(1.0, worst * self._touched(together))
        sorting = spent.expert_pair * together * experts.per_token

        dtype = model.precision.expert_compute
        efficiency = kernels.efficiency(dtype)
        parameters = experts.parameters_of_one(model.hidden)
        slices = 1 if spread else self.parallelism.tp
        rate = efficiency.expert_mfu * kernels.accelerator.peak(dtype)
        compute = rows * (2 * parameters / slices / rate)

        held = experts_per_gpu(experts, self.parallelism)
        weights = held * parameters * model.precision.expert
        moved = 2 * (experts.latent or model.hidden) + (experts.ups + 1) * experts.intermediate
        read = max(kernels.activation(dtype), BF16_BYTES)
        bandwidth = efficiency.expert_mbu * kernels.accelerator.bandwidth
        memory = (touched * weights + rows * moved * read) / bandwidth
        return np.maximum(compute, memory) + sorting

    def _touched(self, tokens: FloatArray) -> FloatArray:
        spread = self.kernels.fit.overheads.expert_spread
        tokens = tokens if spread == 1 else tokens**spread
        missed = np.log1p(-self.experts.per_token / self.experts.routed)
        return np.asarray(-np.expm1(tokens * missed))

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
        limited = self.experts.groups_per_token if self.experts.groups > 1 else None
        ep, local = self.parallelism.ep, self.network.local
        inside, outside = expert_copies(ep, local, self.experts.per_token, limited, mode)
        sent = tokens * hidden / tp
        way = [
            self.network.all_to_all(sent * inside * width, sent * outside * width, mode)
            for width in (max(ACTIVATION_BYTES[operand], 1.0), BF16_BYTES)
        ]
        return way[0] + way[1] + self.network.all_reduce(size / 2, tp)
