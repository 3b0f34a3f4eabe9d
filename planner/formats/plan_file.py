"""The plan file: write a plan, read it back, and the problem that it answers.

``PlanFile`` is the file field by field; docs/reference/plan-file.md describes them, and
``python -m archipelago.planner.formats.plan_file`` prints the JSON Schema beside that page.
A file is self-contained: it carries the ServingPlan's spec under ``problem``. Its *content* is
everything but ``planSeconds`` and ``hash``; equal inputs give byte-identical content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from archipelago.perfmodel.calibration.corrections import Calibration
from archipelago.perfmodel.calibration.uncertainty import LEVEL
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.workload.lengths import Range

from ..documents import (
    API_VERSION,
    INFEASIBLE,
    PLAN,
    THETA_UNIT,
    Document,
    Node,
    canonical,
    content_hash,
)
from ..errors import PlanFileError, SpecError
from ..plan import (
    Certificate,
    Changes,
    Exclusion,
    Group,
    Infeasible,
    Island,
    Pair,
    Part,
    Plan,
    Planned,
    PricedBound,
    Route,
    ThetaInterval,
    Unservable,
)
from ..problem import DEFAULT_CLASS, Objective, Phase, PlanningProblem
from ..servingplan import ServingPlanResource, load_resource, to_problem
from .calibrations import calibration_documents, read_calibrations
from .entry import Amount, Count, Entry, File, Items, Money, Whole, read

Version = Literal["archipelago.dev/v1alpha1"]
PhaseName = Annotated[Phase, Field(strict=False)]


class PlanEntry(Entry, extra="forbid"):
    """A mapping of a plan file: nothing checks a field that the format does not have."""


class IntervalEntry(PlanEntry):
    """Range of theta with 90 % probability, in the unit of theta."""

    low: Amount
    high: Amount
    level: Amount
    dominated_by: str


class ChangesEntry(PlanEntry):
    """Changes to the islands of the running plan, by island name."""

    kept: Items[str]
    started: Items[str]
    stopped: Items[str]
    moved: Items[str]
    moved_gpus: Whole


class PoolEntry(PlanEntry):
    """What a plan takes of a pool [GPUs]."""

    name: str
    accelerator: str
    count: int
    rented: Count | None = None
    used: int
    price_per_gpu_hour: Annotated[str, Field(alias="pricePerGPUHour")]


class PartEntry(PlanEntry):
    """GPUs of one pool in an island of several pools."""

    pool: str
    gpus: Count
    layers: Count


class ParallelismEntry(PlanEntry):
    """Degrees of tensor, pipeline, data and expert parallelism."""

    tp: Count
    pp: Count
    dp: Count
    ep: Count


def _possible(entry: ParallelismEntry) -> ParallelismEntry:
    try:
        _as(Parallelism, entry)
    except PerfModelError as error:
        raise ValueError(str(error)) from None
    return entry


class GroupEntry(PlanEntry):
    """Islands of one template."""

    name: str
    model: str
    pool: str
    domain_class: str = DEFAULT_CLASS
    phase: PhaseName
    gpus: Count
    parts: Items[PartEntry] = ()
    parallelism: Annotated[ParallelismEntry, AfterValidator(_possible)]
    max_batch: Count
    islands: Count
    members: Items[str]
    rates: Items[Amount]
    utilisation: Amount
    binding: str
    tpot_milliseconds: Amount
    sequences: Amount
    kv_tokens: Amount
    kv_capacity: Whole
    times_within: Annotated[float, Field(ge=1)] = 1.0
    started: str = ""


class IslandEntry(PlanEntry):
    """One island, with the facts that it shares with its group."""

    name: str
    group: str
    model: str
    pool: str
    phase: str
    gpus: int
    nodes: Items[str]


class RangeEntry(PlanEntry):
    """Input lengths from min up to, but without, max [tokens]."""

    min: Whole
    max: Count


class PairEntry(PlanEntry):
    """Groups that prefill and decode; ``weight`` is requests per million of the route."""

    prefill: str
    decode: str
    weight: Whole


class RouteEntry(PlanEntry):
    """Where the requests of one model and range go."""

    model: str
    range: RangeEntry
    share: Amount
    pairs: Items[PairEntry]


class UnservableEntry(PlanEntry):
    """Share of a model's requests that no template can hold."""

    model: str
    share: Amount
    above: Whole


