"""A plan as a document (JSON or YAML) and back; docs/plan-format.md describes every field.

A document is self-contained: it carries the ServingPlan's spec under ``problem``, so that
``archipelago verify`` needs nothing else. Its *content* is everything but ``planSeconds`` and
``hash``; equal inputs give byte-identical content, which the hash names.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from archipelago.planner.plan import Group, Infeasible, Island, Plan, Planned, Route
    from archipelago.planner.spec import ServingPlanResource

__all__ = [
    "canonical_bytes",
    "content_hash",
    "infeasible_document",
    "normalised_spec",
    "parse_plan",
    "plan_document",
]


def normalised_spec(resource: ServingPlanResource) -> Document:
    """The spec as plain JSON; named lists are sorted because their order carries no meaning."""
    spec: Document = resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in ("models", "pools"):
        spec[name] = sorted(spec[name], key=_name)
    for pool in spec["pools"]:
        if pool.get("domains"):
            pool["domains"] = sorted(pool["domains"], key=_name)
    return spec


def plan_document(resource: ServingPlanResource, planned: Planned) -> Document:
    """The document of a plan, ready to be written as JSON or YAML."""
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
        "pools": [_pool(pool, plan) for pool in spec["pools"]],
        "groups": [_group(group, members[group.name]) for group in plan.groups],
        "islands": [_island(island, groups[island.group]) for island in plan.islands],
        "routes": [_route(route) for route in plan.routes],
        "unservable": [asdict(item) for item in plan.unservable],
        "exclusions": [asdict(item) for item in plan.exclusions],
        "problem": spec,
    }
    return _sealed(content, planned.seconds)


def infeasible_document(
    resource: ServingPlanResource, answer: Infeasible, seconds: float = 0.0
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
    }
    return _sealed(content, seconds)


def _name(item: Document) -> str:
    return str(item["name"])


def _sealed(content: Document, seconds: float) -> Document:
    exact: Document = canonical(content)
    return {**exact, "planSeconds": round(seconds, 3), "hash": content_hash(exact)}


def _certificate(plan: Plan) -> Document:
    """``bound`` speaks in the unit of ``throughput``, ``thetaBound`` in that of ``theta``."""
    proof = plan.certificate
    per_theta = plan.throughput / plan.theta if plan.theta else 1.0
    return {
        "objective": str(plan.objective),
        "theta": plan.theta,
        "thetaUnit": THETA_UNIT[plan.objective],
        "thetaBound": proof.bound,
        "throughput": plan.throughput,
        "bound": proof.bound * per_theta,
        "gap": proof.gap,
        "complete": proof.complete,
        "reason": proof.reason,
    }


def _pool(pool: Document, plan: Plan) -> Document:
    used = sum(g.gpus * g.islands for g in plan.groups if g.pool == pool["name"])
    return {
        "name": pool["name"],
        "accelerator": pool["accelerator"],
        "count": pool["count"],
        "used": used,
        "pricePerGPUHour": str(pool.get("pricePerGPUHour", "0")),
    }


def _group(group: Group, members: list[str]) -> Document:
    return {
        "name": group.name,
        "model": group.model,
        "pool": group.pool,
        "phase": str(group.phase),
        "gpus": group.gpus,
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
