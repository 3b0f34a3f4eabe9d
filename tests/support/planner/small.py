"""Problems and templates small enough for brute force, shared by the planner's tests."""

from decimal import Decimal

import numpy as np

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.workload.lengths import LengthDistribution, Range
from archipelago.planner.problem import ModelDemand, Phase, PlanningProblem, Pool
from archipelago.planner.templates.template import Template
from tests.support.planner.affine import Affine

RANGES = (Range(0, 100), Range(100, 200))


def lengths(shares: tuple[float, ...] = (0.5, 0.5)) -> LengthDistribution:
    """One atom in the middle of each range of 100 tokens, outputs of 10 tokens."""
    middle = np.array([50.0 + 100 * i for i in range(len(shares))])
    outputs = np.full(len(shares), 10.0)
    return LengthDistribution(middle, np.array(shares), outputs, outputs**2)


def demand(name: str = "m", shares: tuple[float, ...] = (0.5, 0.5), **more: object) -> ModelDemand:
    ranges = tuple(Range(100 * i, 100 * (i + 1)) for i in range(len(shares)))
    return ModelDemand(name, architecture("Llama-3.1-8B"), lengths(shares), ranges, **more)  # type: ignore[arg-type]


def problem(
    pools: dict[str, int], models: tuple[ModelDemand, ...] | None = None, **more: object
) -> PlanningProblem:
    """Pools of single GPUs at $1 each."""
    listed = tuple(
        Pool(name, accelerator("H20"), count, Decimal(1)) for name, count in pools.items()
    )
    return PlanningProblem("p", models or (demand(),), listed, **more)  # type: ignore[arg-type]


def template(
    pool: str,
    gpus: int,
    phase: Phase,
    rows: list[list[float]],
    *,
    model: str = "m",
    servable: list[bool] | None = None,
) -> Template:
    matrix: FloatArray = np.array(rows, dtype=np.float64)
    able = np.ones(matrix.shape[1], dtype=bool) if servable is None else np.array(servable)
    names = tuple(f"row{i}" for i in range(len(rows)))
    return Template(
        model,
        pool,
        phase,
        gpus,
        Parallelism(tp=gpus),
        64,
        names,
        matrix,
        able,
        Affine(),
        price=float(gpus),
    )
