"""A plan as a document (JSON or YAML) and back; docs/plan-format.md describes every field.

A document is self-contained: it carries the ServingPlan's spec under ``problem``, so that
``archipelago verify`` needs nothing else. Its *content* is everything but ``planSeconds`` and
``hash``; equal inputs give byte-identical content, which the hash names.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from archipelago.perfmodel.uncertainty import LEVEL
from archipelago.planner.calibrations import FIELD, calibration_documents
from archipelago.planner.canonical import (
    API_VERSION,
    INFEASIBLE,
    PLAN,
    THETA_UNIT,
    Document,
    canonical,
    canonical_bytes,
    content_hash,
)
from archipelago.planner.planfile import parse_plan
from archipelago.planner.problem import DEFAULT_CLASS, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.perfmodel.calibration import Calibration
    from archipelago.planner.plan import (
        Changes,
        Group,
        Infeasible,
        Island,
        Plan,
        Planned,
        Route,
        ThetaInterval,
    )
    from archipelago.planner.spec import ServingPlanResource

__all__ = [
    "canonical_bytes",
    "content_hash",
    "infeasible_document",
    "normalised_spec",
    "parse_plan",
    "plan_document",
]

UNSAID: dict[str, Document] = {
    "spec": {"objective": "Maximise", "network": {"links": []}, "pipelines": []},
    "model": {"serving": "Disaggregated", "maxUtilisation": "1"},
    "pool": {"billing": "PerGPU"},
    "domain": {"class": DEFAULT_CLASS},
    "engine": {"roleSwitch": "Restart"},
}
"""Values that say nothing: left out, so that a document that needs none of these fields, and its
hash, are those of the time before they existed."""

WATCHED = frozenset({"metrics", "servedName"})
"""Fields of a model's engine that say how it is watched, not what it is."""


def normalised_spec(resource: ServingPlanResource) -> Document:
    """The spec as plain JSON; named lists are sorted because their order carries no meaning.

    What only says how a running plan is watched and changed is no part of the problem.
    """
    whole = resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = _said("spec", whole)
    spec.pop("replanning", None)
    spec["models"] = sorted((_model(model) for model in spec["models"]), key=_name)
    spec["pools"] = sorted((_said("pool", pool) for pool in spec["pools"]), key=_name)
    for pool in spec["pools"]:
        if pool.get("domains"):
            pool["domains"] = sorted((_said("domain", d) for d in pool["domains"]), key=_name)
    if "network" in spec:
        links = [{**link, "classes": sorted(link["classes"])} for link in spec["network"]["links"]]
        spec["network"] = {**spec["network"], "links": sorted(links, key=_name)}
    if "pipelines" in spec:
        spec["pipelines"] = sorted(spec["pipelines"], key=_name)
    return spec


def _model(model: Document) -> Document:
    engine = {key: value for key, value in model.pop("engine").items() if key not in WATCHED}
    said = _said("engine", engine)
    return _said("model", model) | ({"engine": said} if said else {})


def _said(kind: str, item: Document) -> Document:
    unsaid = UNSAID[kind]
    return {key: value for key, value in item.items() if key not in unsaid or value != unsaid[key]}


def plan_document(
    resource: ServingPlanResource, planned: Planned, calibrations: Sequence[Calibration] = ()
) -> Document:
    """The document of a plan, ready to be written as JSON or YAML.

    ``calibrations``: those of the problem that was planned.
    """
    plan, spec = planned.plan, normalised_spec(resource)
    groups = {group.name: group for group in plan.groups}
    members = plan.members()
    content = {
        "apiVersion": API_VERSION,
        "kind": PLAN,
        "name": plan.name,
        "strategy": plan.strategy,
        "performanceModel": plan.performance_model,
        **_certificate(plan),
        "costPerHour": str(plan.cost_per_hour),
        **({"changes": _changes(plan.changes)} if plan.changes else {}),
        "pools": [_pool(pool, plan) for pool in spec["pools"]],
        "groups": [_group(group, members[group.name]) for group in plan.groups],
        "islands": [_island(island, groups[island.group]) for island in plan.islands],
        "routes": [_route(route) for route in plan.routes],
        "unservable": [asdict(item) for item in plan.unservable],
        "exclusions": [asdict(item) for item in plan.exclusions],
        "problem": spec,
        **_calibrated(calibrations),
    }
    return _sealed(content, planned.seconds)


