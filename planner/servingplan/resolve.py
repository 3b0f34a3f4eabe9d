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
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from archipelago.perfmodel.catalogue.precision import KV_BYTES
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.roofline.kv_transfer import CacheLayout
from archipelago.perfmodel.roofline.parallelism import Splits
from archipelago.perfmodel.roofline.settings import EngineSettings, Speculation
from archipelago.perfmodel.workload import ranges
from archipelago.perfmodel.workload.lengths import (
    Bin,
    LengthDistribution,
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
from .engine import Degrees, Engine
from .own import accelerator_of, architecture_of
from .schema import ServingPlanSpec

if TYPE_CHECKING:
    from archipelago.perfmodel.catalogue.accelerators import Accelerator
    from archipelago.perfmodel.catalogue.architectures import ModelArchitecture


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
        if pool.gpus_per_node is None:
            continue
        domains = [domain.name for domain in pool.domains]
        prefixes = [f"{pool.name}-{domain}" for domain in domains] or [pool.name]
        prefixes += [] if pool.max_count is None else [f"{pool.name}-{RENTED}"]
        for prefix in prefixes:
            if (other := owner.setdefault(prefix, pool.name)) != pool.name:
                remedy = f"nodes {prefix}-0 ... would be in pool {other} as well: rename one pool"
                yield f"spec.pools[{index}].name", remedy


Item = TypeVar("Item")
MILLION = 1_000_000
BYTES_PER_GIGABIT = 1e9 / 8
PHASES = {
    "Disaggregated": STAGES,
    "Collocated": (Phase.MIXED,),
    "Either": tuple(Phase),
}
"""``serving`` of a model -> phases of its islands."""
WIRE_BITS = {"bf16": 16, "int8": 8, "int4": 4}
"""``transferDtype`` of an engine -> bits of an element on the wire."""
CUTS = {
    "Width": ranges.equal_width,
    "Probability": ranges.equal_probability,
    "Loss": ranges.least_loss,
}
"""``spacing`` of ranges -> how they are cut."""
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
    demands, inventory, own = [], [], spec.accelerators
    for index, model in enumerate(spec.models):
        at = f"spec.models[{index}]"
        shape = None
        with _collecting(problems, f"{at}.architecture", f"{at}.config"):
            shape = architecture_of(model.architecture, model.config, model.precision)
        if shape is not None:
            with _collecting(problems, f"{at}.architecture", f"{at}.workload"):
                demands.append(_model(model, shape))
    for index, pool in enumerate(spec.pools):
        at = f"spec.pools[{index}].accelerator"
        if pool.count is None:
            problems.append((f"spec.pools[{index}].nodeSelector", UNRESOLVED_SELECTOR))
            continue
        with _collecting(problems, at, at):
            inventory.append(_pool(pool, pool.count, accelerator_of(pool.accelerator, own)))
    problems.extend([*pipelines_apart(spec), *nodes_of_equal_name(spec)])
    if problems:
        raise SpecError(problems)
    minimise_cost = spec.objective == "MinimiseCost"
    links = (
        Link(
            (min(link.classes), max(link.classes)),
            _bytes_per_second(link.gigabits_per_second),
            None if link.latency_milliseconds is None else float(link.latency_milliseconds) / 1000,
        )
        for link in (spec.network.links if spec.network else ())
    )
    return PlanningProblem(
        name=name,
        models=tuple(sorted(demands, key=lambda m: m.name)),
        pools=tuple(sorted(inventory, key=lambda p: p.name)),
        budget_per_hour=None if spec.budget_per_hour is None else Decimal(spec.budget_per_hour),
        # At least the stated rates if cost is minimised: serving nothing costs least.
        min_headroom=_optional(spec.min_headroom or ("1" if minimise_cost else None)),
        max_unservable=float(spec.max_unservable),
        solver=SolverSettings(
            strategy=spec.planner.strategy,
            time_limit=float(spec.planner.time_limit_seconds or TIME_LIMITS[spec.planner.strategy]),
            gap=spec.planner.gap_parts_per_million / MILLION,
            seed=spec.planner.seed,
        ),
        minimise_cost=minimise_cost,
        links=tuple(sorted(links, key=lambda link: link.classes)),
        pipelines=tuple(sorted(pipeline.pools for pipeline in spec.pipelines)),
    )


@contextmanager
def _collecting(problems: list[tuple[str, str]], named: str, computed: str) -> Iterator[None]:
    """Collect errors of the catalogue (at ``named``) or of the numbers (at ``computed``)."""
    try:
        yield
    except PerfModelError as error:
        place = named if isinstance(error, UnknownName) else computed
        problems.append((place, str(error)))


def _model(model: models.Model, resolved: ModelArchitecture) -> ModelDemand:
    resolved = _with_cache(resolved, model.engine)
    lengths, longest = _lengths(model.workload)
    cut = CUTS[model.workload.ranges.spacing]
    ttft, tpot = model.slo.ttft_milliseconds, model.slo.tpot_milliseconds
    return ModelDemand(
        name=model.name,
        architecture=resolved,
        lengths=lengths,
        ranges=cut(lengths, model.workload.ranges.count, min(longest, resolved.max_length)),
        rate=_optional(model.requests_per_second),
        weight=float(model.weight),
        targets=Targets(
            ttft=None if ttft is None else ttft / 1000, tpot=None if tpot is None else tpot / 1000
        ),
        max_sequences=model.max_sequences,
        phases=PHASES[model.serving],
        max_utilisation=float(model.max_utilisation),
        settings=_settings(model.engine),
        splits=_splits(model.engine),
        stated=model.engine.stated,
        started=model.engine.started,
        wire=None
        if (sent := model.engine.transfer_dtype) is None
        else CacheLayout.of(resolved, WIRE_BITS[sent]),
    )


def _settings(engine: Engine) -> EngineSettings:
    """Return the settings of an engine; what is absent has the default of ``EngineSettings``."""
    draft, share = engine.speculation, _optional(engine.memory_share)
    default = EngineSettings()
    return EngineSettings(
        engine=engine.name or default.engine,
        version=engine.version or default.version,
        chunk=engine.chunk_tokens or default.chunk,
        prefix_hit=float(engine.prefix_hit_share or default.prefix_hit),
        prefix_hits=tuple(
            (float(h.up_to_tokens), float(h.share)) for h in engine.prefix_hit_shares
        ),
        memory=default.memory if share is None else replace(default.memory, utilisation=share),
        speculation=None
        if draft is None
        else Speculation(draft.draft_tokens, float(draft.acceptance), float(draft.draft_cost)),
        two_batch_overlap=bool(engine.two_batch_overlap),
    )


def _splits(engine: Engine) -> Splits:
    """Return the splits of islands that the spec admits."""
    pinned = engine.parallelism or Degrees()
    copies = {"Allowed": None, "Never": False, "Always": True}[engine.attention_data_parallel]
    return Splits(pinned.tensor, pinned.pipeline, pinned.data, pinned.expert, copies)


def _with_cache(architecture: ModelArchitecture, engine: Engine) -> ModelArchitecture:
    """Return the architecture with the number format of its cache, if the spec states one."""
    if engine.kv_dtype is None:
        return architecture
    precision = replace(architecture.precision, kv=KV_BYTES[engine.kv_dtype])
    return replace(architecture, precision=precision)


def _pool(pool: pools.Pool, count: int, accelerator: Accelerator) -> Pool:
    nic, gpus = pool.nic_gigabits_per_second, pool.gpus_per_node or 1
    domains = sorted(pool.domains, key=lambda domain: domain.name)
    return Pool(
        name=pool.name,
        accelerator=accelerator,
        count=count,
        price_per_gpu_hour=Decimal(pool.price_per_gpu_hour or "0"),
        gpus_per_node=pool.gpus_per_node,
        domains=tuple(Domain(d.name, d.nodes, d.domain_class, d.shared_gpus) for d in domains),
        island_sizes=pool.island_sizes,
        max_count=pool.max_count,
        billing=Billing(pool.billing),
        nic_per_gpu=None if nic is None else _bytes_per_second(nic) / gpus,
    )


def _lengths(spec: workload.Workload) -> tuple[LengthDistribution, int]:
    """Return the lengths, and the input length below which all requests are [tokens]."""
    if (shape := spec.log_normal) is not None:
        outputs = _guaranteed(spec.output_tokens)
        lengths = log_normal(
            median=shape.median,
            sigma=float(shape.sigma),
            minimum=shape.min,
            maximum=shape.max,
            output_mean=float(outputs.mean),
            output_square=_optional(outputs.mean_square),
        )
        return lengths, shape.max
    stated, bins = _guaranteed(spec.histogram).bins, []
    for b in stated:
        mean, square = b.output_mean, b.output_mean_square
        if mean is None:
            outputs = _guaranteed(spec.output_tokens)
            mean, square = outputs.mean, outputs.mean_square
        means = _optional(b.input_mean), float(mean), _optional(square)
        bins.append(Bin(b.min, b.max, float(b.weight), *means))
    return from_histogram(bins), max(b.max for b in stated if b.weight > 0)


def _guaranteed(value: Item | None) -> Item:
    """Return a value that a rule between fields guarantees."""
    if value is None:
        raise AssertionError("a rule between fields was not checked")
    return value


def _optional(text: str | None) -> float | None:
    return None if text is None else float(text)


def _bytes_per_second(gigabits: str) -> float:
    return float(gigabits) * BYTES_PER_GIGABIT
