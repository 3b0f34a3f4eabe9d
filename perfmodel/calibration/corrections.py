"""Calibrations of one engine on one accelerator, their file, and the model that applies them.

A calibration has fitted efficiencies, which replace those of the catalogue, and *corrections*: a
factor on times per (accelerator, model, phase), with its interval from held-out groups.
``Calibrated`` is any performance model times its corrections.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..catalogue.accelerators import Accelerator
from ..catalogue.efficiency import ANY, EngineFit, check_names, engine_fit
from ..errors import MeasurementError
from ..model import FloatArray, PerformanceModel, Promise, broken, step_bound
from .intervals import Interval, assumed, interval

PHASES = ("prefill", "decode")

CALIBRATED = "calibrated "
"""Begins the name of a family whose times are corrected."""

_PRIOR_SPREAD = 0.2
"""How far the median error of an uncalibrated model strays, in logarithms: one group of
measurements moves the factor half-way if groups scatter as much."""


@dataclass(frozen=True)
class Correction:
    """Factor on the predicted times of a phase, and the interval around the corrected time.

    ``model`` is ``*`` for every model. ``rows`` and ``groups``: what it was learnt
    from; without any, it is an assumption.
    """

    accelerator: str
    model: str
    phase: str
    factor: float = 1.0
    interval: Interval = field(default_factory=assumed)
    rows: int = 0
    groups: int = 0

    @property
    def log_half_width(self) -> float:
        """Return half of the interval's width in logarithms."""
        return math.log(self.interval.high / self.interval.low) / 2


@dataclass(frozen=True)
class Calibration:
    """One engine on one accelerator: ``values`` by their names in ``EngineFit``.

    ``models``: those that were measured; none says that it is for any.
    ``residuals``: by group, the median of predicted / measured - 1 with the group held out.
    ``inherited``: values that the measurements moved by less than a tenth of their prior's spread.
    """

    accelerator: str
    engine: str = ANY
    version: str = ANY
    models: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    corrections: tuple[Correction, ...] = ()
    residuals: Mapping[str, float] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        check_names(self.values)

    def is_of(self, engine: str, version: str) -> bool:
        """Return whether it applies to an engine in a version; any of either takes any."""
        pairs = ((self.engine, engine), (self.version, version))
        return all(ANY in pair or pair[0] == pair[1] for pair in pairs)

    def fit(self, accelerator: Accelerator) -> EngineFit:
        """Return the catalogue's efficiencies with the calibrated values in their place.

        Args:
            accelerator: That of this name, which may be one of the user's own.
        """
        return engine_fit(accelerator, self.engine, self.version).replaced(self.values)

    def correction(self, model: str, phase: str) -> Correction:
        """Return the correction of a model and phase, else of all models, else the assumption."""
        return self.learnt(model, phase) or Correction(self.accelerator, ANY, phase)

    def learnt(self, model: str, phase: str) -> Correction | None:
        """Return the learnt correction of a model and phase, else of all models."""
        for name in (model, ANY):
            for each in self.corrections:
                if (each.model, each.phase) == (name, phase):
                    return each
        return None