class ExclusionEntry(PlanEntry):
    """A template that was left out, and why."""

    template: str
    reason: str


class RelaxationEntry(PlanEntry):
    """A change that would make the problem feasible."""

    kind: str
    value: float
    unit: str
    models: Items[str]
    text: str


class PricedBoundEntry(PlanEntry):
    """The bound that prices of the program's rows prove, by the name of the row."""

    bound: Amount
    prices: dict[str, float]


class PlanFile(PlanEntry):
    """A plan, as `archipelago plan -o json` writes it."""

    api_version: Version
    kind: Literal["Plan"] = Field(description="Give the output of `archipelago plan -o json`.")
    name: str
    strategy: str
    performance_model: str
    objective: Annotated[Objective, Field(strict=False)]
    theta: Amount
    theta_unit: str
    theta_interval: IntervalEntry | None = None
    theta_bound: Amount | None = None
    throughput: Amount
    bound: Amount | None = None
    cost_bound: Amount | None = None
    bound_by: Literal["prices", "search"] = "search"
    gap: Annotated[float, Field(ge=-1)]
    complete: bool
    reason: str
    cost_per_hour: Money
    changes: ChangesEntry | None = None
    pools: Items[PoolEntry]
    groups: Items[GroupEntry]
    islands: Items[IslandEntry]
    routes: Items[RouteEntry]
    unservable: Items[UnservableEntry]
    exclusions: Items[ExclusionEntry]
    priced_bound: PricedBoundEntry | None = None
    problem: dict[str, Any] = Field(description="The spec of the ServingPlan, with defaults.")
    calibrations: Items[dict[str, Any]] = ()
    plan_seconds: float
    hash: str

    @model_validator(mode="after")
    def _has_a_bound(self) -> PlanFile:
        """Refuse a plan without the bound on what was optimised: the cost, or theta."""
        cost = self.objective is Objective.COST
        if (self.cost_bound if cost else self.theta_bound) is None:
            place = "costBound" if cost else "thetaBound"
            raise ValidationError.from_exception_data(
                "plan", [{"type": "missing", "loc": (place,), "input": None}]
            )
        return self


class InfeasibleFile(PlanEntry):
    """Why there is no plan, and what would help."""

    api_version: Version
    kind: Literal["Infeasible"]
    name: str
    reason: str
    message: str
    relaxations: Items[RelaxationEntry]
    exclusions: Items[ExclusionEntry]
    problem: dict[str, Any]
    calibrations: Items[dict[str, Any]] = ()
    plan_seconds: float
    hash: str


Value = TypeVar("Value")


def _as(kind: type[Value], entry: Entry, **changed: object) -> Value:
    """Return the dataclass that has the entry's fields."""
    names = [field.name for field in fields(kind) if field.name not in changed]  # type: ignore[arg-type]
    return kind(**{name: getattr(entry, name) for name in names}, **changed)


def parse_plan(document: object) -> Plan:
    """Return the plan of a document.

    Raises:
        PlanFileError: a field is missing or wrong; the message names its place.
    """
    file = read(PlanFile, document)
    cost = file.objective is Objective.COST
    bound = file.cost_bound if cost else file.theta_bound
    return _as(
        Plan,
        file,
        certificate=_as(Certificate, file, bound=bound, priced=_priced(file.priced_bound)),
        cost_per_hour=Decimal(file.cost_per_hour),
        groups=tuple(
            _as(
                Group,
                group,
                parallelism=_as(Parallelism, group.parallelism),
                parts=tuple(_as(Part, part) for part in group.parts),
                step_time=group.tpot_milliseconds / 1e3,
            )
            for group in file.groups
        ),
        islands=tuple(_as(Island, island) for island in file.islands),
        routes=tuple(
            _as(
                Route,
                route,
                range=_as(Range, route.range),
                pairs=tuple(_as(Pair, pair) for pair in route.pairs),
            )
            for route in file.routes
        ),
        unservable=tuple(_as(Unservable, item) for item in file.unservable),
        exclusions=tuple(_as(Exclusion, item) for item in file.exclusions),
        rented=tuple((pool.name, pool.rented) for pool in file.pools if pool.rented),
        changes=_as(Changes, file.changes) if file.changes else None,
        interval=_as(ThetaInterval, file.theta_interval) if file.theta_interval else None,
    )


