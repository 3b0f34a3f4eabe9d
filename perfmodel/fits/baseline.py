"""The simplest model that could do: a roofline with four parameters, as a bar to beat.

T = (2 P B n + 2 B D n^2 L) / (MFU F t) + n ((2 P + 1.5 B kv n) / (MBU BW t) + t0 + 2 L a)

for a batch of B prompts of n tokens with n tokens of output each: P parameters, D hidden size, L
layers, kv bytes of cache per token, F and BW peaks of one of t GPUs. t0 [s] per step and a [s] per
all-reduce (0 on one GPU) with the efficiencies MFU and MBU are the four.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.fits.benches import BatchBench
    from archipelago.perfmodel.model import FloatArray

_START = np.log([0.3, 0.8, 1e-3, 3e-5])
_LOW = np.log([0.01, 0.1, 1e-5, 1e-7])
_HIGH = np.log([1.0, 1.0, 1e-1, 1e-2])


@dataclass(frozen=True, eq=False)
class FourParameters:
    """Whole batches of one accelerator and engine by the formula above."""

    benches: Sequence[BatchBench]

    def residuals(self, logs: FloatArray) -> FloatArray:
        """log(predicted / measured) with (MFU, MBU, t0, a) = exp(``logs``), shape (rows,)."""
        parts = [_seconds(bench, *np.exp(logs)) / bench.measured for bench in self.benches]
        return np.asarray(np.log(np.concatenate(parts)))

    def held_out(self, groups: FloatArray) -> FloatArray:
        """The same for every row by a fit without its group."""
        found = np.empty(len(groups))
        for group in np.unique(groups):
            own = groups == group
            found[own] = self.without(own)[own]
        return found

    def without(self, left_out: FloatArray) -> FloatArray:
        """Residuals of all rows by a fit to those that are not left out."""
        kept = np.logical_not(left_out)
        fitted = least_squares(
            lambda logs: self.residuals(logs)[kept], _START, bounds=(_LOW, _HIGH), loss="soft_l1"
        )
        return self.residuals(fitted.x)


def _seconds(bench: BatchBench, mfu: float, mbu: float, t0: float, wait: float) -> FloatArray:
    model, gpu = bench.deployment.model, bench.deployment.accelerator
    tp = bench.deployment.parallelism.tp
    n, batch = bench.length, bench.batch
    work = 2 * model.parameters * batch * n + 2 * batch * model.hidden * n**2 * model.layers
    read = 2 * model.parameters + 1.5 * batch * model.kv_bytes_per_token * n
    waits = 2 * model.layers * wait if tp > 1 else 0.0
    step = read / (mbu * gpu.bandwidth * tp) + t0 + waits
    return np.asarray(work / (mfu * gpu.bf16 * tp) + n * step)
