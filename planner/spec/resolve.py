"""From a valid spec to a PlanningProblem: catalogue names looked up, lengths cut into ranges.

The order of models, pools and domains in a file has no meaning; the problem has them by name, so
that equal specs give byte-identical plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import (
    Domain,
    ModelDemand,
    PlanningProblem,
    Pool,
    SolverSettings,
    Targets,
)
from archipelago.planner.spec.types import exact, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.lengths import LengthDistribution, Range
    from archipelago.planner.spec import schema, workload

MILLION = 1_000_000


Read = TypeVar("Read")
Resolved = TypeVar("Resolved")


def to_problem(name: str, spec: schema.ServingPlanSpec) -> PlanningProblem:
    """Resolve a valid spec into what the planner takes.

    Raises:
        SpecError: an accelerator or architecture is not in the catalogue; lists each with its
            path and the names that are known.
    """
    problems: list[tuple[str, str]] = []
    models = [
        _attempt(problems, f"spec.models[{index}].architecture", _model, model)
        for index, model in enumerate(spec.models)
    ]
    pools = [
        _attempt(problems, f"spec.pools[{index}].accelerator", _pool, pool)
        for index, pool in enumerate(spec.pools)
    ]
    if problems:
        raise SpecError(problems)
    return PlanningProblem(
        name=name,
        models=tuple(sorted((m for m in models if m), key=lambda m: m.name)),
        pools=tuple(sorted((p for p in pools if p), key=lambda p: p.name)),
        budget_per_hour=None if spec.budget_per_hour is None else exact(spec.budget_per_hour),
        min_headroom=_optional(spec.min_headroom),
        max_unservable=number(spec.max_unservable),
        solver=SolverSettings(
            strategy=spec.planner.strategy,
            time_limit=float(spec.planner.time_limit_seconds),
            gap=spec.planner.gap_parts_per_million / MILLION,
            seed=spec.planner.seed,
        ),
    )


def _attempt(
    problems: list[tuple[str, str]], path: str, resolve: Callable[[Read], Resolved], item: Read
) -> Resolved | None:
    """Resolve one item, or note what the catalogue says about it."""
    try:
        return resolve(item)
    except PerfModelError as error:
        problems.append((path, str(error)))
        return None


def _model(model: schema.Model) -> ModelDemand:
    from archipelago.perfmodel.architecture import architecture

    found = architecture(model.architecture, model.precision)
    lengths = _lengths(model.workload)
    return ModelDemand(
        name=model.name,
        architecture=found,
        lengths=lengths,
        ranges=_ranges(model.workload, lengths, found),
        rate=_optional(model.requests_per_second),
        weight=float(model.weight),
        targets=Targets(
            ttft=_seconds(model.slo.ttft_milliseconds), tpot=_seconds(model.slo.tpot_milliseconds)
        ),
        max_sequences=model.max_sequences,
    )


def _pool(pool: schema.Pool) -> Pool:
    from archipelago.perfmodel.accelerators import accelerator

    return Pool(
        name=pool.name,
        accelerator=accelerator(pool.accelerator),
        count=pool.count,
        price_per_gpu_hour=exact(pool.price_per_gpu_hour or "0"),
        gpus_per_node=pool.gpus_per_node,
        domains=tuple(Domain(d.name, d.nodes) for d in sorted(pool.domains, key=lambda d: d.name)),
        island_sizes=pool.island_sizes,
    )


def _lengths(given: workload.Workload) -> LengthDistribution:
    from archipelago.perfmodel.lengths import Bin, from_histogram, log_normal

    mean, square = _outputs(given.output_tokens)
    if given.log_normal is not None:
        shape = given.log_normal
        return log_normal(shape.median, number(shape.sigma), shape.min, shape.max, mean, square)
    if given.histogram is None:
        raise AssertionError("a rule guarantees one of histogram and logNormal")
    bins = []
    for b in given.histogram.bins:
        own = (number(b.output_mean), _optional(b.output_mean_square)) if b.output_mean else None
        output, output_square = own or (mean, square)
        bins.append(
            Bin(b.min, b.max, float(b.weight), _optional(b.input_mean), output, output_square)
        )
    return from_histogram(bins)


def _outputs(given: workload.OutputTokens | None) -> tuple[float, float | None]:
    if given is None:
        return 0.0, None  # never used: a rule guarantees that every bin has its own
    return number(given.mean), _optional(given.mean_square)


def _ranges(
    given: workload.Workload, lengths: LengthDistribution, model: ModelArchitecture
) -> tuple[Range, ...]:
    from archipelago.perfmodel import ranges

    cut = {
        "Width": ranges.equal_width,
        "Probability": ranges.equal_probability,
        "Loss": ranges.least_loss,
    }[given.ranges.spacing]
    return cut(lengths, given.ranges.count, min(_longest(given), model.max_length))


def _longest(given: workload.Workload) -> int:
    """Input length below which every request of the workload lies [tokens]."""
    if given.log_normal is not None:
        return given.log_normal.max
    if given.histogram is None:
        raise AssertionError("a rule guarantees one of histogram and logNormal")
    return max(b.max for b in given.histogram.bins if b.weight > 0)


def _optional(text: str | None) -> float | None:
    return None if text is None else number(text)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