def _priced(entry: PricedBoundEntry | None) -> PricedBound | None:
    return None if entry is None else PricedBound(entry.bound, tuple(entry.prices.items()))


@dataclass(frozen=True, eq=False)
class Stored:
    """One plan file, read."""

    document: Document
    plan: Plan
    problem: PlanningProblem


def read_stored(document: Document) -> Stored:
    """Read a plan document with the problem that it carries.

    Raises:
        PlanFileError: it is no plan, or its problem breaks a rule; the message names the place.
    """
    plan = parse_plan(document)
    with _of_problem():
        problem = to_problem(plan.name, resource_of(document).spec)
    calibrations = read_calibrations(document, problem, others=True)
    return Stored(document, plan, replace(problem, calibrations=calibrations))


def resource_of(document: Document) -> ServingPlanResource:
    """Return the ServingPlan that a plan document answers.

    Raises:
        PlanFileError: it carries none, or one that breaks a rule; the message names the place.
    """
    node = Node(document)
    body = resource_document(node.field("name").text(), node.field("problem").mapping())
    with _of_problem():
        return load_resource(body)


def resource_document(name: str, spec: Document) -> Document:
    """Return the ServingPlan with this spec, as a file has it."""
    metadata = {"name": name}
    return {"apiVersion": API_VERSION, "kind": "ServingPlan", "metadata": metadata, "spec": spec}


@contextmanager
def _of_problem() -> Iterator[None]:
    """Errors of the spec, under the name that it has in the document."""
    try:
        yield
    except SpecError as error:
        lines = (f"{path.replace('spec', 'problem', 1)}: {text}" for path, text in error.problems)
        raise PlanFileError("\n".join(lines)) from None


DEFAULTS: dict[str, Document] = {
    "spec": {"objective": "Maximise", "network": {"links": []}, "pipelines": []},
    "model": {"serving": "Disaggregated", "maxUtilisation": "1"},
    "pool": {"billing": "PerGPU"},
    "domain": {"class": DEFAULT_CLASS},
    "engine": {
        "roleSwitch": "Restart",
        "prefixHitShares": [],
        "attentionDataParallel": "Allowed",
    },
}
"""Defaults that a document leaves out, so that documents without these fields, and their hashes,
are the same as before the fields existed."""

METRICS = frozenset({"metrics", "servedName"})
"""Fields of a model's engine that are about its metrics, not about planning."""


def normalised_spec(resource: ServingPlanResource) -> Document:
    """Return the spec as plain JSON, with named lists sorted: their order has no meaning.

    Fields about metrics and re-planning are no part of the problem and are left out.
    """
    whole = resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = _without_defaults("spec", whole)
    spec.pop("replanning", None)
    models = []
    for model in spec["models"]:
        engine = {key: value for key, value in model.pop("engine").items() if key not in METRICS}
        engine = _without_defaults("engine", engine)
        if engine.get("name") == "sglang":  # whose metrics are its own, or a router's
            engine["metrics"] = "sglang"
        models.append(_without_defaults("model", model) | ({"engine": engine} if engine else {}))
    spec["models"] = _by_name(models)
    spec["pools"] = _by_name(_without_defaults("pool", pool) for pool in spec["pools"])
    for pool in spec["pools"]:
        if pool.get("domains"):
            pool["domains"] = _by_name(_without_defaults("domain", d) for d in pool["domains"])
    if "network" in spec:
        links = [{**link, "classes": sorted(link["classes"])} for link in spec["network"]["links"]]
        spec["network"] = {**spec["network"], "links": _by_name(links)}
    if "pipelines" in spec:
        spec["pipelines"] = _by_name(spec["pipelines"])
    return spec


def _by_name(items: Iterable[Document]) -> list[Document]:
    return sorted(items, key=lambda item: str(item["name"]))


