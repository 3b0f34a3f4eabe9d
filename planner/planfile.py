"""Read a plan back from its document; the other direction is ``document.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.lengths import Range
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.planner.canonical import API_VERSION, PLAN, Document
from archipelago.planner.errors import PlanFileError
from archipelago.planner.plan import (
    Certificate,
    Changes,
    Exclusion,
    Group,
    Island,
    Pair,
    Part,
    Plan,
    Route,
    ThetaInterval,
    Unservable,
)
from archipelago.planner.problem import DEFAULT_CLASS, Objective, Phase
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from collections.abc import Iterator


def parse_plan(document: Document) -> Plan:
    """The plan of a document.

    Raises:
        PlanFileError: a field is missing or of the wrong kind; the message names its path.
    """
    node = Node(document)
    kind, version = node.field("kind"), node.field("apiVersion")
    if kind.value != PLAN:
        raise kind.refuse(f"{PLAN!r}; give the output of `archipelago plan -o json`")
    if version.value != API_VERSION:
        raise version.refuse(f"{API_VERSION!r}, the version that this program reads")
    objective = node.field("objective").one_of(Objective)
    return Plan(
        name=node.field("name").text(),
        strategy=node.field("strategy").text(),
        performance_model=node.field("performanceModel").text(),
        objective=objective,
        theta=node.field("theta").number(),
        throughput=node.field("throughput").number(),
        certificate=_read_certificate(node, objective),
        cost_per_hour=node.field("costPerHour").decimal(),
        groups=tuple(_read_group(item) for item in node.field("groups").items()),
        islands=tuple(_read_island(item) for item in node.field("islands").items()),
        routes=tuple(_read_route(item) for item in node.field("routes").items()),
        unservable=tuple(_read_unservable(item) for item in node.field("unservable").items()),
        exclusions=tuple(_read_exclusion(item) for item in node.field("exclusions").items()),
        rented=tuple(_read_rented(node.field("pools"))),
        changes=_read_changes(node.optional("changes")),
        interval=_read_interval(node.optional("thetaInterval")),
    )


def _read_certificate(node: Node, objective: Objective) -> Certificate:
    """The bound is on what was optimised: the cost, or theta."""
    bound = "costBound" if objective is Objective.COST else "thetaBound"
    return Certificate(
        bound=node.field(bound).number(),
        gap=node.field("gap").number(least=-1.0),
        complete=node.field("complete").truth(),
        reason=node.field("reason").text(),
    )


def _read_rented(pools: Node) -> Iterator[tuple[str, int]]:
    for pool in pools.items():
        rented = pool.optional("rented")
        if rented is not None:
            yield pool.field("name").text(), rented.integer(1)


def _read_interval(node: Node | None) -> ThetaInterval | None:
    if node is None:
        return None
    return ThetaInterval(
        node.field("low").number(), node.field("high").number(), node.field("dominatedBy").text()
    )


def _read_changes(node: Node | None) -> Changes | None:
    if node is None:
        return None
    names = {
        key: tuple(item.text() for item in node.field(key).items())
        for key in ("kept", "started", "stopped", "moved")
    }
    return Changes(**names, moved_gpus=node.field("movedGpus").integer())


def _read_group(node: Node) -> Group:
    placed, parts = node.optional("domainClass"), node.optional("parts")
    within = node.optional("timesWithin")
    return Group(
        name=node.field("name").text(),
        model=node.field("model").text(),
        pool=node.field("pool").text(),
        phase=node.field("phase").one_of(Phase),
        gpus=node.field("gpus").integer(1),
        parallelism=read_parallelism(node.field("parallelism")),
        max_batch=node.field("maxBatch").integer(1),
        islands=node.field("islands").integer(1),
        rates=tuple(item.number() for item in node.field("rates").items()),
        utilisation=node.field("utilisation").number(),
        binding=node.field("binding").text(),
        step_time=node.field("tpotMilliseconds").number() / 1e3,
        sequences=node.field("sequences").number(),
        kv_tokens=node.field("kvTokens").number(),
        kv_capacity=node.field("kvCapacity").integer(),
        domain_class=placed.text() if placed else DEFAULT_CLASS,
        parts=tuple(_read_part(item) for item in parts.items()) if parts else (),
        times_within=within.number(1.0) if within else 1.0,
    )


def _read_part(node: Node) -> Part:
    return Part(
        node.field("pool").text(), node.field("gpus").integer(1), node.field("layers").integer(1)
    )


def read_parallelism(node: Node) -> Parallelism:
    """tp, pp, dp and ep of a document."""
    degrees = {key: node.field(key).integer(1) for key in ("tp", "pp", "dp", "ep")}
    try:
        return Parallelism(**degrees)
    except PerfModelError as error:
        raise PlanFileError(f"{node.path}: {error}") from None


def _read_island(node: Node) -> Island:
    return Island(
        name=node.field("name").text(),
        group=node.field("group").text(),
        nodes=tuple(item.text() for item in node.field("nodes").items()),
    )


def _read_route(node: Node) -> Route:
    return Route(
        model=node.field("model").text(),
        range=read_range(node.field("range")),
        share=node.field("share").number(),
        pairs=tuple(_read_pair(item) for item in node.field("pairs").items()),
    )


def read_range(node: Node) -> Range:
    """A half-open interval of input lengths."""
    return Range(node.field("min").integer(), node.field("max").integer(1))


def _read_pair(node: Node) -> Pair:
    return Pair(
        node.field("prefill").text(), node.field("decode").text(), node.field("weight").integer()
    )


def _read_unservable(node: Node) -> Unservable:
    return Unservable(
        node.field("model").text(), node.field("share").number(), node.field("above").integer()
    )


def _read_exclusion(node: Node) -> Exclusion:
    return Exclusion(node.field("template").text(), node.field("reason").text())
