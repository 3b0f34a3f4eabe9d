"""Checks of names: the parts of a plan refer to each other, and to what the problem has.

A plan file repeats some values for its readers; the copies and the hash must agree.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from ..documents import THETA_UNIT, Document, Node, content_hash
from ..plan import Group, Plan
from ..problem import STAGES, Objective, Phase
from .index import TOLERANCE, PlanIndex, wrong_parts

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
        yield from _group(index, group, members[group.name])
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


def _group(index: PlanIndex, group: Group, members: int) -> Iterator[str]:
    place = f"groups[{group.name}]"
    if members != group.islands:
        yield f"{place}.islands: {group.islands} stated, {members} listed"
    if group.parallelism.gpus != group.gpus:
        yield (
            f"{place}.gpus: {group.gpus} stated, {group.parallelism} uses {group.parallelism.gpus}"
        )
    yield from _place(index, group)
    model = index.models.get(group.model)
    if model is None:
        yield f"{place}.model: {group.model!r} is not a model of the problem"
        return
    if len(group.rates) != len(model.ranges):
        yield f"{place}.rates: {len(group.rates)} values for {len(model.ranges)} ranges"
    if model.architecture.experts is None and group.parallelism.ep != 1:
        yield f"{place}.parallelism: ep {group.parallelism.ep} for a model without experts"
    if group.phase is Phase.PREFILL and group.max_batch != 1:
        yield f"{place}.maxBatch: {group.max_batch} stated, prefill takes one prompt at a time"
    if group.phase not in model.phases:
        allowed = ", ".join(model.phases)
        yield f"{place}.phase: {group.phase}, model {model.name} is to be served by {allowed}"
    for finding in wrong_parts(group, model.architecture.layers):
        yield f"{place}.parts: {finding}"


def _place(index: PlanIndex, group: Group) -> Iterator[str]:
    """Check that the pools exist, form a pipeline of the problem, and have the class."""
    place = f"groups[{group.name}]"
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


def check_document(document: Document, plan: Plan) -> Iterator[str]:
    """Check the fields that ``parse_plan`` does not read because they follow from others."""
    groups = {group.name: group for group in plan.groups}
    yield from _islands(document, groups)
    yield from _members(document, plan)
    yield from _pools(document, plan)
    yield from _figures(document, plan)
    digest = content_hash(document)
    if document.get("hash") != digest:
        yield f"hash: {document.get('hash')} stated, the content has {digest}"


def _figures(document: Document, plan: Plan) -> Iterator[str]:
    """Check the unit of theta, and the bound as throughput unless the cost is minimised."""
    unit = THETA_UNIT[plan.objective]
    if document.get("thetaUnit") != unit:
        yield f"thetaUnit: {document.get('thetaUnit')!r} stated, {plan.objective} has {unit!r}"
    if plan.objective is Objective.COST:
        for field in ("bound", "thetaBound"):
            if field in document:
                yield f"{field}: stated, although the plan is proved by its cost; see costBound"
        return
    per_theta = plan.throughput / plan.theta if plan.theta else 1.0
    bound = plan.certificate.bound * per_theta
    stated = document.get("bound")
    if not isinstance(stated, (int, float)) or not math.isclose(stated, bound, rel_tol=TOLERANCE):
        yield f"bound: {stated} req/s stated, thetaBound gives {bound:.9g}"


def _islands(document: Document, groups: dict[str, Group]) -> Iterator[str]:
    for item in document["islands"]:
        group = groups.get(item["group"])
        if group is None:
            continue
        for field, value in (
            ("model", group.model),
            ("pool", group.pool),
            ("phase", str(group.phase)),
            ("gpus", group.gpus),
        ):
            if item.get(field) != value:
                yield (
                    f"islands[{item['name']}].{field}: {item.get(field)!r} stated, its group has "
                    f"{value!r}"
                )


def _members(document: Document, plan: Plan) -> Iterator[str]:
    members: dict[str, list[str]] = {group.name: [] for group in plan.groups}
    for island in plan.islands:
        members.setdefault(island.group, []).append(island.name)
    for item in document["groups"]:
        if item.get("members") != members[item["name"]]:
            yield f"groups[{item['name']}].members: not the islands that name this group"


def _pools(document: Document, plan: Plan) -> Iterator[str]:
    spec = {pool["name"]: pool for pool in document["problem"]["pools"]}
    listed = list(Node(document).field("pools").items())
    stated = {pool.field("name").text(): pool.mapping() for pool in listed}
    for name in sorted({*spec, *stated}):
        if name not in spec or name not in stated:
            yield f"pools[{name}]: not in both the plan and the problem"
            continue
        used = sum(group.gpus_of(name) * group.islands for group in plan.groups)
        for field, value in (
            ("accelerator", spec[name]["accelerator"]),
            ("count", spec[name]["count"]),
            ("used", used),
            ("pricePerGPUHour", spec[name].get("pricePerGPUHour", "0")),
        ):
            if stated[name].get(field) != value:
                yield f"pools[{name}].{field}: {stated[name].get(field)!r} stated, it is {value!r}"
