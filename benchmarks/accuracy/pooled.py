"""What engines have in common: one fit to all closed loops, every series counting alike.

The catalogue's rows with the source ``loop-fits`` are its values. A series is an engine, a model
and an accelerator. To judge the default on a series, the fit is made again without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from archipelago.perfmodel.calibration.benches import ClosedLoopBench, loop_benches
from archipelago.perfmodel.calibration.fit import Parameter
from archipelago.perfmodel.calibration.measurements import EnginePoint, grouped, load
from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.efficiency import (
    ANY,
    KERNELS,
    OPERANDS,
    EngineFit,
    deciding,
    efficiency_rows,
    engine_fit,
)
from archipelago.perfmodel.model import FloatArray

SIGMA = 0.1
"""How far a model of all engines strays from one of them [log]."""

FEWEST = 5
"""Rows below which a series is neither fitted nor judged: gpt-oss on H100 with TensorRT-LLM."""

WORTH = 6.0
"""Independent rows that a series is worth: its rows share the error of engine and model."""

OWN = ("kv_mbu", "interference")
"""Values in which engines differ from each other: attention kernels, and prompts beside tokens."""

ENGINES = ("vllm", "sglang", "tensorrt-llm")

COMMON = (
    Parameter(("kv_mbu",), 0.8, 0.08, 0.4, 0.95),
    Parameter(("step",), 1.2e-3, 0.25, 1e-4, 2e-2),
    Parameter(("sequence",), 2e-5, 0.35, 1e-6, 2e-4),
    Parameter(("decode_layer",), 8e-6, 0.2, 1e-6, 1e-4),
    Parameter(("all_reduce_wait",), 3e-6, 0.35, 5e-7, 1e-4),
    Parameter(("interference",), 0.9, 0.1, 0.3, 1.5),
    Parameter(("expert_layer",), 2.5e-5, 0.3, 1e-6, 3e-4),
    Parameter(("expert_spread",), 0.8, 0.08, 0.5, 1.0),
    *(Parameter((f"{e}:{n}",), 1.0, 0.2, 0.3, 3.0) for e in ENGINES for n in OWN),
)
"""Values that all engines share, with the priors of kernels alone, and factors of each engine."""


@dataclass(frozen=True, eq=False)
class Series:
    """The closed loops of one engine with one model on one accelerator, by precision."""

    key: tuple[str, str, str]
    points: tuple[EnginePoint, ...]
    benches: tuple[ClosedLoopBench, ...]
    bases: tuple[EngineFit, ...]
    kernels: tuple[frozenset[str], ...]

    @property
    def measured(self) -> FloatArray:
        """Return measured times [s], shape (rows,)."""
        return np.concatenate([bench.measured for bench in self.benches])

    def residuals(self, values: dict[str, float]) -> FloatArray:
        """Return log(predicted / measured) of every row with the catalogue's ``values`` changed."""
        fits = zip(self.benches, self.fits(values), strict=True)
        predicted = [bench.predict(fit) for bench, fit in fits]
        return np.asarray(np.log(np.concatenate(predicted) / self.measured))

    def fits(self, values: dict[str, float]) -> list[EngineFit]:
        """Return the fit of each bench if the catalogue had these values.

        What it has of the kernels of the engine's version comes before them.
        """
        own = for_engine(values, self.key[1])
        made = []
        for base, kernels in zip(self.bases, self.kernels, strict=True):
            full = {
                each: value
                for name, value in own.items()
                for each in ([name] if hasattr(base.overheads, name) else _by_operand(name))
                if each not in kernels
            }
            made.append(base.replaced(full))
        return made


@cache
def all_series(root: Path) -> tuple[Series, ...]:
    """Return every series of closed loops, in the order of their keys."""
    rows = load(root).rows
    keyed = grouped(rows, lambda point: (point.accelerator, point.engine, point.model))
    usable = [points for points in keyed if len(points) >= FEWEST]
    return tuple(_series(each) for each in sorted(usable, key=lambda points: points[0].series))


def _series(points: Sequence[EnginePoint]) -> Series:
    first = points[0]
    ordered, benches, bases, kernels = [], [], [], []
    card = accelerator(first.accelerator)
    for rows in grouped(points, lambda p: (p.version, p.precision, p.parallelism, p.kv)):
        key = card, first.engine, rows[0].version or ANY
        ordered += rows
        benches += loop_benches(rows)
        bases.append(engine_fit(*key))
        kernels.append(_of_kernels(*key))
    name = (first.accelerator, first.engine, first.model)
    return Series(name, tuple(ordered), tuple(benches), tuple(bases), tuple(kernels))


def _of_kernels(card: Accelerator, engine: str, version: str) -> frozenset[str]:
    """Return the values that the catalogue has from kernels of the engine's version."""
    return frozenset(
        f"{operand}.{name}"
        for operand in OPERANDS
        for name, row in deciding(efficiency_rows(card, operand, engine, version)).items()
        if row.source == KERNELS
    )


def _by_operand(name: str) -> list[str]:
    return [f"{operand}.{name}" for operand in OPERANDS]


def pooled(
    series: Sequence[Series],
    without: Collection[tuple[str, str, str]] = (),
    start: FloatArray | None = None,
    parameters: Sequence[Parameter] = COMMON,
) -> dict[str, float]:
    """Return the values that explain all series but those ``without`` best, by name."""
    used = [each for each in series if each.key not in without]
    scales = [np.sqrt(WORTH / len(each.points)) / SIGMA for each in used]
    prior = np.log([p.value for p in parameters])
    spread = np.array([p.spread for p in parameters])

    def costs(logs: FloatArray) -> FloatArray:
        values = named(logs, parameters)
        parts = [_robust(k * each.residuals(values)) for k, each in zip(scales, used, strict=True)]
        return np.concatenate([*parts, (logs - prior) / spread])

    bounds = np.log([p.low for p in parameters]), np.log([p.high for p in parameters])
    first = prior if start is None else start
    found = least_squares(
        costs,
        np.clip(first, bounds[0] + 1e-6, bounds[1] - 1e-6),
        bounds=bounds,
        diff_step=1e-4,
        xtol=1e-4,
        ftol=1e-5,
    )
    return named(found.x, parameters)


def for_engine(values: dict[str, float], engine: str) -> dict[str, float]:
    """Return the values of an engine: those of all, times what is ``engine:name``."""
    made = {name: value for name, value in values.items() if ":" not in name}
    for name, factor in values.items():
        whose, _, what = name.partition(":")
        if what and whose == engine:
            made[what] *= factor
    return made


def _robust(residuals: FloatArray) -> FloatArray:
    """Return the same scaled so that its square is Cauchy's loss: a stray series does not pull."""
    square = float(residuals @ residuals) / WORTH
    return np.asarray(residuals * math.sqrt(math.log1p(square) / square))


def named(logs: FloatArray, parameters: Sequence[Parameter] = COMMON) -> dict[str, float]:
    """Return values by name from the logarithms of the parameters."""
    return {
        name: float(value)
        for parameter, value in zip(parameters, np.exp(logs), strict=True)
        for name in parameter.names
    }