class Calibrated:
    """Any performance model times a correction per phase; implements ``PerformanceModel``.

    A constant factor keeps every promise that the model makes: convex stays convex, and a bound
    on its step time is the factor times the old one. An island of several accelerators takes the
    largest of their factors, 1 being that of those without a correction: rather too slow.
    """

    def __init__(self, model: PerformanceModel, corrections: Iterable[Correction]) -> None:
        """Correct ``model`` with at most one correction per accelerator and phase."""
        self.model = model
        self._corrections: dict[str, dict[str, Correction]] = {phase: {} for phase in PHASES}
        for each in corrections:
            self._corrections[each.phase][each.accelerator] = each

    @property
    def name(self) -> str:
        """Return the family, and that it is calibrated."""
        return CALIBRATED + self.model.name

    @property
    def max_length(self) -> int:
        """Return the longest sequence that the architecture accepts [tokens]."""
        return self.model.max_length

    def max_sequences(self) -> int:
        """Return the largest batch of the island [sequences]."""
        return self.model.max_sequences()

    def kv_capacity(self) -> int:
        """Return KV-cache tokens of the island [tokens]."""
        return self.model.kv_capacity()

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Return bytes of cache of a prompt [B]."""
        return self.model.kv_bytes(length)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds to the first token of one prompt."""
        return self.factor("prefill") * self.model.prefill_time(length)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Return island-seconds of one prompt."""
        return self.factor("prefill") * self.model.prefill_occupancy(length)

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds per token with ``sequences`` running and ``kv_tokens`` cached."""
        step = self.model.decode_step_time(sequences, kv_tokens)
        return self.factor("decode") * step

    @property
    def breaks(self) -> frozenset[Promise]:
        """Return the promises that the model itself does not keep."""
        return broken(self.model)

    def decode_step_bound(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return a step time above this one that keeps every promise."""
        bound = step_bound(self.model)(sequences, kv_tokens)
        return self.factor("decode") * bound

    def factor(self, phase: str) -> float:
        """Return the factor on times of a phase, ``prefill`` or ``decode``."""
        corrections = self._corrections[phase]
        others = {a.name for a in getattr(self.model, "accelerators", ())} - set(corrections)
        factors = [each.factor for each in corrections.values()]
        return max([*factors, 1.0] if others or not corrections else factors)

    def log_half_widths(self, phase: str) -> dict[str, float]:
        """Return half the width of the interval of log(time), by corrected accelerator."""
        return {name: each.log_half_width for name, each in self._corrections[phase].items()}


def learn(
    accelerator: str, model: str, phase: str, residuals: FloatArray, groups: FloatArray
) -> Correction:
    """Return the correction of times from observed residuals.

    The median over groups of log(predicted / measured), drawn towards no correction as far as
    groups scatter: n / (n + s^2 / t^2) of it counts, s the scatter of groups and t that of
    uncalibrated models (the posterior mean of a normal with known variances).

    Args:
        accelerator: Whose times they are.
        model: Of which model; ``*`` for all.
        phase: ``prefill`` or ``decode``.
        residuals: log(predicted / measured), shape (rows,); of groups the fit did not see, if any.
        groups: What was measured together, shape (rows,).
    """
    names = np.unique(groups)
    medians = np.array([np.median(residuals[groups == name]) for name in names])
    scatter = float(np.var(medians, ddof=1)) if len(names) > 1 else _PRIOR_SPREAD**2
    share = len(names) / (len(names) + scatter / _PRIOR_SPREAD**2)
    moved = share * float(np.median(medians))
    around = interval(residuals - moved, groups)
    rows, count = len(residuals), len(names)
    return Correction(accelerator, model, phase, math.exp(-moved), around, rows, count)


def text(calibrations: Sequence[Calibration]) -> str:
    """Return the calibrations as the text of a file."""
    document = {"calibrations": [plain(each) for each in calibrations]}
    content: str = yaml.safe_dump(document, sort_keys=False)
    return content


def write(calibrations: Sequence[Calibration], path: Path) -> None:
    """Write a calibration file (YAML).

    Raises:
        MeasurementError: the file cannot be written.
    """
    try:
        path.write_text(text(calibrations), encoding="utf-8")
    except OSError as error:
        raise MeasurementError(f"{path}: cannot be written: {error}") from error


def calibration_for(
    calibrations: Iterable[Calibration],
    accelerator: str,
    model: str,
    engine: tuple[str, str] = (ANY, ANY),
) -> Calibration | None:
    """Return the calibration of an accelerator and model, else the accelerator's for any model.

    Only of ``engine``: its name and version.
    """
    candidates = [
        each for each in calibrations if each.accelerator == accelerator and each.is_of(*engine)
    ]
    measured = [each for each in candidates if model in each.models]
    general = [each for each in candidates if not each.models]
    return next(iter(measured + general), None)


def plain(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as in its file: six digits of values, four of residuals and factors."""
    document = asdict(calibration)
    document["values"] = {name: float(f"{v:.6g}") for name, v in calibration.values.items()}
    document["residuals"] = {n: round(v, 4) for n, v in calibration.residuals.items()}
    for correction in document["corrections"]:
        correction["factor"] = round(correction["factor"], 4)
        around = correction["interval"]
        around |= {"low": round(around["low"], 4), "high": round(around["high"], 4)}
    return document | {
        name: list(document[name]) for name in ("models", "corrections", "inherited")
    }
