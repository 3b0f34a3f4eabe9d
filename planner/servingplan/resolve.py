"""Resolve a valid spec into a PlanningProblem: look up names, cut lengths into ranges.

The order of models, pools and domains in a file has no meaning; the problem has them sorted by
name, so that equal specs give byte-identical plans.

Two rules between pools are checked here and not by the API server, whose rules have a cost limit:
comparing all domains of all pools is above it. A spec that breaks them is refused by the command
line, and gets the reason ``InvalidSpec`` from the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import ModelArchitecture, architecture
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.workload import ranges
from archipelago.perfmodel.workload.lengths import (
    Bin,
    LengthDistribution,
    Range,
    from_histogram,
    log_normal,
)

from ..errors import SpecError
from ..problem import (
    RENTED,
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
from . import models, pools, schema, workload
from .pools import Pool as PoolSpec
from .schema import ServingPlanSpec


def pipelines_apart(spec: ServingPlanSpec) -> Iterator[tuple[str, str]]:
    """Yield pipelines whose pools have no class of domains in common: no island fits them."""
    classes = {pool.name: set(pool.classes) for pool in spec.pools}
    for index, pipeline in enumerate(spec.pipelines):
        if not set.intersection(*(classes[name] for name in pipeline.pools)):
            each = (f"{n} ({', '.join(sorted(classes[n]))})" for n in pipeline.pools)
            remedy = (
                f"{' and '.join(each)} have no class in common, and an island stays inside one: "
                "remove the pipeline, or correct the classes of the domains"
            )
            yield f"spec.pipelines[{index}].pools", remedy


def nodes_of_equal_name(spec: ServingPlanSpec) -> Iterator[tuple[str, str]]:
    """Yield pools whose nodes would have equal names: a with domain b, and a-b without domains.

    Plans and routing tables identify a node by its name alone.
    """
    owner: dict[str, str] = {}
    for index, pool in enumerate(spec.pools):
        for prefix in _node_names(pool):
            if (other := owner.setdefault(prefix, pool.name)) != pool.name:
                remedy = f"nodes {prefix}-0 ... would be in pool {other} as well: rename one pool"
                yield f"spec.pools[{index}].name", remedy


def _node_names(pool: PoolSpec) -> list[str]:
    """Return the prefixes of the names of a pool's nodes."""
    if pool.gpus_per_node is None:
        return []
    stated = [f"{pool.name}-{domain.name}" for domain in pool.domains] or [pool.name]
    return stated if pool.max_count is None else [*stated, f"{pool.name}-{RENTED}"]


MILLION = 1_000_000
BYTES_PER_GIGABIT = 1e9 / 8
PHASES = {
    "Disaggregated": STAGES,
    "Collocated": (Phase.MIXED,),
    "Either": tuple(Phase),
}
"""``serving`` of a model -> phases of its islands."""
UNRESOLVED_SELECTOR = (
    "only the operator finds the nodes of a selector, in the cluster: to plan from a file, state "
    "count instead (`kubectl get nodes -o json | archipelago pools -f -` prints it)"
)
"""Remedy for a pool with a selector but without nodes."""


