"""Checks of names: the parts of a plan refer to each other, and to what the problem has.

A plan file repeats some values for its readers; the copies and the hash must agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..documents import OUTSIDE, Document, content_hash
from ..plan import Group
from ..problem import STAGES, Phase
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
        named = group.islands if plan.only_counts else members[group.name]
        yield from _check_group(index, group, named)
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
    if not model.splits.admits(split):
        yield f"{place}.parallelism: {split} is not one that the model's engine admits"
    yield from misstated(f"{place}.started", group.started, model.started, "the model's engine")
    for finding in wrong_parts(group, model.architecture.layers):
        yield f"{place}.parts: {finding}"


def check_document(document: Document, stored: Document) -> Iterator[str]:
    """Check the fields that follow from others; ``stored``: written anew from what was read."""
    for field in sorted({*document, *stored} - {*OUTSIDE, "problem"}):
        yield from _check_copies(field, document.get(field), stored.get(field))
    if document["complete"] and document["reason"]:
        yield f"reason: {document['reason']!r}, although the search is complete"
    digest = content_hash(document)
    if document.get("hash") != digest:
        yield f"hash: {document.get('hash')} stated, the content has {digest}"


def _check_copies(place: str, stated: object, follows: object) -> Iterator[str]:
    """Compare two values of a document with all that is inside; items of lists by their names."""
    if stated == follows:
        return  # at once for most of a large file
    one, other = _by_name(stated), _by_name(follows)
    if follows is None and stated is not None:
        yield f"{place}: stated, although the rest of the file has no such field"
    elif one is None or other is None or type(stated) is not type(follows):
        yield from misstated(place, stated, follows)
    else:
        for key in dict.fromkeys((*one, *other)):
            inner = f"{place}.{key}" if isinstance(stated, dict) else f"{place}[{key}]"
            yield from _check_copies(inner, one.get(key), other.get(key))


def _by_name(value: object) -> dict[Any, Any] | None:
    """Return the items of a mapping or list by name, or by position; None for other values."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return None
    names = [item.get("name") if isinstance(item, dict) else None for item in value]
    unique = None not in names and len({*names}) == len(names)
    return dict(zip(names if unique else range(len(value)), value, strict=True))
