"""The model of zartbot/shallowsim, written anew from its mathematics: DeepSeek-V3 and R1 only.

Compatible on purpose, not recommended: it shows the plan that its numbers would give. Each known
defect has a flag; with all flags on, the model reproduces shallowsim's printed outputs.

Letters: D hidden size, H heads, r_q, r_kv latent ranks, d_n, d_r, d_v head dimensions, F_d, F_e
widths of the dense feed-forward and of an expert, E experts, k experts per token. Times are in ms
inside, as there, and in seconds in ``Shallowsim``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..catalogue import read
from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import ModelArchitecture
from ..errors import DoesNotFit, PerfModelError
from ..model import FloatArray, Promise
from ..roofline.parallelism import Parallelism
from .measured import FixedCapacity, Limits

ETA = 0.85
"""Share of every peak that is reached, whatever the operator ("discount_rate")."""

_CACHE_SHARE = 0.9
"""Share of the memory that the engine takes."""

_ROWS = np.array([8, 16, 32, 64, 128, 256, 512])
_SHARE = np.array([0.05, 0.08, 0.10, 0.20, 0.35, 0.40, 0.60, 0.70])
_H20_ROWS = np.array([4, 8, 16, 32, 64, 128])
_H20_SHARE = np.array([0.06, 0.12, 0.25, 0.45, 0.80, 0.90, 1.0])
"""Share of the peak in a grouped product by the rows of an expert, rounded up to a power of 2."""


@dataclass(frozen=True)
class CompatFlags:
    """What shallowsim does against its own intent or against the hardware; True: as it does.

    ``mebibytes``: bytes / 2^20 (cache: 2^30) are divided by GB/s and called ms: 4.6 % (7 %) short.
    ``halved_dispatch``: prefill's dispatch is halved on every GPU, not on those with FP4 only.
    ``h200_as_h20``: the H200 takes the H20's shares, because its name begins like that.
    ``whole_square``: prefill attends to all pairs, also those that the causal mask hides.
    ``computed_hits``: a prefix hit saves the projection to the latent alone.
    ``divided_cache``: the cache of a copy shrinks with tp, as if every rank had its own sequences.
    ``device_table``: the peaks and links that other sources contradict.
    """

    mebibytes: bool = True
    halved_dispatch: bool = True
    h200_as_h20: bool = True
    whole_square: bool = True
    computed_hits: bool = True
    divided_cache: bool = True
    device_table: bool = True

    @classmethod
    def none(cls) -> CompatFlags:
        """Return flags with every defect switched off."""
        return cls(**{field.name: False for field in fields(cls)})


@dataclass(frozen=True)
class Device:
    """A GPU with the rates that shallowsim gives it; units of ``data/shallowsim.yaml``."""

    name: str
    sm: int
    comm_sm: int
    fp16: float
    fp8: float
    fp4: float
    memory: float
    bandwidth: float
    nvlink: float
    nic: float
    domain: int

    @property
    def best(self) -> float:
        """Return the peak of the feed-forward [TFLOP/s]: FP4 if there is one, else FP8.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        return self.fp4 or self.fp8

    def rows(self, flags: CompatFlags) -> tuple[FloatArray, FloatArray]:
        """Return the rows [rows] up to which each share [1] of a grouped product holds.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        like_h20 = self.name.startswith("H20") and (self.name != "H200" or flags.h200_as_h20)
        return (_H20_ROWS, _H20_SHARE) if like_h20 else (_ROWS, _SHARE)


def device(name: str, flags: CompatFlags) -> Device:
    """Return the device of that name.

    Raises:
        UnknownName: lists the known ones.
    """
    document = read.read("literature/data/shallowsim.yaml")
    row: dict[str, Any] = read.find("device of shallowsim", document["devices"], name)
    canonical = next(entry for entry in document["devices"] if entry.casefold() == name.casefold())
    if not flags.device_table:
        fixes = document["corrected"].get(canonical, {})
        row = row | {key: value for key, value in fixes.items() if key != "source"}
    return Device(canonical, **row)


_D, _RQ, _RKV, _DN, _DR, _DV, _H = 7168, 1536, 512, 128, 64, 128, 128
_FD, _FE, _E, _K = 18432, 2048, 256, 8
_DENSE, _SPARSE = 3, 58
KV_BYTES = _RKV + _DR
"""Bytes of cache per token and layer: the latent in FP8."""

_MLA_BYTES = _D * _RQ + _RQ * _H * (_DN + _DR) + _D * (_RKV + _DR) + _RKV * _H * (_DN + _DV)
_MLA_BYTES += _H * _DV * _D
_FFN_BYTES = 3 * _D * _FD
_EXPERT_BYTES = 3 * _D * _FE

_ATTENTION = 0.7
"""Share of the peak in attention; on GPUs without FP4 in its projections as well."""
_LAUNCH, _REDUCE, _PREFILL_EXCHANGE, _DECODE_EXCHANGE = 0.05, 0.015, 0.05, 0.010
"""Fixed times [ms]: a sparse layer, its all-reduce, one way of an all-to-all in either phase."""

_MICRO = 2
"""Micro-batches of a decode step; each reads the experts' weights."""
_OTHER_GIB = 2.91
_MLA_MIB, _EXPERT_MIB = 187.17, 44.05
"""What shallowsim's memory check counts: embedding and dense layers, attention, one expert."""


