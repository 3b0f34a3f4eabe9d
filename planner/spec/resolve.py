"""From a valid spec to a PlanningProblem: catalogue names looked up, lengths cut into ranges.

The order of models, pools and domains in a file has no meaning; the problem has them by name, so
that equal specs give byte-identical plans.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from archipelago.perfmodel import ranges
from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import ModelArchitecture, architecture
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.lengths import (
    Bin,
    LengthDistribution,
    Range,
    from_histogram,
    log_normal,
)
from archipelago.planner.errors import SpecError
from archipelago.planner.problem import (
    STAGES,
    TIME_LIMITS,
    Billing,
    Domain,
    Link,
    ModelDemand,
    Phase,
    PlanningProblem,
    Pool,
    SolverSettings,
    Targets,
)
from archipelago.planner.spec.offline import nodes_of_equal_name, pipelines_apart
from archipelago.planner.spec.types import exact, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.spec import models, network, pools, schema, workload

MILLION = 1_000_000
BYTES_PER_GIGABIT = 1e9 / 8
PHASES = {
    "Disaggregated": STAGES,
    "Collocated": (Phase.MIXED,),
    "Either": tuple(Phase),
}
"""``serving`` of a model -> what its islands may be."""
NOT_FOUND = (
    "only the operator, in the cluster, finds the nodes of a selector: to plan from a file, state "
    "count instead (`kubectl get nodes -o json | archipelago inventory -f -` prints it)"
)
"""Remedy for a pool whose nodes nobody has looked up."""


def to_problem(name: str, spec: schema.ServingPlanSpec) -> PlanningProblem:
    """Resolve a valid spec into what the planner takes.

    Raises:
        SpecError: an accelerator or architecture is not in the catalogue, or the nodes of a pool
            have not been looked up; lists each with its path and what is known or to be done.
    """
    problems: list[tuple[str, str]] = []
    demands, inventory = [], []
    for index, model in enumerate(spec.models):
        at = f"spec.models[{index}]"
        with _noting(problems, f"{at}.architecture", f"{at}.workload"):
            demands.append(_model(model))
    for index, pool in enumerate(spec.pools):
        at = f"spec.pools[{index}].accelerator"
        if pool.count is None:
            problems.append((f"spec.pools[{index}].nodeSelector", NOT_FOUND))
            continue
        with _noting(problems, at, at):
            inventory.append(_pool(pool, pool.count))
    problems.extend([*pipelines_apart(spec), *nodes_of_equal_name(spec)])
    if problems:
        raise SpecError(problems)
    return PlanningProblem(
        name=name,
        models=tuple(sorted(demands, key=lambda m: m.name)),
        pools=tuple(sorted(inventory, key=lambda p: p.name)),
        budget_per_hour=None if spec.budget_per_hour is None else exact(spec.budget_per_hour),
        min_headroom=_least_headroom(spec),
        max_unservable=number(spec.max_unservable),
        solver=SolverSettings(
            strategy=spec.planner.strategy,
            time_limit=float(spec.planner.time_limit_seconds or TIME_LIMITS[spec.planner.strategy]),
            gap=spec.planner.gap_parts_per_million / MILLION,
            seed=spec.planner.seed,
        ),
        minimise_cost=spec.objective == "MinimiseCost",
        links=_links(spec),
        pipelines=tuple(sorted(pipeline.pools for pipeline in spec.pipelines)),
    )


def _least_headroom(spec: schema.ServingPlanSpec) -> float | None:
    """The least cost of serving nothing is nothing, so that the stated rates are the default."""
    if spec.min_headroom is None and spec.objective == "MinimiseCost":
        return 1.0
    return _optional(spec.min_headroom)


def _links(spec: schema.ServingPlanSpec) -> tuple[Link, ...]:
    stated = () if spec.network is None else spec.network.links
    found = (_link(link) for link in stated)
    return tuple(sorted(found, key=lambda link: link.classes))


def _link(link: network.Link) -> Link:
    one, other = sorted(link.classes)
    return Link((one, other), number(link.gigabits_per_second) * BYTES_PER_GIGABIT)


@contextmanager
def _noting(problems: list[tuple[str, str]], named: str, computed: str) -> Iterator[None]:
    """Note what the catalogue (``named``) or the numbers (``computed``) refuse, and go on."""
    try:
        yield
    except UnknownName as error:
        problems.append((named, str(error)))
    except PerfModelError as error:
        problems.append((computed, str(error)))


def _model(model: models.Model) -> ModelDemand:
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
        phases=PHASES[model.serving],
        max_utilisation=number(model.max_utilisation),
    )


def _pool(pool: pools.Pool, count: int) -> Pool:
    return Pool(
        name=pool.name,
        accelerator=accelerator(pool.accelerator),
        count=count,
        price_per_gpu_hour=exact(pool.price_per_gpu_hour or "0"),
        gpus_per_node=pool.gpus_per_node,
        domains=tuple(
            Domain(d.name, d.nodes, d.domain_class)
            for d in sorted(pool.domains, key=lambda d: d.name)
        ),
        island_sizes=pool.island_sizes,
        max_count=pool.max_count,
        billing=Billing(pool.billing),
        nic_per_gpu=_nic_per_gpu(pool),
    )


def _nic_per_gpu(pool: pools.Pool) -> float | None:
    """Bytes per second, GPU and direction; the spec states gigabits of a whole node."""
    if pool.nic_gigabits_per_second is None:
        return None
    return number(pool.nic_gigabits_per_second) * BYTES_PER_GIGABIT / (pool.gpus_per_node or 1)


def _lengths(given: workload.Workload) -> LengthDistribution:
    if given.log_normal is not None:
        shape, outputs = given.log_normal, given.output_tokens
        if outputs is None:
            raise AssertionError("a rule guarantees outputTokens beside logNormal")
        return log_normal(
            median=shape.median,
            sigma=number(shape.sigma),
            minimum=shape.min,
            maximum=shape.max,
            output_mean=number(outputs.mean),
            output_square=_optional(outputs.mean_square),
        )
    return from_histogram([_bin(b, given.output_tokens) for b in _bins(given)])


def _bin(given: workload.Bin, others: workload.OutputTokens | None) -> Bin:
    """A bin with its own outputs, or with those of the workload."""
    mean, square = given.output_mean, given.output_mean_square
    if mean is None:
        if others is None:
            raise AssertionError("a rule guarantees outputTokens where a bin has no outputMean")
        mean, square = others.mean, others.mean_square
    return Bin(
        min=given.min,
        max=given.max,
        weight=float(given.weight),
        output_mean=number(mean),
        input_mean=_optional(given.input_mean),
        output_square=_optional(square),
    )


def _bins(given: workload.Workload) -> tuple[workload.Bin, ...]:
    if given.histogram is None:
        raise AssertionError("a rule guarantees one of histogram and logNormal")
    return given.histogram.bins


def _ranges(
    given: workload.Workload, lengths: LengthDistribution, model: ModelArchitecture
) -> tuple[Range, ...]:
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
    return max(b.max for b in _bins(given) if b.weight > 0)


def _optional(text: str | None) -> float | None:
    return None if text is None else number(text)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
