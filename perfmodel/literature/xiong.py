"""The fitted model of Xiong et al. (2025, equations 1 to 4): eight numbers per instance.

    T_prefill(b, I) = p1 b I + p2 b + p3 I + p4
    tau(L, b)       = p5 b L + p6 b + p7 L + p8

b sequences of a batch, I longest input, L cached tokens of one sequence. With K = b L cached in
all, a step is p5 K + p6 b + p7 K / b + p8: at a fixed cache a larger batch may be faster, because
its sequences are shorter.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import lsq_linear

from ..errors import PerfModelError
from ..model import FloatArray, Promise
from .measured import FixedCapacity, Limits

_TERMS = 4
"""Parameters of a phase: as many samples are the least that determine them."""


@dataclass(frozen=True)
class XiongParameters:
    """p1 to p8 of equations 3 and 4, in seconds; none is negative."""

    p1: float
    p2: float
    p3: float
    p4: float
    p5: float
    p6: float
    p7: float
    p8: float

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise PerfModelError(f"{self}: a negative parameter would make more work take less")


@dataclass(frozen=True)
class Samples:
    """Measured batches of one phase: sizes [sequences], lengths [tokens] and times [s].

    ``length``: input of prefill, cached tokens of a sequence of decode.
    """

    batch: FloatArray
    length: FloatArray
    seconds: FloatArray


def fit_xiong(prefill: Samples, decode: Samples) -> XiongParameters:
    """Return p1 to p8 [s per unit of their terms] by least squares, none of them negative.

    Rows are divided by their times, so that short runs count as much as long ones. (The paper uses
    scipy's ``curve_fit``.)

    Source: Xiong et al. (2025), equations 3 and 4, in
    docs/explanation/performance-model.md#other-models-of-the-same-island.

    Raises:
        PerfModelError: a phase has fewer than four different batches.
    """
    return XiongParameters(*_least_squares(prefill), *_least_squares(decode))


def _least_squares(samples: Samples) -> list[float]:
    batch, length = (np.asarray(x, dtype=np.float64) for x in (samples.batch, samples.length))
    terms = np.stack([batch * length, batch, length, np.ones_like(batch)], axis=-1)
    if np.linalg.matrix_rank(terms) < _TERMS:
        raise PerfModelError(
            f"{len(terms)} samples do not determine the four parameters of a phase; vary both the "
            f"batch and the length, four combinations or more"
        )
    scaled = terms / samples.seconds[:, None]
    largest = scaled.max(axis=0)  # columns of like size: b I is millions of times 1
    solution = lsq_linear(scaled / largest, np.ones(len(terms)), bounds=(0, np.inf), tol=1e-12)
    return [float(value) for value in solution.x / largest]


class Fitted(FixedCapacity):
    """One instance with fitted parameters; implements ``PerformanceModel``.

    Prompts run one by one (b = 1). Where p7 > 0 the step at a fixed cache falls with the batch;
    ``decode_step_bound`` is the longest step of any smaller batch with that cache.
    """

    name = "fitted"

    def __init__(self, parameters: XiongParameters, limits: Limits) -> None:
        super().__init__(limits)
        self.parameters = parameters
        grows = parameters.p7 == 0
        self.breaks = frozenset() if grows else frozenset({Promise.GROWS_WITH_BATCH})

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] of a prompt of ``length`` [tokens]: (p1 + p3) I + p2 + p4, b = 1.

        Source: Xiong et al. (2025), equation 3, in
        docs/explanation/performance-model.md#other-models-of-the-same-island.
        """
        p = self.parameters
        return np.asarray((p.p1 + p.p3) * np.asarray(length, dtype=np.float64) + (p.p2 + p.p4))

    prefill_occupancy = prefill_time  # one prompt at a time

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds of a step [s]: p5 K + p6 b + p7 K / b + p8, at least one sequence.

        Source: Xiong et al. (2025), equation 4, in
        docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            sequences: b, running sequences [sequences].
            kv_tokens: K, cached tokens in all [tokens].
        """
        p = self.parameters
        batch = np.maximum(1.0, np.asarray(sequences, dtype=np.float64))
        return np.asarray(p.p5 * kv_tokens + p.p6 * batch + p.p7 * kv_tokens / batch + p.p8)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return the longest step [s] of any batch from 1 up: convex in b, so at one of the ends.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            sequences: Largest batch [sequences].
            kv_tokens: K, cached tokens in all [tokens].
        """
        alone = self.decode_step_time(np.ones_like(sequences), kv_tokens)
        return np.maximum(alone, self.decode_step_time(sequences, kv_tokens))
