"""Uncertainty of times: 90 % intervals from the intervals of the efficiencies.

Each value of an engine's fit has a relative half-width u (``efficiency.uncertainties``). At
value (1 + u) a time changes by a factor. The logarithms of these factors add as squares, with that
of the formulas' own error, of the data sheet and of the model's shape (``uncertainty`` of both):
values are taken as independent and log-normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import LatentAttention, ModelArchitecture
from ..catalogue.efficiency import form_uncertainty, uncertainties
from ..model import PerformanceModel
from ..roofline.settings import EngineSettings
from .corrections import Calibrated

LEVEL = 0.9
"""Probability that an interval stands for."""


@runtime_checkable
class Refittable(Protocol):
    """A model whose efficiencies can be changed by name, accelerator by accelerator."""

    architecture: ModelArchitecture
    settings: EngineSettings

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return the accelerators that its times depend on."""

    def refitted(self, accelerator: Accelerator, values: Mapping[str, float]) -> PerformanceModel:
        """Return the same island with some values of ``EngineFit`` changed on one accelerator."""


def log_half_widths(
    model: PerformanceModel, seconds: Callable[[PerformanceModel], float], phase: str
) -> dict[str, float]:
    """Return half the width of the 90 % interval of log(time), by the accelerator it comes from.

    The time lies between t exp(-w) and t exp(w). Empty if the model states nothing about its
    efficiencies.

    Args:
        model: The island.
        seconds: The time in question, of any model of the same kind.
        phase: ``prefill`` or ``decode``: which intervals a calibrated model is asked for.
    """
    if isinstance(model, Calibrated):
        calibrated = model.log_half_widths(phase)
        if {a.name for a in getattr(model.model, "accelerators", ())} <= set(calibrated):
            return calibrated
        return log_half_widths(model.model, seconds, phase) | calibrated
    if not isinstance(model, Refittable):
        return {}
    now, rest = seconds(model), math.log1p(form_uncertainty())
    settings, widths = model.settings, {}
    for accelerator in model.accelerators:
        relative = uncertainties(accelerator, settings.engine, settings.version)
        doubts = (accelerator.uncertainty, model.architecture.uncertainty)
        squares = [math.log1p(doubt) ** 2 for doubt in doubts]
        for name, value in settings.on(accelerator).values().items():
            if value and _matters(name, model.architecture, accelerator):
                moved = model.refitted(accelerator, {name: value * (1 + relative[name])})
                squares.append(math.log(seconds(moved) / now) ** 2)
        widths[accelerator.name] = math.sqrt(math.fsum(squares) + rest**2)
    return widths


def _matters(name: str, architecture: ModelArchitecture, accelerator: Accelerator) -> bool:
    """Return whether times of the model can depend on the value at all."""
    operand, _, field = name.rpartition(".")
    precision = architecture.precision
    used = {accelerator.operand(t) for t in (precision.compute, precision.expert_compute, "bf16")}
    if operand and operand not in used:
        return False
    if field.startswith("expert"):
        return architecture.experts is not None
    latent = isinstance(architecture.attention, LatentAttention)
    if field in ("latent_mfu", "latent_prefill_mfu"):
        return latent
    if field.startswith(("prefill_attention", "decode_attention")):
        return not latent
    return field != "interference"