@dataclass(frozen=True)
class Parts:
    """Times of a layer's parts and of its communication [ms per layer], in a prompt or a step.

    ``mla`` of a step is with the reading of the cache.
    """

    mla: FloatArray
    dense: FloatArray
    sparse_mla: FloatArray
    shared: FloatArray
    routed: FloatArray
    combine: FloatArray
    dispatch: FloatArray

    @property
    def sparse(self) -> FloatArray:
        """Return a layer with experts, without what communication adds [ms].

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        return self.sparse_mla + self.shared + self.routed

    @property
    def compute(self) -> FloatArray:
        """Return all layers without what communication adds [ms]: 3 dense and 58 sparse layers.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        return _DENSE * (self.mla + self.dense) + _SPARSE * self.sparse

    @property
    def prompt(self) -> FloatArray:
        """Return the time of a prompt [ms]; part of the communication is hidden.

        Combine hides behind the next attention, dispatch behind the routed experts: compute + 58
        (max(0, combine - mla - shared) + max(0, dispatch - routed)).

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        first = np.maximum(0.0, self.combine - self.sparse_mla - self.shared)
        second = np.maximum(0.0, self.dispatch - self.routed)
        return np.asarray(self.compute + _SPARSE * (first + second))

    @property
    def step(self) -> FloatArray:
        """Return the time of a step [ms]: communication hides behind attention and shared expert.

        3 (mla + dense) + 58 (sparse + max(0, dispatch + combine - mla - shared)).

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        exchanged = self.dispatch + self.combine
        waiting = np.maximum(0.0, exchanged - self.sparse_mla - self.shared)
        return np.asarray(_DENSE * (self.mla + self.dense) + _SPARSE * (self.sparse + waiting))


