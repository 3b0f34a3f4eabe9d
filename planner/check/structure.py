"""Checks of names: the parts of a plan refer to each other, and to what the problem has.

A plan file repeats some values for its readers; the copies and the hash must agree.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ..documents import THETA_UNIT, Document, content_hash
from ..plan import Group, Plan
from ..problem import STAGES, Objective, Phase
from .index import PlanIndex, misstated, wrong_parts

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A Kubernetes label value: names of islands become label values."""


def check_structure(index: PlanIndex) -> Iterator[str]:
    """Check that names are unique and exist, and that groups and islands agree."""
    plan = index.plan
    yield from _names("groups", [group.name for group in plan.groups])
    yield from _names("islands", [island.name for island in plan.islands])
    members = Counter(island.group for island in plan.islands)
    for name in members:
        if name not in index.groups:
            yield f"islands: {members[name]} belong to group {name!r}, which does not exist"
    for group in plan.groups:
        yield from _check_group(index, group, members[group.name])
    for model in index.models:
        for stage in STAGES:
            if not any(g.model == model and stage in g.phase.stages for g in plan.groups):
                yield f"models[{model}]: no island serves {stage}"


def _names(kind: str, names: list[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{kind}[{name}]: stands {times} times; names are unique"
        if not LABEL.fullmatch(name):
            yield f"{kind}[{name}]: is not a DNS label of at most 63 characters"


def _check_group(index: PlanIndex, group: Group, members: int) -> Iterator[str]:
    """Check size, pools, class, model and parts; the parts form a pipeline of the problem."""
    place, split = f"groups[{group.name}]", group.parallelism
    if members != group.islands:
        yield f"{place}.islands: {group.islands} stated, {members} listed"
    yield from misstated(f"{place}.gpus", group.gpus, split.gpus, f"{split} uses")
    for part in group.sections:
        pool = index.pools.get(part.pool)
        if pool is None:
            yield f"{place}.pool: {part.pool!r} is not a pool of the problem"
        elif group.domain_class not in pool.classes:
            yield f"{place}.domainClass: pool {pool.name} has no class {group.domain_class!r}"
    names = tuple(part.pool for part in group.parts)
    if names and names not in index.problem.pipelines:
        declared = "; ".join(", ".join(names) for names in index.problem.pipelines) or "none"
        yield f"{place}.parts: {', '.join(names)} are no pipeline of the problem ({declared})"
    model = index.models.get(group.model)
    if model is None:
        yield f"{place}.model: {group.model!r} is not a model of the problem"
        return
    if len(group.rates) != len(model.ranges):
        yield f"{place}.rates: {len(group.rates)} values for {len(model.ranges)} ranges"
    if model.architecture.experts is None and split.ep != 1:
        yield f"{place}.parallelism: ep {split.ep} for a model without experts"
    if group.phase is Phase.PREFILL and group.max_batch != 1:
        yield f"{place}.maxBatch: {group.max_batch} stated, prefill takes one prompt at a time"
    if group.phase not in model.phases:
        allowed = ", ".join(model.phases)
        yield f"{place}.phase: {group.phase}, model {model.name} is to be served by {allowed}"
    for finding in wrong_parts(group, model.architecture.layers):
        yield f"{place}.parts: {finding}"


def check_document(document: Document, plan: Plan) -> Iterator[str]:
    """Check the fields that ``parse_plan`` does not read because they follow from others."""
    groups = {group.name: group for group in plan.groups}
    members = defaultdict(list)
    for item in document["islands"]:
        members[item["group"]].append(item["name"])
        if group := groups.get(item["group"]):
            yield from _check_copies(
                f"islands[{item['name']}]",
                item,
                {name: getattr(group, name) for name in ("model", "pool", "phase", "gpus")},
                "its group has",
            )
    for item in document["groups"]:
        if item.get("members") != members[item["name"]]:
            yield f"groups[{item['name']}].members: not the islands that name this group"
    problem_pools = {pool["name"]: pool for pool in document["problem"]["pools"]}
    plan_pools = {pool["name"]: pool for pool in document["pools"]}
    for name in sorted({*problem_pools, *plan_pools}):
        if name not in problem_pools or name not in plan_pools:
            yield f"pools[{name}]: not in both the plan and the problem"
            continue
        copies = {
            "accelerator": problem_pools[name]["accelerator"],
            "count": problem_pools[name]["count"],
            "used": plan.used(name),
            "pricePerGPUHour": problem_pools[name].get("pricePerGPUHour", "0"),
        }
        yield from _check_copies(f"pools[{name}]", plan_pools[name], copies, "it is")
    unit, source = THETA_UNIT[plan.objective], f"{plan.objective} has"
    yield from misstated("thetaUnit", document.get("thetaUnit"), unit, source)
    if plan.objective is Objective.COST:
        for field in ("bound", "thetaBound"):
            if field in document:
                yield f"{field}: stated, although the plan is proved by its cost; see costBound"
    else:
        per_theta = plan.throughput / plan.theta if plan.theta else 1.0
        bound, source = plan.certificate.bound * per_theta, "thetaBound gives"
        yield from misstated("bound", document.get("bound"), bound, source, unit=" req/s")
    digest = content_hash(document)
    if document.get("hash") != digest:
        yield f"hash: {document.get('hash')} stated, the content has {digest}"


def _check_copies(place: str, stated: Document, copies: Document, source: str) -> Iterator[str]:
    for field, value in copies.items():
        yield from misstated(f"{place}.{field}", stated.get(field), value, source)
