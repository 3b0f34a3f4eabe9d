"""KV transfer from prefill to decode: the bytes of a cache, and alpha + bytes / beta for its way.

ThunderServe (Jiang et al., 2025, equation 1) has T = alpha + 2 b s h N_bytes / beta for one layer
of full multi-head attention. Here the bytes are those of the real layout over all layers: grouped
heads, the latent of MLA, sliding windows, states, as they are stored or in 16, 8 or 4 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..catalogue import read
from ..catalogue.shape import ModelArchitecture
from ..errors import OutOfRange
from ..model import FloatArray

BITS = (16, 8, 4)

GROUP = 32
"""Quantised elements that share a scale and a zero point (KIVI, arXiv:2402.02750, section 4)."""
_SCALE_BYTES = 4.0
"""A scale and a zero point of 16 bits for each group of quantised elements (KIVI, section 4)."""


@dataclass(frozen=True)
class CacheLayout:
    """What the cache of one sequence is on the wire.

    ``elements``: per token, of the layers that send every token. ``windows``: (tokens, elements per
    token) of those that send their last tokens alone. ``keys``: bytes of index keys per token, and
    ``state``: bytes per sequence, both sent as they are. ``element_bytes``: of an element with its
    part of the scales [B].
    """

    elements: float
    windows: tuple[tuple[int, float], ...] = ()
    keys: float = 0.0
    state: float = 0.0
    element_bytes: float = 2.0

    @classmethod
    def of(cls, model: ModelArchitecture, bits: int | None = None) -> CacheLayout:
        """Return the layout of a model's cache; ``bits`` None: as it is stored.

        bits / 8 B an element; of 8 and 4 bits, each ``GROUP`` has 4 B of scales more. A connector
        widens nothing: what is stored in fewer bytes is sent like that.

        Source: docs/explanation/performance-model.md#kv-transfer; scales: KIVI, section 4.

        Raises:
            OutOfRange: no such number of bits.
        """
        if bits not in (None, *BITS):
            raise OutOfRange(f"{bits} bits: valid are 16, 8, 4 bits")
        stored = model.precision.kv
        sent = stored
        if bits is not None:
            scales = _SCALE_BYTES / GROUP if bits < max(BITS) else 0.0
            sent = min(stored, bits / 8 + scales)
        return cls(
            model.kv_bytes_per_token / stored,
            model.windows,
            model.index_bytes_per_token,
            model.state_bytes,
            sent,
        )

    def size(self, length: FloatArray) -> FloatArray:
        """Return bytes [B] of the cache of prompts of ``length`` [tokens] each, any shape.

        (elements l + windowed min(l, w)) bytes + keys l + state.

        Source: docs/explanation/performance-model.md#kv-transfer.
        """
        length = np.asarray(length, dtype=np.float64)
        sent = self.elements * length
        for window, elements in self.windows:
            sent = sent + elements * np.minimum(length, window)
        return np.asarray(sent * self.element_bytes + self.keys * length + self.state)


@dataclass(frozen=True)
class Way:
    """A way between two islands: ``alpha`` latency [s], ``beta`` bandwidth [B/s]."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta <= 0:
            raise OutOfRange(f"{self}: valid are alpha >= 0 s and beta > 0 B/s")

    def seconds(self, size: FloatArray) -> FloatArray:
        """Return seconds [s] for ``size`` [B]: T = alpha + size / beta (Hockney's model).

        Valid for one transfer alone: it waits for no other.

        Source: ThunderServe (Jiang et al., 2025), equation 1, in
        docs/explanation/performance-model.md#kv-transfer.
        """
        return np.asarray(self.alpha + np.asarray(size) / self.beta)


def latency() -> float:
    """Return the latency of a transfer between nodes of which none is stated [s].

    Source: microsoft/vidur @ 7d47513, send_recv, in ``data/links.yaml``.
    """
    return float(read.read("roofline/data/links.yaml")["send"]["latency"])


def adapter_share() -> float:
    """Return the share of its adapters' bandwidth that one transfer between nodes reaches [1].

    Source: microsoft/vidur @ 7d47513, send_recv: 36 of 50 GB/s, in ``data/links.yaml``.
    """
    return float(read.read("roofline/data/links.yaml")["send"]["remote_share"])


def copy_speed(parts: Iterable[tuple[float | None, float]], copies: int) -> float:
    """Return bytes per second of a whole cache through the adapters of one copy [B/s].

    The slowest part counts, which sends the layers that it has; see ``adapter_share``. Infinite if
    no part has adapters of a stated speed.

    Source: docs/explanation/performance-model.md#kv-transfer.

    Args:
        parts: Bandwidth of the adapters of each part of the island [B/s], None without a limit,
            and the part's share of the layers [1].
        copies: Data-parallel copies, each of which has its part of the adapters [copies].
    """
    speeds = [speed / layers for speed, layers in parts if speed is not None]
    return min(speeds, default=float("inf")) * adapter_share() / copies
