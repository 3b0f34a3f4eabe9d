"""Shallowsim's times of DeepSeek-V3 and R1 on one device; ``shallowsim.py`` makes a model of them.

Letters: D hidden size, H heads, r_q, r_kv latent ranks, d_n, d_r, d_v head dimensions, F_d, F_e
widths of the dense feed-forward and of an expert, E experts of which a token visits k. Times in
ms inside, as there; seconds at the border.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.shallowdevices import ETA, Defects, Device

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

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
    """Times of a layer's parts and of its communication [ms per layer]."""

    mla: FloatArray
    dense: FloatArray
    sparse_mla: FloatArray
    shared: FloatArray
    routed: FloatArray
    combine: FloatArray
    dispatch: FloatArray

    @property
    def sparse(self) -> FloatArray:
        """A layer with experts, without what communication adds [ms]."""
        return self.sparse_mla + self.shared + self.routed


class PrefillParts(Parts):
    """One prompt's parts [ms per layer], its total and what it leaves waiting [ms]."""

    @property
    def compute(self) -> FloatArray:
        """All layers without what communication adds [ms]."""
        return _DENSE * (self.mla + self.dense) + _SPARSE * self.sparse

    @property
    def total(self) -> FloatArray:
        """Combine hides behind the next attention, dispatch behind the routed experts [ms]."""
        first = np.maximum(0.0, self.combine - self.sparse_mla - self.shared)
        second = np.maximum(0.0, self.dispatch - self.routed)
        return np.asarray(self.compute + _SPARSE * (first + second))


