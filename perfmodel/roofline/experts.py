"""The sparse feed-forward: routed and shared experts of one layer, with their communication.

Few tokens touch few experts, so the weights to read grow with the batch: with T tokens that each
choose k of E experts evenly, an expert is touched with probability 1 - (1 - k/E)^T. Equal prompts
choose alike: T^g in place of T, with g below 1.

With the experts spread over GPUs the busiest GPU sets the pace. Even routing that is evened out
over many tokens is not even over few: pairs of token and expert fall on n GPUs like balls into
bins, and the fullest bin has more than the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from ..catalogue.efficiency import Efficiency
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
        """Return seconds [s] of the routed experts: grouped products + sorting.

        Of T tokens on all copies the busiest GPU computes ``busiest(T k / ep)`` times the measured
        skew of the experts' popularity, and reads the experts that its tokens touch: of the m =
        E / ep that it holds, m p + z sqrt(m p (1 - p)) with p = 1 - (1 - k/E)^(T^g), and no more
        than all. Sorting takes a fixed time per element of every pair of token and expert, on
        every rank. Valid for experts that are drawn evenly (g = 1) or alike (g < 1).

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            tokens: Tokens in each copy [tokens], at least 1.
        """
        spread = self.parallelism.ep > 1
        together = tokens * (self.parallelism.dp if spread else 1)
        kernels, experts = self.kernels, self.experts
        held = experts_per_gpu(experts, self.parallelism)
        rows, touched = together * experts.per_token, self._touched(together)
        sorting = self.sorting(rows)
        if spread:
            ranks = self.parallelism.ep
            rows = kernels.fit.overheads.expert_imbalance * busiest(rows / ranks, ranks)
            uneven = _most_of(ranks) * np.sqrt(touched * (1 - touched) / (experts.routed / ranks))
            touched = np.minimum(1.0, touched + uneven)
        return self.grouped(rows, held * self._slices * touched) + sorting

    def grouped(self, rows: FloatArray, touched: FloatArray) -> FloatArray:
        """Return seconds [s] of the grouped products of one GPU: max(compute, memory).

        Each expert that gets rows is padded by as many as a tile of its kernel leaves empty. A row
        moves its input, its inner activations of the GPU's slice and its result.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            rows: Pairs of token and expert that it computes [tokens], any shape.
            touched: Experts that get any [experts], same shape.
        """
        kernels, experts, reached = self.kernels, self.experts, self._reached
        precision = kernels.model.precision
        parameters = experts.parameters_of_one(kernels.model.hidden)
        rate = reached.expert_mfu * kernels.accelerator.peak(precision.expert_compute)
        padded = rows + reached.expert_pad * touched
        compute = padded * (2 * parameters / self._slices / rate)
        operand = ACTIVATION_BYTES[kernels.operand(precision.of_experts)]
        moved = self._outer * (operand + BF16_BYTES)
        moved += self._inner * (experts.ups * BF16_BYTES + operand)
        weights = touched * (parameters / self._slices * precision.expert)
        bandwidth = reached.expert_mbu * kernels.accelerator.bandwidth
        return np.asarray(np.maximum(compute, (weights + rows * moved) / bandwidth))

    def sorting(self, pairs: FloatArray) -> FloatArray:
        """Return seconds [s] to sort ``pairs`` [tokens] of token and expert and add results up.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        return np.asarray(self._reached.expert_pair * pairs * (self._outer + self._inner))

    @property
    def fixed(self) -> float:
        """Return seconds [s] that a layer takes whatever its tokens; more if experts are spread.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        reached = self._reached
        along = reached.expert_chain * (self._outer + self._inner)
        return (
            reached.expert_layer
            + along
            + (reached.expert_ranks if self.parallelism.ep > 1 else 0.0)
        )

    @property
    def _reached(self) -> Efficiency:
        return self.kernels.efficiency(self.kernels.model.precision.of_experts)

    @property
    def _slices(self) -> int:
        return 1 if self.parallelism.ep > 1 else self.parallelism.tp

    @property
    def _outer(self) -> int:
        return self.experts.latent or self.kernels.model.hidden

    @property
    def _inner(self) -> float:
        return self.experts.intermediate / self._slices

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
        of an all-reduce: each rank sends (n - 1) / n of the message once. Inside a domain engines
        gather the tokens of all copies and scatter the results, which moves what an all-reduce of
        them moves; the faster of both counts. ``mode`` is that of ``Network.all_to_all``.

        Source: docs/explanation/performance-model.md#times-the-roofline.
        """
        size = tokens * self.kernels.model.hidden * BF16_BYTES
        if not self.crosses:
            return self.network.all_reduce(size, self.parallelism.tp)
        dispatch, combine = self.ways(tokens, mode)
        ep = self.parallelism.ep
        if ep > self.network.local:
            return dispatch + combine
        gathered = self.network.all_reduce(size * self.parallelism.dp, ep)
        return np.minimum(dispatch + combine, gathered)

    @property
    def crosses(self) -> bool:
        """Return whether tokens leave their copy to reach their experts."""
        return self.parallelism.ep > 1 and self.parallelism.dp > 1

    def ways(self, tokens: FloatArray, mode: str) -> tuple[FloatArray, FloatArray]:
        """Return seconds [s] to dispatch ``tokens`` tokens [tokens] per copy, and to combine them.

        Source: docs/explanation/performance-model.md#times-the-roofline; see ``exchange``.
        """
        hidden, tp, ep = self.kernels.model.hidden, self.parallelism.tp, self.parallelism.ep
        operand = self.kernels.operand(self.kernels.model.precision.of_experts)
        limited = self.experts.groups_per_token if self.experts.groups > 1 else None
        local = self.network.local
        inside, outside = expert_copies(ep, local, self.experts.per_token, limited, mode)
        sent = tokens * hidden / tp
        dispatch, combine = (
            self.network.all_to_all(sent * inside * width, sent * outside * width, mode)
            for width in (max(ACTIVATION_BYTES[operand], 1.0), BF16_BYTES)
        )
        return dispatch, combine + self.network.all_reduce(tokens * hidden * BF16_BYTES / 2, tp)


def busiest(mean: FloatArray, ranks: int) -> FloatArray:
    """Return the balls [tokens] in the fullest of ``ranks`` bins with ``mean`` each, evenly thrown.

    mean + z sqrt(mean) + (z^2 - 1) / 6, z the expected largest of that many standard normals: the
    Cornish-Fisher expansion of a Poisson variable. With eight bins 2.7, 1.8 and 1.26 times a mean
    of 1, 4 and 32 balls. No more than all balls.

    Source: docs/explanation/performance-model.md#times-the-roofline; Blom, Statistical Estimates
    and Transformed Beta-Variables (1958), for z.

    Args:
        mean: Balls per bin [tokens], any shape.
        ranks: Bins [GPUs].
    """
    z = _most_of(ranks)
    fullest = mean + z * np.sqrt(mean) + max(0.0, z * z - 1) / 6
    return np.asarray(np.minimum(ranks * mean, fullest))


@cache
def _most_of(count: int) -> float:
    """Return the expected largest of ``count`` standard normals (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