@dataclass(frozen=True)
class ShallowFormulas:
    """Shallowsim's times on one device: ``tp`` GPUs per copy, experts over ``ep`` GPUs.

    ``narrow_combine``: results of experts come back in FP8 on GPUs with FP4 (``fp8_combine``).
    ``prefix_hit``: share of a prompt that is cached already.
    """

    device: Device
    tp: int
    ep: int
    flags: CompatFlags = field(default_factory=CompatFlags)
    narrow_combine: bool = True
    prefix_hit: float = 0.563

    def prefill(self, length: FloatArray) -> Parts:
        """Return the parts [ms] of a prompt of ``length`` [tokens] on each copy.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        S, gpu, hit = length, self.device, self.prefix_hit
        new = S if self.flags.computed_hits else S * (1 - hit)
        pairs = S * new if self.flags.whole_square else new * (S - new / 2)
        gemm = new * (_D * _RQ + _RQ * _H * (_DN + _DR)) + (1 - hit) * S * _D * (_RKV + _DR)
        gemm = gemm + S * _RKV * _H * (_DN + _DV)
        core = _H * pairs * (_DR + _DN + _DV) + new * _H * _DV * _D
        computing = (gpu.sm - gpu.comm_sm) / gpu.sm  # the rest of the multiprocessors communicate
        mla = self._mla(gemm, core, computing)
        rows = new / self.tp
        best, held = computing * gpu.best, _E / self.ep * _EXPERT_BYTES
        # Dispatch in FP8, combine in BF16.
        if gpu.domain == 8:  # noqa: PLR2004  # four nodes of eight, by group-limited routing
            sent = 3 * (8 / self.tp) * new * (_K / 8) * _D
            way = self._move(sent, 8 * gpu.nic)
        else:
            leaving = (_E - -(-_E // gpu.domain)) / _E
            way = self._move(leaving * _K * (new / self.tp) * _D, gpu.nvlink)
        halved = way / 2 if self.flags.halved_dispatch or gpu.fp4 > 0 else way
        return Parts(
            mla=mla,
            dense=_flops(3 * new * _D * _FD, best) + self._move(_FFN_BYTES, gpu.bandwidth),
            sparse_mla=self._sliced(mla, new),
            shared=_flops(3 * rows * _D * _FE, best) + self._move(_EXPERT_BYTES, gpu.bandwidth),
            routed=_flops(3 * _K * rows * _D * _FE, best) + self._move(held, gpu.bandwidth),
            combine=2 * way + _PREFILL_EXCHANGE,
            dispatch=halved + _PREFILL_EXCHANGE,
        )

    def decode(
        self, batch: FloatArray, cached: FloatArray, share: FloatArray | None = None
    ) -> Parts:
        """Return the parts [ms] of a step.

        Source: zartbot/shallowsim @ 0cec1f5.

        Args:
            batch: Sequences per copy [sequences].
            cached: Cached tokens of all of them [tokens].
            share: Share of the peak in the products of experts [1]; None: by the rows of an expert.
        """
        gpu, held = self.device, -(-_E // self.ep)
        share = self.share(batch) if share is None else share
        gemm = batch * (_D * _RQ + _RQ * _H * _DR + _H * (_RQ * _DN + _DN * _RKV))
        core = _H * cached * (_DR + 2 * _RKV) + batch * (_H * _DV * _RKV + _H * _DV * _D)
        cache = self._read_cache(cached * KV_BYTES)
        mla = self._mla(gemm, core, 1.0)
        weight = _EXPERT_BYTES / (2 if gpu.fp4 else 1)
        expert = _flops(3 * batch * _D * _FE, share * gpu.best)  # both micro-batches together
        inside = self.ep <= gpu.domain if gpu.domain > 8 else self.ep == 8  # noqa: PLR2004
        way = self._move(batch * _D * _K, gpu.nvlink if inside else gpu.nic)
        wide = 1 if self.narrow_combine and gpu.fp4 else 2
        return Parts(
            mla=mla + cache,
            dense=_flops(3 * batch * _D * _FD, gpu.best) + self._move(_FFN_BYTES, gpu.bandwidth),
            sparse_mla=self._sliced(mla, batch) + cache,
            shared=expert + _MICRO * self._move(weight, gpu.bandwidth),
            routed=_K * expert + _MICRO * held * self._move(weight, gpu.bandwidth),
            combine=wide * way + _DECODE_EXCHANGE,
            dispatch=way + _DECODE_EXCHANGE,
        )

    def share(self, batch: FloatArray) -> FloatArray:
        """Return the share of the peak [1] of grouped products for ``batch`` [sequences per copy].

        A step function: the rows of an expert are rounded strictly up to a power of two.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        ends, shares = self.device.rows(self.flags)
        rows = np.maximum(batch * self._rows_per_sequence, 1.0)
        rounded = 2.0 ** (np.floor(np.log2(rows)) + 1)
        return np.asarray(shares[np.searchsorted(ends, rounded)])

    @cached_property
    def pieces(self) -> tuple[FloatArray, FloatArray]:
        """Return the batches per copy [sequences] at which the share changes, and the shares [1].

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        ends, shares = self.device.rows(self.flags)
        return ends / self._rows_per_sequence, shares

    @property
    def cache_tokens(self) -> float:
        """Return tokens of cache that one GPU holds [tokens]; negative if the weights do not fit.

        (0.9 memory - other - weights) 2^30 / (576 61 tp).

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        held = -(-_E // self.ep) + 1
        weights = _MLA_MIB * 61 / (1024 * self.tp) + _EXPERT_MIB * _SPARSE * held / 1024
        divided = self.tp if self.flags.divided_cache else 1
        return (
            (_CACHE_SHARE * self.device.memory - _OTHER_GIB - weights)
            * 2**30
            / (KV_BYTES * 61 * divided)
        )

    @property
    def _rows_per_sequence(self) -> float:
        """Return the rows of one expert in a micro-batch, per sequence of the batch."""
        return _K / _MICRO / -(-_E // self.ep)

    def _mla(self, gemm: FloatArray, core: FloatArray, compute_share: float) -> FloatArray:
        """Return an attention block [ms]; FP4 GPUs run projections at the peak without reads."""
        gpu = self.device
        attended = _flops(core, _ATTENTION * compute_share * gpu.fp16)
        if gpu.fp4:
            return _flops(gemm, compute_share * gpu.fp4) + attended
        return (
            _flops(gemm, _ATTENTION * compute_share * gpu.fp8)
            + attended
            + self._move(_MLA_BYTES, gpu.bandwidth)
        )

    def _sliced(self, mla: FloatArray, tokens: FloatArray) -> FloatArray:
        """Return the attention of a sparse layer over ``tp`` GPUs."""
        if self.tp == 1:
            return mla + _LAUNCH
        return mla / self.tp + self._move(2 * _D * tokens, self.device.nvlink) + _REDUCE + _LAUNCH

    def _move(self, size: FloatArray | float, rate: float) -> FloatArray:
        """Return bytes over a link of ``rate`` GB/s [ms]."""
        unit = 2.0**20 if self.flags.mebibytes else 1e6
        return np.asarray(size / unit / (ETA * rate))

    def _read_cache(self, size: FloatArray) -> FloatArray:
        unit = 2.0**30 if self.flags.mebibytes else 1e9
        return np.asarray(size / unit / (ETA * self.device.bandwidth) * 1000)


def _flops(macs: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Return multiply-accumulates at ``rate`` TFLOP/s, discounted [ms]."""
    return np.asarray(2 * macs / 1e9 / (ETA * rate))


class Shallowsim(FixedCapacity):
    """One island by shallowsim's formulas; implements ``PerformanceModel``.

    Its step is not monotone in the batch: if a larger batch reaches a higher share of the peak
    it is faster. ``decode_step_bound`` is the least monotone function above it.

    Args:
        accelerator: Looked up by name in shallowsim's own table.
        architecture: DeepSeek-V3 or R1; it knows no other.
        parallelism: ``tp`` GPUs per copy, experts over all GPUs.
        gpus_per_node: Not looked at; its table says what NVLink joins.
        max_sequences: Largest batch of one copy.
        flags: Which of its errors to keep.
        prefix_hit: Share of a prompt that is cached already.

    Raises:
        UnknownName: it has no such device.
        PerfModelError: another model.
        DoesNotFit: by its own memory check.
    """

    name = "shallowsim"
    breaks = frozenset({Promise.GROWS_WITH_BATCH})

    def __init__(
        self,
        accelerator: Accelerator | str,
        architecture: ModelArchitecture,
        parallelism: Parallelism,
        gpus_per_node: int | None = None,
        max_sequences: int = 1024,
        *,
        flags: CompatFlags | None = None,
        prefix_hit: float = 0.0,
    ) -> None:
        del gpus_per_node
        if architecture.name not in ("DeepSeek-V3", "DeepSeek-R1"):
            raise PerfModelError(
                f"shallowsim models DeepSeek-V3 and DeepSeek-R1, not {architecture.name}; "
                f"take the roofline"
            )
        flags = flags or CompatFlags()
        name = accelerator if isinstance(accelerator, str) else accelerator.name
        self.parallelism = parallelism
        self.formulas = ShallowFormulas(
            device(name, flags),
            parallelism.tp,
            parallelism.stage_gpus,
            flags,
            prefix_hit=prefix_hit,
        )
        if self.formulas.cache_tokens <= 0:
            raise DoesNotFit(
                f"{architecture.name} as {parallelism} leaves no memory for a cache on {name}, "
                f"by shallowsim's count; take more GPUs"
            )
        super().__init__(
            Limits(
                max_length=163_840,
                kv_capacity=int(self.formulas.cache_tokens) * parallelism.dp,
                max_sequences=max_sequences * parallelism.dp,
                kv_bytes_per_token=float(KV_BYTES * 61),
            )
        )

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] of a prompt of ``length`` [tokens], one per copy at a time.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        tokens = np.maximum(1.0, np.asarray(length, dtype=np.float64))
        return np.asarray(self.formulas.prefill(tokens).prompt * 1e-3)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Return island-seconds [s] of a prompt of ``length`` [tokens]: copies work side by side.

        Source: zartbot/shallowsim @ 0cec1f5.
        """
        return self.prefill_time(length) / self.parallelism.dp

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds of a step [s]; a copy has at least one sequence.

        Source: zartbot/shallowsim @ 0cec1f5.

        Args:
            sequences: Running sequences of the island [sequences].
            kv_tokens: Cached tokens of the island [tokens].
        """
        batch, cached = self._per_copy(sequences, kv_tokens)
        return np.asarray(self.formulas.decode(batch, cached).step * 1e-3)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return the longest step [s] of any smaller batch: at the end of every piece of the share.

        Source: docs/explanation/performance-model.md#other-models-of-the-same-island.

        Args:
            sequences: Largest batch of the island [sequences].
            kv_tokens: Cached tokens of the island [tokens].
        """
        batch, cached = self._per_copy(sequences, kv_tokens)
        longest = np.zeros_like(batch)
        ends, shares = self.formulas.pieces
        for low, high, share in zip((0.0, *ends), (*ends, np.inf), shares, strict=True):
            step = self.formulas.decode(np.minimum(batch, high), cached, np.asarray(share)).step
            longest = np.where(batch >= low, np.maximum(longest, step), longest)
        return longest * 1e-3

    def _per_copy(
        self, sequences: FloatArray, kv_tokens: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        batch, cached = np.broadcast_arrays(
            np.asarray(sequences, dtype=np.float64), np.asarray(kv_tokens, dtype=np.float64)
        )
        return np.maximum(1.0, batch / self.parallelism.dp), cached / self.parallelism.dp
