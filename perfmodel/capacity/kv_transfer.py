"""KV transfer from prefill to decode: latency plus bytes, per pair of network domains.

ThunderServe (Jiang et al., 2025, equation 1) has T = alpha + 2 b s h N_bytes / beta for one layer
of full multi-head attention. Here the bytes are those of the real layout over all layers: grouped
heads, the latent of MLA, sliding windows, states, in 16, 8 or 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..catalogue.shape import ModelArchitecture
from ..errors import OutOfRange, UnknownName
from ..model import FloatArray

BITS = (16, 8, 4)

_SCALE_BYTES = 4.0
"""A scale and a zero point of 16 bits for each group of quantised elements (KIVI, section 4)."""


@dataclass(frozen=True)
class CacheLayout:
    """What the cache of one sequence is on the wire.

    ``elements``: per token, of the layers that send every token. ``windows``: (tokens, elements per
    token) of those that send their last tokens alone. ``keys``: bytes of index keys per token, and
    ``state``: bytes per sequence, both sent as they are. ``bits`` per element; ``group``: elements
    that share a scale and a zero point, None if the format has none (16 bits, or a static FP8
    scale).
    """

    elements: float
    windows: tuple[tuple[int, float], ...] = ()
    keys: float = 0.0
    state: float = 0.0
    bits: int = 16
    group: int | None = None

    def __post_init__(self) -> None:
        if self.bits not in BITS or (self.group is not None and self.group < 1):
            raise OutOfRange(f"{self.bits} bits in groups of {self.group}: valid are 16, 8, 4 bits")

    @classmethod
    def of(cls, model: ModelArchitecture, bits: int = 16, group: int | None = None) -> CacheLayout:
        """Return the layout of a model's cache."""
        return cls(
            model.kv_bytes_per_token / model.precision.kv,
            model.windows,
            model.index_bytes_per_token,
            model.state_bytes,
            bits,
            group,
        )

    @property
    def element_bytes(self) -> float:
        """Return bytes of an element with its part of the scales [B]: bits / 8 + 4 / group.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island; scales: KIVI,
        section 4.
        """
        return self.bits / 8 + (_SCALE_BYTES / self.group if self.group else 0.0)

    def size(self, length: FloatArray, sequences: FloatArray | float = 1.0) -> FloatArray:
        """Return bytes [B] of ``sequences`` prompts [sequences] of ``length`` [tokens] each.

        sequences ((elements l + windowed min(l, w)) bytes + keys l + state).

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        length = np.asarray(length, dtype=np.float64)
        sent = self.elements * length
        for window, elements in self.windows:
            sent = sent + elements * np.minimum(length, window)
        rest = self.keys * length + self.state
        return np.asarray(sequences * (sent * self.element_bytes + rest))


@dataclass(frozen=True)
class DomainLink:
    """The way between two domains: ``alpha`` latency [s], ``beta`` bandwidth [B/s]."""

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta <= 0:
            raise OutOfRange(f"{self}: valid are alpha >= 0 s and beta > 0 B/s")

    def seconds(self, size: FloatArray) -> FloatArray:
        """Return seconds [s] for ``size`` [B]: T = alpha + size / beta (Hockney's model).

        Source: ThunderServe (Jiang et al., 2025), equation 1, in
        docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        return np.asarray(self.alpha + np.asarray(size) / self.beta)


@dataclass(frozen=True)
class DomainLinks:
    """Links by (from, to); a pair that is stated in one direction holds in both."""

    links: Mapping[tuple[str, str], DomainLink]

    def between(self, sender: str, receiver: str) -> DomainLink:
        """Return the link from ``sender`` to ``receiver``.

        Raises:
            UnknownName: no link joins the two; lists those there are.
        """
        link = self.links.get((sender, receiver)) or self.links.get((receiver, sender))
        if link is None:
            names = ", ".join(f"{a} - {b}" for a, b in sorted(self.links))
            raise UnknownName(f"no link between {sender!r} and {receiver!r}; known: {names}")
        return link

    def seconds(
        self, layout: CacheLayout, length: FloatArray, senders: list[str], receivers: list[str]
    ) -> FloatArray:
        """Return seconds [s] to hand one prompt over, shape (senders, receivers, *length.shape).

        Source: ThunderServe (Jiang et al., 2025), equation 1, in
        docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            layout: The cache of the model.
            length: Input lengths [tokens].
            senders: Domains of prefill islands.
            receivers: Domains of decode islands.
        """
        size = layout.size(length)
        return np.array([[self.between(a, b).seconds(size) for b in receivers] for a in senders])
