"""Check a routing table: before each write, and after reading a stored one.

Beyond the JSON Schema this checks that weights sum up, names exist, phases match, and ranges have
no gaps. It shares no code with the writer of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ..documents import API_VERSION, Node
from ..errors import PlanFileError
from ..plan import MILLION
from ..problem import STAGES, Phase
from ..started import started_facts
from .shards import MOST_SHARDS, is_pointer

LENGTH_UNITS = ("tokens",)
UNKNOWN_LENGTHS = ("Longest", "Shortest", "MostFrequent")
FIRST_LENGTH = 1
"""The first range starts at 0 or 1: a prompt has at least one token."""
PARTS = (2, 4)
"""Fewest and most pools of an island of several pools."""


class _Group(NamedTuple):
    model: str
    phase: Phase
    members: tuple[str, ...]


def validate_table(table: object) -> list[str]:
    """Return all errors of a table, each with its place; empty for a good table.

    Of a table in shards only the pointer is checked: ``shards.assemble`` gives the whole table.
    """
    try:
        node = Node(table)
        for name, expected in (("apiVersion", API_VERSION), ("kind", "RoutingTable")):
            if node.field(name).value != expected:
                raise node.field(name).refuse(repr(expected))
        _identity(node.field("identity"))
        if is_pointer(node.mapping()):
            return list(_pointer(node))
        content = node.field("content")
    except PlanFileError as error:
        return [str(error)]
    return validate_content(content.value)


def validate_content(content: object) -> list[str]:
    """Return all errors of the ``content`` of a table."""
    try:
        return list(_content(Node(content, "content")))
    except PlanFileError as error:
        return [str(error)]


def validate_routing(content: object) -> list[str]:
    """Return all errors of a content that lacks its ``islands``: of groups and routes alone."""
    try:
        node = Node(content, "content")
        _header(node)
        return [*_names(node, "groups", "models"), *_models(node, _groups(node))]
    except PlanFileError as error:
        return [str(error)]


def _identity(node: Node) -> None:
    if not node.field("uid").text():
        raise node.field("uid").refuse("a uid")
    node.field("generation").integer(1)
    node.field("sequence").integer(1)
    node.field("time").time()


def _pointer(node: Node) -> Iterator[str]:
    """Check that the shards have lengths, hashes and names, and add up."""
    if "content" in node.mapping():
        yield "content: a table has either content or shards"
    node.field("contentHash").sha256()
    shards = list(node.field("shards").items())
    if not 1 < len(shards) <= MOST_SHARDS:
        yield f"shards: {len(shards)}; a content in shards has 2 to {MOST_SHARDS}"
    for shard in shards:
        shard.field("hash").sha256()
        if not shard.field("name").text():
            raise shard.field("name").refuse("the name of a ConfigMap")
    total = sum(shard.field("bytes").integer(1) for shard in shards)
    if total != node.field("contentBytes").integer(1):
        yield f"shards: {total} bytes in all, contentBytes says {node.field('contentBytes').value}"


def _content(content: Node) -> Iterator[str]:
    _header(content)
    yield from _names(content, "groups", "islands", "models")
    groups = _groups(content)
    phases = {}
    for item in content.field("islands").items():
        item.field("pool").text()
        item.field("gpus").integer(1)
        item.field("maxBatch").integer(1)
        if (started := _present(item, "started")) is not None and not started_facts(started.text()):
            raise started.refuse("what the engine is started with; leave the field out for nothing")
        _degrees(item.field("parallelism"))
        for node in item.field("nodes").items():
            node.text()
        phases[item.field("name").text()] = item.field("phase").one_of(Phase)
    yield from _memberships(groups, phases)
    for island in content.field("islands").items():
        yield from _parts(island)
    yield from _models(content, groups)


def _header(content: Node) -> None:
    """Refuse wrong fields about the whole content."""
    for name, values in (("lengthUnit", LENGTH_UNITS), ("unknownLength", UNKNOWN_LENGTHS)):
        if content.field(name).value not in values:
            raise content.field(name).refuse(f"one of {', '.join(values)}")
    affinity = content.field("affinityKey")
    if affinity.value is not None:
        affinity.text()


def _names(content: Node, *lists: str) -> Iterator[str]:
    """Check that the items of these lists have different names."""
    for keyed in map(content.field, lists):
        names = Counter(item.field("name").text() for item in keyed.items())
        for name, times in names.items():
            if times > 1 or not name:
                yield f"{keyed.path}: name {name!r} stands {times} times; names are unique"


def _groups(content: Node) -> dict[str, _Group]:
    return {item.field("name").text(): _group(item) for item in content.field("groups").items()}


def _models(content: Node, groups: dict[str, _Group]) -> Iterator[str]:
    models = list(content.field("models").items())
    if not models:
        yield "content.models: empty; a table serves at least one model"
    for model in models:
        yield from _model(model, groups)


def _group(item: Node) -> _Group:
    placed = _present(item, "domainClass")
    if placed is not None and not placed.text():
        raise placed.refuse("the name of a class; leave the field out for the default")
    return _Group(
        item.field("model").text(),
        item.field("phase").one_of(Phase),
        tuple(member.text() for member in item.field("members").items()),
    )


def _degrees(node: Node) -> list[int]:
    """Return tp, pp, dp and ep; experts are spread over tp x dp GPUs, or sliced over tp (ep 1)."""
    tp, pp, dp, ep = (node.field(name).integer(1) for name in ("tp", "pp", "dp", "ep"))
    if ep not in (1, tp * dp):
        raise node.field("ep").refuse(f"1 or tp x dp, which is {tp * dp}")
    return [tp, pp, dp, ep]


def _parts(island: Node) -> Iterator[str]:
    """Check that the stages of an island of several pools add up to the island."""
    listed = _present(island, "parts")
    if listed is None:
        return
    place, parts = f"content.islands[name={island.field('name').text()}]", list(listed.items())
    least, most = PARTS
    if not least <= len(parts) <= most:
        yield f"{place}.parts: {len(parts)}; an island has {least} to {most} parts, or no field"
    gpus = [part.field("gpus").integer(1) for part in parts]
    for part in parts:
        part.field("layers").integer(1)
    if sum(gpus) != island.field("gpus").integer(1):
        yield f"{place}.parts: {sum(gpus)} GPUs in all, the island has {island.field('gpus').value}"
    tp, pp, dp, _ = _degrees(island.field("parallelism"))
    if any(count % tp for count in gpus) or sum(gpus) != tp * pp * dp:
        counts = " and ".join(map(str, gpus))
        yield f"{place}.parts: {counts} GPUs are not {pp} stages of {dp} x {tp} GPUs"
    pools = "+".join(part.field("pool").text() for part in parts)
    if pools != island.field("pool").text():
        yield f"{place}.parts: of {pools}, the island is of {island.field('pool').text()}"
    nodes = [node.text() for part in parts for node in part.field("nodes").items()]
    if nodes != [node.text() for node in island.field("nodes").items()]:
        yield f"{place}.parts: their nodes are not those of the island, in the same order"


def _present(node: Node, name: str) -> Node | None:
    """Return a field that may be absent, but not null."""
    return node.field(name) if name in node.mapping() else None


def _memberships(groups: dict[str, _Group], phases: dict[str, Phase]) -> Iterator[str]:
    times = Counter(member for group in groups.values() for member in group.members)
    for name, group in groups.items():
        place = f"content.groups[name={name}]"
        if not group.members:
            yield f"{place}.members: empty; a group has at least one island"
        for member in group.members:
            phase = phases.get(member)
            if phase is None:
                yield f"{place}.members: {member!r} is not an island of this table"
            elif phase is not group.phase:
                yield f"{place}: island {member!r} serves {phase}, the group {group.phase}"
    for island in phases:
        if times[island] != 1:
            place = f"content.islands[name={island}]"
            yield f"{place}: member of {times[island]} groups; each island belongs to exactly one"


def _model(model: Node, groups: dict[str, _Group]) -> Iterator[str]:
    """Check the routes: their ranges touch, and start at the shortest request."""
    name = model.field("name").text()
    place = f"content.models[name={name}].routes"
    routes = list(model.field("routes").items())
    if not routes:
        yield f"{place}: empty; leave the model out instead"
        return
    if model.field("unknownLengthRoute").integer() >= len(routes):
        yield (
            f"content.models[name={name}].unknownLengthRoute: there are only {len(routes)} routes, "
            "counted from 0"
        )
    spans = [(r.field("min").integer(), r.field("max").integer(1)) for r in routes]
    if spans[0][0] > FIRST_LENGTH:
        yield f"{place}[0].min: {spans[0][0]}; shorter requests have no route, start at 0"
    for i, (least, most) in enumerate(spans):
        if least >= most:
            yield f"{place}[{i}]: [{least}, {most}) holds no length"
    for i, ((_, end), (start, _)) in enumerate(pairwise(spans), start=1):
        if start != end:
            yield f"{place}[{i}].min: {start}, but the range before ends at {end}"
    for route in routes:
        yield from _route(route, name, groups)


def _route(route: Node, model: str, groups: dict[str, _Group]) -> Iterator[str]:
    place, pairs = f"{route.path}.pairs", list(route.field("pairs").items())
    total = sum(pair.field("weight").integer(1) for pair in pairs)
    if total != MILLION:
        yield f"{place}: weights sum to {total}, not {MILLION}"
    counts = Counter(tuple(pair.field(stage).text() for stage in STAGES) for pair in pairs)
    for pair, times in counts.items():
        if times > 1:
            yield f"{place}: {' -> '.join(pair)} stands {times} times"
        for stage, name in zip(STAGES, pair, strict=True):
            group = groups.get(name)
            if group is None:
                yield f"{place}.{stage}: {name!r} is not a group of this table"
            elif group.model != model:
                yield f"{place}.{stage}: group {name!r} serves model {group.model!r}, not {model!r}"
            elif stage not in group.phase.stages:
                yield f"{place}.{stage}: group {name!r} serves {group.phase}, not {stage}"
        mixed = [name for name in pair if name in groups and groups[name].phase is Phase.MIXED]
        if mixed and len(set(pair)) > 1:
            yield (
                f"{place}: {' -> '.join(pair)}: {mixed[0]!r} is mixed; requests stay on the island "
                "where they started, so it stands on both sides"
            )