def _without_defaults(kind: str, item: Document) -> Document:
    defaults = DEFAULTS[kind]
    return {k: value for k, value in item.items() if k not in defaults or defaults[k] != value}


def plan_document(
    resource: ServingPlanResource, planned: Planned, calibrations: Sequence[Calibration] = ()
) -> Document:
    """Return the document of a plan, to be written as JSON or YAML.

    ``calibrations``: those of the problem that was planned.
    """
    return _written(plan_content(resource, planned.plan, calibrations), planned.seconds)


def plan_content(
    resource: ServingPlanResource, plan: Plan, calibrations: Sequence[Calibration] = ()
) -> PlanFile:
    """Return what the document of a plan says, without its hash."""
    spec = normalised_spec(resource)
    groups, members = {group.name: group for group in plan.groups}, plan.members()
    rented, proof, priced = dict(plan.rented), plan.certificate, plan.certificate.priced
    bounds: Document = {"cost_bound": proof.bound, "bound": None}
    if plan.objective is not Objective.COST:
        per_theta = plan.throughput / plan.theta if plan.theta else 1.0
        bounds = {"theta_bound": proof.bound, "bound": proof.bound * per_theta}
    return _filled(
        PlanFile,
        vars(plan)
        | vars(proof)
        | bounds
        | {
            "kind": PLAN,
            "bound_by": "prices" if priced and _alike(priced.bound, proof.bound) else "search",
            "priced_bound": priced and {"bound": priced.bound, "prices": dict(priced.prices)},
            "theta_unit": THETA_UNIT[plan.objective],
            "theta_interval": interval_document(plan.interval) if plan.interval else None,
            "cost_per_hour": str(plan.cost_per_hour),
            "pools": [
                {
                    "name": pool["name"],
                    "accelerator": pool["accelerator"],
                    "count": pool["count"],
                    "rented": rented.get(pool["name"]) or None,
                    "used": plan.used(pool["name"]),
                    "price_per_gpu_hour": str(pool.get("pricePerGPUHour", "0")),
                }
                for pool in spec["pools"]
            ],
            "groups": [
                SimpleNamespace(
                    **vars(group),
                    members=members[group.name],
                    tpot_milliseconds=group.step_time * 1e3,
                )
                for group in plan.groups
            ],
            "islands": [SimpleNamespace(**(vars(groups[i.group]) | vars(i))) for i in plan.islands],
            "problem": spec,
            "calibrations": calibration_documents(calibrations),
        },
    )


def _alike(one: float, other: float) -> bool:
    """Return whether two values are the same in a document."""
    return bool(canonical(one) == canonical(other))


def infeasible_document(
    resource: ServingPlanResource,
    answer: Infeasible,
    seconds: float = 0.0,
    calibrations: Sequence[Calibration] = (),
) -> Document:
    """Return the document that states why there is no plan and what would help."""
    content = {
        "kind": INFEASIBLE,
        "name": resource.metadata.name,
        "problem": normalised_spec(resource),
        "calibrations": calibration_documents(calibrations),
    }
    return _written(_filled(InfeasibleFile, vars(answer) | content), seconds)


def _filled(model: type[File], content: Mapping[str, Any]) -> File:
    """Return content as a file; fields that the format does not have are left out."""
    outside = {"api_version": API_VERSION, "plan_seconds": 0.0, "hash": ""}
    return model.model_validate(SimpleNamespace(**{**content, **outside}))


def _written(file: PlanEntry, seconds: float) -> Document:
    """Return a file in the order of its fields, without defaults, with its hash."""
    exact: Document = canonical(file.model_dump(by_alias=True, exclude_defaults=True))
    return exact | {"planSeconds": round(seconds, 3), "hash": content_hash(exact)}


def interval_document(spread: ThetaInterval) -> Document:
    """Return the 90 % interval of theta."""
    ends: Document = {"low": spread.low, "high": spread.high}
    return {**ends, "level": LEVEL, "dominatedBy": spread.dominated_by}


def main() -> None:
    """Print the JSON Schema of a plan file."""
    print(json.dumps(PlanFile.model_json_schema(), indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
