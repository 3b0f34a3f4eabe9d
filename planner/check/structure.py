"""A plan document repeats some facts for its readers; do the copies agree, and does the hash?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from archipelago.planner.canonical import THETA_UNIT, content_hash
from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.problem import Objective
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Group, Plan


def check(document: Document, plan: Plan) -> Iterator[str]:
    """Fields that ``parse_plan`` does not read because they follow from others."""
    groups = {group.name: group for group in plan.groups}
    yield from _islands(document, groups)
    yield from _members(document, plan)
    yield from _pools(document, plan)
    yield from _figures(document, plan)
    found = content_hash(document)
    if document.get("hash") != found:
        yield f"hash: {document.get('hash')} stated, the content has {found}"


def _figures(document: Document, plan: Plan) -> Iterator[str]:
    """The unit of theta, and the bound as throughput where theta has one."""
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
        used = sum(_taken(group, name) * group.islands for group in plan.groups)
        for field, value in (
            ("accelerator", spec[name]["accelerator"]),
            ("count", spec[name]["count"]),
            ("used", used),
            ("pricePerGPUHour", spec[name].get("pricePerGPUHour", "0")),
        ):
            if stated[name].get(field) != value:
                yield f"pools[{name}].{field}: {stated[name].get(field)!r} stated, it is {value!r}"


def _taken(group: Group, pool: str) -> int:
    """GPUs that one island of a group takes from a pool."""
    if not group.parts:
        return group.gpus if group.pool == pool else 0
    return sum(part.gpus for part in group.parts if part.pool == pool)
