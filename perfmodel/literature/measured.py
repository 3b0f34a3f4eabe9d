"""What an island holds, for models that know times alone and are told the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray, PerformanceModel


@dataclass(frozen=True)
class Limits:
    """What an instance holds, as other models say it too.

    ``max_length`` [tokens per sequence], ``kv_capacity`` [tokens], ``max_sequences``,
    ``kv_bytes_per_token`` [B].
    """

    max_length: int
    kv_capacity: int
    max_sequences: int
    kv_bytes_per_token: float

    @classmethod
    def of(cls, model: PerformanceModel) -> Limits:
        """The limits of another model of the same island."""
        per_token = float(np.diff(model.kv_bytes(np.array([1024.0, 1025.0])))[0])
        return cls(model.max_length, model.kv_capacity(), model.max_sequences(), per_token)


class Limited:
    """The part of a ``PerformanceModel`` that its limits answer."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.max_length = limits.max_length

    def max_sequences(self) -> int:
        """Largest batch [sequences]."""
        return self.limits.max_sequences

    def kv_capacity(self) -> int:
        """Tokens of cache [tokens]."""
        return self.limits.kv_capacity

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Bytes of cache of a prompt [B]."""
        return np.asarray(length) * self.limits.kv_bytes_per_token