class DecodeParts(Parts):
    """One step's parts [ms per layer]; ``mla`` with the reading of the cache."""

    @property
    def total(self) -> FloatArray:
        """The step: communication hides behind attention and shared expert [ms]."""
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
    defects: Defects = field(default_factory=Defects)
    narrow_combine: bool = True
    prefix_hit: float = 0.563

    def prefill(self, length: FloatArray) -> PrefillParts:
        """A prompt of ``length`` tokens on each copy."""
        S, gpu, hit = length, self.device, self.prefix_hit
        new = S if self.defects.computed_hits else S * (1 - hit)
        pairs = S * new if self.defects.whole_square else new * (S - new / 2)
        gemm = new * (_D * _RQ + _RQ * _H * (_DN + _DR)) + (1 - hit) * S * _D * (_RKV + _DR)
        gemm = gemm + S * _RKV * _H * (_DN + _DV)
        core = _H * pairs * (_DR + _DN + _DV) + new * _H * _DV * _D
        mla = self._mla(gemm, core, gpu.prefill_share)
        rows = new / self.tp
        best, held = gpu.prefill_share * gpu.best, _E / self.ep * _EXPERT_BYTES
        dispatch, combine = self._prefill_exchange(new)
        return PrefillParts(
            mla=mla,
            dense=_flops(3 * new * _D * _FD, best) + self._read(_FFN_BYTES),
            sparse_mla=self._sliced(mla, new),
            shared=_flops(3 * rows * _D * _FE, best) + self._read(_EXPERT_BYTES),
            routed=_flops(3 * _K * rows * _D * _FE, best) + self._read(held),
            combine=combine,
            dispatch=dispatch,
        )

    def decode(
        self, batch: FloatArray, cached: FloatArray, share: FloatArray | None = None
    ) -> DecodeParts:
        """A step of ``batch`` sequences per copy with ``cached`` tokens in all of them.

        ``share`` of the peak in the products of experts; None: by the rows of an expert.
        """
        gpu, held = self.device, -(-_E // self.ep)
        share = self.share(batch) if share is None else share
        gemm = batch * (_D * _RQ + _RQ * _H * _DR + _H * (_RQ * _DN + _DN * _RKV))
        core = _H * cached * (_DR + 2 * _RKV) + batch * (_H * _DV * _RKV + _H * _DV * _D)
        cache = self._read_cache(cached * KV_BYTES)
        mla = self._mla(gemm, core, 1.0)
        weight = _EXPERT_BYTES / (2 if gpu.fp4 else 1)
        expert = _flops(3 * batch * _D * _FE, share * gpu.best)  # both micro-batches together
        dispatch, combine = self._decode_exchange(batch)
        return DecodeParts(
            mla=mla + cache,
            dense=_flops(3 * batch * _D * _FD, gpu.best) + self._read(_FFN_BYTES),
            sparse_mla=self._sliced(mla, batch) + cache,
            shared=expert + _MICRO * self._read(weight),
            routed=_K * expert + _MICRO * held * self._read(weight),
            combine=combine,
            dispatch=dispatch,
        )

    def share(self, batch: FloatArray) -> FloatArray:
        """Share of the peak that grouped products reach: a step function of the batch."""
        ends, shares = self.device.rows(self.defects)
        return np.asarray(shares[np.searchsorted(ends, self._rounded(batch))])

    @cached_property
    def pieces(self) -> tuple[FloatArray, FloatArray]:
        """Batches per copy at which the share changes, and the share below each; last: above."""
        ends, shares = self.device.rows(self.defects)
        return ends / self._rows_per_sequence, shares

    @property
    def cache_tokens(self) -> float:
        """Tokens of cache that one GPU holds; negative where the weights do not fit."""
        held = -(-_E // self.ep) + 1
        weights = _MLA_MIB * 61 / (1024 * self.tp) + _EXPERT_MIB * _SPARSE * held / 1024
        divided = self.tp if self.defects.divided_cache else 1
        return (self.device.usable - _OTHER_GIB - weights) * 2**30 / (KV_BYTES * 61 * divided)

    @property
    def _rows_per_sequence(self) -> float:
        """Rows of one expert in a micro-batch, per sequence of the batch."""
        return _K / _MICRO / -(-_E // self.ep)

    def _rounded(self, batch: FloatArray) -> FloatArray:
        """Rows of an expert, strictly up to the next power of two."""
        rows = np.maximum(batch * self._rows_per_sequence, 1.0)
        return np.asarray(2.0 ** (np.floor(np.log2(rows)) + 1))

    def _mla(self, gemm: FloatArray, core: FloatArray, left: float) -> FloatArray:
        """One attention block [ms]; FP4 GPUs run projections at the peak and read no weights."""
        gpu = self.device
        attended = _flops(core, _ATTENTION * left * gpu.fp16)
        if gpu.fp4:
            return _flops(gemm, left * gpu.fp4) + attended
        return _flops(gemm, _ATTENTION * left * gpu.fp8) + attended + self._read(_MLA_BYTES)

    def _sliced(self, mla: FloatArray, tokens: FloatArray) -> FloatArray:
        """The attention of a sparse layer over ``tp`` GPUs."""
        if self.tp == 1:
            return mla + _LAUNCH
        return mla / self.tp + self._move(2 * _D * tokens, self.device.nvlink) + _REDUCE + _LAUNCH

    def _prefill_exchange(self, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Dispatch (FP8) and combine (BF16) of one layer."""
        gpu = self.device
        if gpu.domain == 8:  # noqa: PLR2004  # four nodes of eight, by group-limited routing
            sent = 3 * (8 / self.tp) * tokens * (_K / 8) * _D
            way = self._move(sent, 8 * gpu.nic)
        else:
            leaving = (_E - -(-_E // gpu.domain)) / _E
            way = self._move(leaving * _K * (tokens / self.tp) * _D, gpu.nvlink)
        halved = self.defects.halved_dispatch or gpu.fp4 > 0
        dispatch = way / 2 if halved else way
        return dispatch + _PREFILL_EXCHANGE, 2 * way + _PREFILL_EXCHANGE

    def _decode_exchange(self, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        gpu = self.device
        inside = self.ep <= gpu.domain if gpu.domain > 8 else self.ep == 8  # noqa: PLR2004
        way = self._move(batch * _D * _K, gpu.nvlink if inside else gpu.nic)
        wide = 1 if self.narrow_combine and gpu.fp4 else 2
        return way + _DECODE_EXCHANGE, wide * way + _DECODE_EXCHANGE

    def _move(self, size: FloatArray, rate: float) -> FloatArray:
        """Bytes over a link of ``rate`` GB/s [ms]."""
        unit = 2.0**20 if self.defects.mebibytes else 1e6
        return np.asarray(size / unit / (ETA * rate))

    def _read(self, size: float) -> float:
        unit = 2.0**20 if self.defects.mebibytes else 1e6
        return size / unit / (ETA * self.device.bandwidth)

    def _read_cache(self, size: FloatArray) -> FloatArray:
        unit = 2.0**30 if self.defects.mebibytes else 1e9
        return np.asarray(size / unit / (ETA * self.device.bandwidth) * 1000)


def _flops(macs: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Multiply-accumulates at ``rate`` TFLOP/s, discounted [ms]."""
    return np.asarray(2 * macs / 1e9 / (ETA * rate))