def infeasible_document(
    resource: ServingPlanResource,
    answer: Infeasible,
    seconds: float = 0.0,
    calibrations: Sequence[Calibration] = (),
) -> Document:
    """The document that says why there is no plan and what would help."""
    content = {
        "apiVersion": API_VERSION,
        "kind": INFEASIBLE,
        "name": resource.metadata.name,
        "reason": str(answer.reason),
        "message": answer.message,
        "relaxations": [asdict(item) for item in answer.relaxations],
        "exclusions": [asdict(item) for item in answer.exclusions],
        "problem": normalised_spec(resource),
        **_calibrated(calibrations),
    }
    return _sealed(content, seconds)


def _calibrated(calibrations: Sequence[Calibration]) -> Document:
    """What the plan was calibrated with; nothing where it was not, so that its hash stays."""
    return {FIELD: calibration_documents(calibrations)} if calibrations else {}


def _name(item: Document) -> str:
    return str(item["name"])


def _sealed(content: Document, seconds: float) -> Document:
    exact: Document = canonical(content)
    return {**exact, "planSeconds": round(seconds, 3), "hash": content_hash(exact)}


def _certificate(plan: Plan) -> Document:
    """Theta, what it was proved against, and how far the two are apart."""
    proof = plan.certificate
    theta: Document = {
        "objective": str(plan.objective),
        "theta": plan.theta,
        "thetaUnit": THETA_UNIT[plan.objective],
    }
    if plan.objective is Objective.COST:
        proved: Document = {"throughput": plan.throughput, "costBound": proof.bound}
    else:
        proved = _bounds(plan)
    if plan.interval is not None:
        theta["thetaInterval"] = interval_document(plan.interval)
    ended = {"gap": proof.gap, "complete": proof.complete, "reason": proof.reason}
    return {**theta, **proved, **ended}


def interval_document(spread: ThetaInterval) -> Document:
    """The 90 % interval of theta."""
    ends: Document = {"low": spread.low, "high": spread.high}
    return {**ends, "level": LEVEL, "dominatedBy": spread.dominated_by}


def _bounds(plan: Plan) -> Document:
    """``bound`` speaks in the unit of ``throughput``, ``thetaBound`` in that of ``theta``."""
    per_theta = plan.throughput / plan.theta if plan.theta else 1.0
    return {
        "thetaBound": plan.certificate.bound,
        "throughput": plan.throughput,
        "bound": plan.certificate.bound * per_theta,
    }


def _changes(changes: Changes) -> Document:
    return {
        "kept": list(changes.kept),
        "started": list(changes.started),
        "stopped": list(changes.stopped),
        "moved": list(changes.moved),
        "movedGpus": changes.moved_gpus,
    }


def _pool(pool: Document, plan: Plan) -> Document:
    rented = dict(plan.rented).get(pool["name"], 0)
    return {
        "name": pool["name"],
        "accelerator": pool["accelerator"],
        "count": pool["count"],
        **({"rented": rented} if rented else {}),
        "used": plan.used(pool["name"]),
        "pricePerGPUHour": str(pool.get("pricePerGPUHour", "0")),
    }


def _group(group: Group, members: list[str]) -> Document:
    return {
        "name": group.name,
        "model": group.model,
        "pool": group.pool,
        **({"domainClass": group.domain_class} if group.domain_class != DEFAULT_CLASS else {}),
        "phase": str(group.phase),
        "gpus": group.gpus,
        **({"parts": [asdict(part) for part in group.parts]} if group.parts else {}),
        "parallelism": asdict(group.parallelism),
        "maxBatch": group.max_batch,
        "islands": group.islands,
        "members": members,
        "rates": list(group.rates),
        "utilisation": group.utilisation,
        "binding": group.binding,
        "tpotMilliseconds": group.step_time * 1e3,
        "sequences": group.sequences,
        "kvTokens": group.kv_tokens,
        "kvCapacity": group.kv_capacity,
        **({"timesWithin": group.times_within} if group.times_within > 1 else {}),
    }


def _island(island: Island, group: Group) -> Document:
    return {
        "name": island.name,
        "group": island.group,
        "model": group.model,
        "pool": group.pool,
        "phase": str(group.phase),
        "gpus": group.gpus,
        "nodes": list(island.nodes),
    }


def _route(route: Route) -> Document:
    return {
        "model": route.model,
        "range": asdict(route.range),
        "share": route.share,
        "pairs": [asdict(pair) for pair in route.pairs],
    }
