"""The model of zartbot/shallowsim, written anew from its mathematics: DeepSeek-V3 and R1 only.

Compatible on purpose, not recommended: it tells what a plan would be if those numbers were taken.
The formulas are in ``shallowformulas.py``, devices and defects in ``shallowdevices.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import DoesNotFit, PerfModelError
from archipelago.perfmodel.model import Promise
from archipelago.perfmodel.shallowdevices import Defects, device
from archipelago.perfmodel.shallowformulas import KV_BYTES, ShallowFormulas

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.parallelism import Parallelism


class Shallowsim:
    """One island by shallowsim's formulas; implements ``PerformanceModel``.

    Its step is not monotone in the batch: where a larger batch reaches a higher share of the peak
    it is faster. ``decode_step_bound`` is the least monotone function above it.

    Args:
        accelerator: Looked up by name in shallowsim's own table.
        architecture: DeepSeek-V3 or R1; it knows no other.
        parallelism: ``tp`` GPUs per copy, experts over all GPUs.
        gpus_per_node: Not looked at; its table says what NVLink joins.
        max_sequences: Largest batch of one copy.
        defects: Which of its errors to keep.
        prefix_hit: Share of a prompt that is cached already.

    Raises:
        UnknownName: it has no such device.
        PerfModelError: another model.
        DoesNotFit: by its own memory check.
    """

    name = "shallowsim"
    max_length = 163_840
    breaks = frozenset({Promise.GROWS_WITH_BATCH})

    def __init__(
        self,
        accelerator: Accelerator | str,
        architecture: ModelArchitecture,
        parallelism: Parallelism,
        gpus_per_node: int | None = None,
        max_sequences: int = 1024,
        *,
        defects: Defects | None = None,
        prefix_hit: float = 0.0,
    ) -> None:
        del gpus_per_node
        if architecture.name not in ("DeepSeek-V3", "DeepSeek-R1"):
            raise PerfModelError(
                f"shallowsim models DeepSeek-V3 and DeepSeek-R1, not {architecture.name}; "
                f"take the roofline"
            )
        defects = defects or Defects()
        name = accelerator if isinstance(accelerator, str) else accelerator.name
        self.parallelism = parallelism
        self.formulas = ShallowFormulas(
            device(name, defects),
            parallelism.tp,
            parallelism.stage_gpus,
            defects,
            prefix_hit=prefix_hit,
        )
        self._sequences = max_sequences * parallelism.dp
        if self.formulas.cache_tokens <= 0:
            raise DoesNotFit(
                f"{architecture.name} as {parallelism} leaves no memory for a cache on {name}, "
                f"by shallowsim's count; take more GPUs"
            )

    def max_sequences(self) -> int:
        """Largest batch of the island [sequences]."""
        return self._sequences

    def kv_capacity(self) -> int:
        """Tokens of cache of all copies [tokens]."""
        return int(self.formulas.cache_tokens) * self.parallelism.dp

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Bytes of cache of a prompt, FP8 latents [B]."""
        return np.asarray(length) * float(KV_BYTES * 61)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Seconds of one prompt, one per copy at a time."""
        tokens = np.maximum(1.0, np.asarray(length, dtype=np.float64))
        return np.asarray(self.formulas.prefill(tokens).total * 1e-3)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Island-seconds of one prompt: copies work side by side."""
        return self.prefill_time(length) / self.parallelism.dp

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds of a step; a copy has at least one sequence."""
        batch, cached = self._per_copy(sequences, kv_tokens)
        return np.asarray(self.formulas.decode(batch, cached).total * 1e-3)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Longest step of any batch up to ``sequences``: at the end of every piece of the share."""
        batch, cached = self._per_copy(sequences, kv_tokens)
        found = np.zeros_like(batch)
        ends, shares = self.formulas.pieces
        for low, high, share in zip((0.0, *ends), (*ends, np.inf), shares, strict=True):
            step = self.formulas.decode(np.minimum(batch, high), cached, np.asarray(share)).total
            found = np.where(batch >= low, np.maximum(found, step), found)
        return found * 1e-3

    def _per_copy(
        self, sequences: FloatArray, kv_tokens: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        batch, cached = np.broadcast_arrays(
            np.asarray(sequences, dtype=np.float64), np.asarray(kv_tokens, dtype=np.float64)
        )
        return np.maximum(1.0, batch / self.parallelism.dp), cached / self.parallelism.dp
