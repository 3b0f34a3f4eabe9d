"""The protocol of performance models: the times and limits of one island that the planner uses.

A model is built for one island: accelerator, architecture, precision and parallelism are fixed,
lengths and batch vary. All methods are vectorised over numpy arrays and pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]


class Promise(StrEnum):
    """What capacity rows build on; a model that breaks one declares it (``breaks``)."""

    GROWS_WITH_LENGTH = "a longer prompt takes no less time"
    GROWS_WITH_BATCH = "a larger batch takes no less time"
    GROWS_WITH_CACHE = "a fuller cache takes no less time"
    CONVEX_IN_CACHE = "a step is convex in the cached tokens"


class PerformanceModel(Protocol):
    """Seconds, tokens and bytes of one island (one replica, or ``dp`` copies that share it)."""

    @property
    def name(self) -> str:
        """Return the name of the model's family, e.g. ``roofline``; written into every plan."""

    @property
    def max_length(self) -> int:
        """Return the longest sequence, input plus output, that the model accepts [tokens]."""

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] to the first token of ``length`` [tokens], without queueing."""

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Return seconds of the whole island that one prompt costs at saturation [s].

        ``prefill_time`` divided by the prompts in flight at once: ``dp`` copies work side by
        side and ``pp`` stages overlap. This is what a capacity row counts.
        """

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds per token [s] with ``sequences`` in the batch and ``kv_tokens`` cached.

        Both count the whole island (all ``dp`` copies, evenly filled) and broadcast.
        Non-decreasing in both arguments, and convex in ``kv_tokens`` at fixed ``sequences``.
        """

    def kv_capacity(self) -> int:
        """Return KV-cache tokens that fit on the island beside the weights [tokens]; 0 if none."""

    def max_sequences(self) -> int:
        """Return the largest batch the engine runs on the island [sequences]."""

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Return bytes [B] of KV cache handed from prefill to decode for ``length`` [tokens]."""


def broken(model: PerformanceModel) -> frozenset[Promise]:
    """Return promises that the model declares not to keep; none by default."""
    promises: frozenset[Promise] = getattr(model, "breaks", frozenset())
    return promises


def step_bound(model: PerformanceModel) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """Return a step time that keeps every promise: the model's own, or its declared bound."""
    bound: Callable[[FloatArray, FloatArray], FloatArray] = getattr(
        model, "decode_step_bound", model.decode_step_time
    )
    return bound
