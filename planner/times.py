"""The model of times of an island: the roofline, with what measurements say of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel.calibration import PHASES, Calibrated, speaking
from archipelago.perfmodel.pipeline import Pipeline, Section, Typical, balanced_layers
from archipelago.perfmodel.roofline import Roofline
from archipelago.perfmodel.settings import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.calibration import Calibration
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.problem import ModelDemand
    from archipelago.planner.shapes import Shape


def times(
    shape: Shape, calibrations: Sequence[Calibration] = ()
) -> tuple[PerformanceModel, tuple[int, ...]]:
    """The model of times, and the layers that each part holds (none for islands of one pool).

    Raises:
        DoesNotFit: the weights need more memory than the island has.
    """
    own = _own(shape, calibrations)
    settings = EngineSettings(fits=tuple((name, one.fit()) for name, one in own.items()))
    model, layers = _roofline(shape, settings)
    if not own:
        return model, layers
    name = shape.demand.architecture.name
    learnt = [one.learnt(name, phase) for one in own.values() for phase in PHASES]
    return Calibrated(model, filter(None, learnt)), layers


def _own(shape: Shape, calibrations: Sequence[Calibration]) -> dict[str, Calibration]:
    """The calibration of each accelerator of the shape that has one for the model."""
    model = shape.demand.architecture.name
    names = dict.fromkeys(pool.accelerator.name for pool, _ in shape.sections)
    found = {name: speaking(calibrations, name, model) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def _roofline(shape: Shape, settings: EngineSettings) -> tuple[PerformanceModel, tuple[int, ...]]:
    demand = shape.demand
    if len(shape.sections) == 1:
        pool = shape.sections[0][0]
        alone = Roofline(
            pool.accelerator,
            demand.architecture,
            shape.parallelism,
            gpus_per_node=pool.gpus_per_node,
            max_sequences=demand.max_sequences,
            settings=settings,
        )
        return alone, ()
    stages = [Section(p.accelerator, gpus, 0, p.gpus_per_node) for p, gpus in shape.sections]
    tp = shape.parallelism.tp
    layers = balanced_layers(
        demand.architecture,
        stages,
        tp,
        str(shape.phase),
        _typical(demand),
        max_sequences=demand.max_sequences,
        settings=settings,
    )
    sections = [
        Section(p.accelerator, gpus, n, p.gpus_per_node)
        for (p, gpus), n in zip(shape.sections, layers, strict=True)
    ]
    pipeline = Pipeline(sections, demand.architecture, tp, demand.max_sequences, settings=settings)
    return pipeline, layers


def _typical(demand: ModelDemand) -> Typical:
    """What the layers of a pipeline are balanced for: a mean request, room for the longest."""
    lengths = demand.lengths
    longest = demand.ranges[-1].max - 1 + float(demand.lengths.moments(demand.ranges).output[-1])
    return Typical(
        length=float(lengths.probability @ lengths.length),
        output=float(lengths.probability @ lengths.output),
        sequences=float(demand.max_sequences),
        longest=longest,
    )
