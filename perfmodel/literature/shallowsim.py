"""Devices of the shallowsim-compatible model, and what it is known to get wrong.

The formulas are in ``shallowsim.py``. Each defect can be switched off by itself, to see what it
changes; with all of them on the model reproduces shallowsim's printed outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from archipelago.perfmodel import catalogue

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

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
class Defects:
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
    def none(cls) -> Defects:
        """Every one switched off."""
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
        """Peak of the feed-forward: FP4 where there is one, else FP8 [TFLOP/s]."""
        return self.fp4 or self.fp8

    @property
    def usable(self) -> float:
        """Memory that weights and cache may take [GiB, as shallowsim counts]."""
        return _CACHE_SHARE * self.memory

    def rows(self, defects: Defects) -> tuple[FloatArray, FloatArray]:
        """Upper ends of the pieces of the grouped product's share, and the shares."""
        like_h20 = self.name.startswith("H20") and (self.name != "H200" or defects.h200_as_h20)
        return (_H20_ROWS, _H20_SHARE) if like_h20 else (_ROWS, _SHARE)

    @cached_property
    def prefill_share(self) -> float:
        """Share of the multiprocessors that communication leaves to compute."""
        return (self.sm - self.comm_sm) / self.sm


def device(name: str, defects: Defects) -> Device:
    """The device of that name.

    Raises:
        UnknownName: lists the known ones.
    """
    document = catalogue.read("shallowsim.yaml")
    row: dict[str, Any] = catalogue.find("device of shallowsim", document["devices"], name)
    canonical = next(known for known in document["devices"] if known.casefold() == name.casefold())
    if not defects.device_table:
        fixes = document["corrected"].get(canonical, {})
        row = row | {key: value for key, value in fixes.items() if key != "source"}
    return Device(canonical, **row)
