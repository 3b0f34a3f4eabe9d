"""A performance model small enough to compute on paper: affine in everything.

It is a true member of the family (the form that Xiong et al. fit to profiles), not a stand-in.
"""

from dataclasses import dataclass

import numpy as np

from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class Affine:
    """Prefill ``per_token * l``; decode step ``a + beta B + kappa K``."""

    per_token: float = 1e-3
    a: float = 0.01
    beta: float = 1e-3
    kappa: float = 1e-6
    kv: int = 100_000
    name: str = "affine"
    max_length: int = 100_000

    def prefill_time(self, length: FloatArray) -> FloatArray:
        return self.per_token * np.asarray(length, dtype=np.float64)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        return self.prefill_time(length)

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        return self.a + self.beta * np.asarray(sequences) + self.kappa * np.asarray(kv_tokens)

    def kv_capacity(self) -> int:
        return self.kv

    def max_sequences(self) -> int:
        return 256

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        return 1e5 * np.asarray(length, dtype=np.float64)
