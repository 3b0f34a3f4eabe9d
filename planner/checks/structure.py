"""Do the parts of the plan name each other rightly, and only things that the problem has?"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from archipelago.planner.checks.nodes import classes
from archipelago.planner.checks.parts import wrong_parts
from archipelago.planner.problem import STAGES, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A Kubernetes label value, which the names of islands become."""


def check(facts: Facts) -> Iterator[str]:
    """Names are unique and known; groups and islands agree."""
    plan = facts.plan
    yield from _names("groups", [group.name for group in plan.groups])
    yield from _names("islands", [island.name for island in plan.islands])
    members = Counter(island.group for island in plan.islands)
    for name in members:
        if name not in facts.groups:
            yield f"islands: {members[name]} belong to group {name!r}, which does not exist"
    for group in plan.groups:
        yield from _group(facts, group, members[group.name])
    for model in facts.models:
        for stage in STAGES:
            if not any(g.model == model and stage in g.phase.stages for g in plan.groups):
                yield f"models[{model}]: no island serves {stage}"


def _names(kind: str, names: list[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{kind}[{name}]: stands {times} times; names are unique"
        if not LABEL.fullmatch(name):
            yield f"{kind}[{name}]: is not a DNS label of at most 63 characters"


def _group(facts: Facts, group: Group, members: int) -> Iterator[str]:
    place = f"groups[{group.name}]"
    if members != group.islands:
        yield f"{place}.islands: {group.islands} stated, {members} listed"
    if group.parallelism.gpus != group.gpus:
        yield (
            f"{place}.gpus: {group.gpus} stated, {group.parallelism} uses {group.parallelism.gpus}"
        )
    yield from _place(facts, group)
    model = facts.models.get(group.model)
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


def _place(facts: Facts, group: Group) -> Iterator[str]:
    """Pools that exist and may form an island together, and a class that each of them has."""
    place = f"groups[{group.name}]"
    for part in group.sections:
        pool = facts.pools.get(part.pool)
        if pool is None:
            yield f"{place}.pool: {part.pool!r} is not a pool of the problem"
        elif group.domain_class not in classes(pool):
            yield f"{place}.domainClass: pool {pool.name} has no class {group.domain_class!r}"
    names = tuple(part.pool for part in group.parts)
    if names and names not in facts.problem.pipelines:
        declared = "; ".join(", ".join(names) for names in facts.problem.pipelines) or "none"
        yield f"{place}.parts: {', '.join(names)} are no pipeline of the problem ({declared})"
