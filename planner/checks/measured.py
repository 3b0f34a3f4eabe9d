"""Times as the calibrations of the problem have them, on top of the catalogue's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel.calibration import PHASES, Calibrated
from archipelago.perfmodel.uncertainty import Refittable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.calibration import Calibration, Correction
    from archipelago.perfmodel.model import PerformanceModel


def measured(
    island: PerformanceModel, model: str, calibrations: Sequence[Calibration]
) -> PerformanceModel:
    """The island with the measured values of every accelerator in it; as it is where none has any.

    Args:
        island: Times by the catalogue.
        model: Name of its architecture.
        calibrations: Of the problem.
    """
    corrections: list[Correction] = []
    accelerators = island.accelerators if isinstance(island, Refittable) else ()
    for accelerator in accelerators:
        own = [c for c in calibrations if c.accelerator == accelerator.name]
        speaks = [c for c in own if model in c.models] or [c for c in own if not c.models]
        if speaks and isinstance(island, Refittable):
            island = island.refitted(accelerator, speaks[0].fit().values())
            learnt = [speaks[0].learnt(model, phase) for phase in PHASES]
            corrections += [each for each in learnt if each is not None]
    return Calibrated(island, corrections) if corrections else island


def stated_name(name: str, calibrations: Sequence[Calibration]) -> str:
    """What a plan calls its model of times: one family, and whether anything is calibrated."""
    family = name.removeprefix("calibrated ")
    return f"calibrated {family}" if calibrations else family