def to_problem(name: str, spec: schema.ServingPlanSpec) -> PlanningProblem:
    """Return the planning problem of a valid spec.

    Raises:
        SpecError: an accelerator or architecture is not in the catalogue, or a pool has a selector
            but no nodes; lists each with its path and remedy.
    """
    problems: list[tuple[str, str]] = []
    demands, inventory = [], []
    for index, model in enumerate(spec.models):
        at = f"spec.models[{index}]"
        with _collecting(problems, f"{at}.architecture", f"{at}.workload"):
            demands.append(_model(model))
    for index, pool in enumerate(spec.pools):
        at = f"spec.pools[{index}].accelerator"
        if pool.count is None:
            problems.append((f"spec.pools[{index}].nodeSelector", UNRESOLVED_SELECTOR))
            continue
        with _collecting(problems, at, at):
            inventory.append(_pool(pool, pool.count))
    problems.extend([*pipelines_apart(spec), *nodes_of_equal_name(spec)])
    if problems:
        raise SpecError(problems)
    return PlanningProblem(
        name=name,
        models=tuple(sorted(demands, key=lambda m: m.name)),
        pools=tuple(sorted(inventory, key=lambda p: p.name)),
        budget_per_hour=None if spec.budget_per_hour is None else Decimal(spec.budget_per_hour),
        min_headroom=_least_headroom(spec),
        max_unservable=float(spec.max_unservable),
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
    """Return the minimum headroom; 1 if cost is minimised, since serving nothing costs least."""
    if spec.min_headroom is None and spec.objective == "MinimiseCost":
        return 1.0
    return _optional(spec.min_headroom)


def _links(spec: schema.ServingPlanSpec) -> tuple[Link, ...]:
    stated = () if spec.network is None else spec.network.links
    links = []
    for link in stated:
        first, second = sorted(link.classes)
        links.append(Link((first, second), float(link.gigabits_per_second) * BYTES_PER_GIGABIT))
    return tuple(sorted(links, key=lambda link: link.classes))


@contextmanager
def _collecting(problems: list[tuple[str, str]], named: str, computed: str) -> Iterator[None]:
    """Collect errors of the catalogue (at ``named``) or of the numbers (at ``computed``)."""
    try:
        yield
    except UnknownName as error:
        problems.append((named, str(error)))
    except PerfModelError as error:
        problems.append((computed, str(error)))


def _model(model: models.Model) -> ModelDemand:
    resolved = architecture(model.architecture, model.precision)
    lengths = _lengths(model.workload)
    return ModelDemand(
        name=model.name,
        architecture=resolved,
        lengths=lengths,
        ranges=_ranges(model.workload, lengths, resolved),
        rate=_optional(model.requests_per_second),
        weight=float(model.weight),
        targets=Targets(
            ttft=_seconds(model.slo.ttft_milliseconds), tpot=_seconds(model.slo.tpot_milliseconds)
        ),
        max_sequences=model.max_sequences,
        phases=PHASES[model.serving],
        max_utilisation=float(model.max_utilisation),
    )


def _pool(pool: pools.Pool, count: int) -> Pool:
    return Pool(
        name=pool.name,
        accelerator=accelerator(pool.accelerator),
        count=count,
        price_per_gpu_hour=Decimal(pool.price_per_gpu_hour or "0"),
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
    """Return the adapter bandwidth of one GPU in each direction [B/s]."""
    if pool.nic_gigabits_per_second is None:
        return None
    return float(pool.nic_gigabits_per_second) * BYTES_PER_GIGABIT / (pool.gpus_per_node or 1)


def _lengths(spec: workload.Workload) -> LengthDistribution:
    if spec.log_normal is not None:
        shape, outputs = spec.log_normal, spec.output_tokens
        if outputs is None:
            raise AssertionError("a rule guarantees outputTokens with logNormal")
        return log_normal(
            median=shape.median,
            sigma=float(shape.sigma),
            minimum=shape.min,
            maximum=shape.max,
            output_mean=float(outputs.mean),
            output_square=_optional(outputs.mean_square),
        )
    return from_histogram([_bin(b, spec.output_tokens) for b in _bins(spec)])


def _bin(spec: workload.Bin, default: workload.OutputTokens | None) -> Bin:
    """Return a bin with its outputs, or with those of the workload."""
    mean, square = spec.output_mean, spec.output_mean_square
    if mean is None:
        if default is None:
            raise AssertionError("a rule guarantees outputTokens if a bin has no outputMean")
        mean, square = default.mean, default.mean_square
    return Bin(
        min=spec.min,
        max=spec.max,
        weight=float(spec.weight),
        output_mean=float(mean),
        input_mean=_optional(spec.input_mean),
        output_square=_optional(square),
    )


def _bins(spec: workload.Workload) -> tuple[workload.Bin, ...]:
    if spec.histogram is None:
        raise AssertionError("a rule guarantees one of histogram and logNormal")
    return spec.histogram.bins


def _ranges(
    spec: workload.Workload, lengths: LengthDistribution, model: ModelArchitecture
) -> tuple[Range, ...]:
    cut = {
        "Width": ranges.equal_width,
        "Probability": ranges.equal_probability,
        "Loss": ranges.least_loss,
    }[spec.ranges.spacing]
    return cut(lengths, spec.ranges.count, min(_longest(spec), model.max_length))


def _longest(spec: workload.Workload) -> int:
    """Return the input length below which all requests are [tokens]."""
    if spec.log_normal is not None:
        return spec.log_normal.max
    return max(b.max for b in _bins(spec) if b.weight > 0)


def _optional(text: str | None) -> float | None:
    return None if text is None else float(text)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
