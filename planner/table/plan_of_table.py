"""Read a plan back from its routing content.

After a restart only the table is left: groups, islands and weights. Theta, rates and fixed points
are not in it; re-planning computes them again for the current demand. ``accounted`` adds what
follows from the table and the problem: cost, rented GPUs, and lengths without a route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.workload.lengths import Range

from ..documents import Document
from ..errors import PlanFileError
from ..plan import Certificate, Group, Island, Pair, Part, Plan, Route, Unfinished, Unservable
from ..problem import DEFAULT_CLASS, RENTED, Billing, ModelDemand, Phase, PlanningProblem
from ..templates.packing import nodes_of
from .validate import validate_content

NO_PROOF: Final = Certificate(0.0, 0.0, complete=False, reason=Unfinished.READ_BACK)
"""A table carries no proof."""
ROW: Final = {Phase.PREFILL: "time", Phase.DECODE: "batch", Phase.MIXED: "time"}
"""A capacity row of every island of the phase; a table does not state which row binds."""
ROUNDING: Final = 1e-9
"""A smaller share of requests without a route is rounding."""


def plan_of(content: Document, problem: PlanningProblem, *, of_it: bool = True) -> Plan:
    """Return the plan of a routing content: its groups, islands and routes.

    Theta, throughput, rates and the certificate are 0. Node names are those of the content.
    ``routing_content`` of the plan gives the same content, byte for byte.

    ``of_it``: whether the content must be one of this problem; else it may have models, pools and
    ranges that the problem has no longer, of which nothing but their names is known.

    Raises:
        PlanFileError: the content is invalid or of another spec; the message names the place.
    """
    if findings := validate_content(content) or [*_mismatches(content, problem, of_it=of_it)]:
        raise PlanFileError("; ".join(findings))
    models = {model.name: model for model in problem.models}
    islands = {island["name"]: island for island in content["islands"]}
    home = {name: group["name"] for group in content["groups"] for name in group["members"]}
    plan = Plan(
        name=problem.name,
        strategy=problem.solver.strategy,
        performance_model="",
        objective=problem.objective,
        theta=0.0,
        throughput=0.0,
        certificate=NO_PROOF,
        cost_per_hour=Decimal(0),
        groups=tuple(
            _group(group, islands[group["members"][0]], models.get(group["model"]))
            for group in content["groups"]
        ),
        islands=tuple(Island(n, home[n], tuple(i["nodes"])) for n, i in islands.items()),
        routes=tuple(
            route
            for model in content["models"]
            for route in _routes(model, models.get(model["name"]))
        ),
        unservable=(),
        exclusions=(),
    )
    return accounted(plan, problem)


def accounted(plan: Plan, problem: PlanningProblem) -> Plan:
    """Return the plan with its cost, rented GPUs, and the share of requests without a route."""
    nodes, cost, rented = _nodes_by_pool(plan, problem), Decimal(0), []
    for pool in problem.pools:
        size, paid = pool.gpus_per_node, plan.used(pool.name)
        rentable = set(nodes_of(pool).get(RENTED, ()))
        if size is None:
            extra = max(0, paid - pool.count)
        elif pool.billing is Billing.PER_NODE:
            names = {node for node, _ in nodes[pool.name]}
            extra, paid = size * len(names & rentable), size * len(names)
        else:
            extra = sum(gpus for node, gpus in nodes[pool.name] if node in rentable)
        cost += pool.price_per_gpu_hour * paid
        if extra:
            rented.append((pool.name, extra))
    return replace(
        plan,
        cost_per_hour=cost,
        rented=tuple(rented),
        unservable=tuple(_unservable(plan, problem)),
    )


def _mismatches(content: Document, problem: PlanningProblem, *, of_it: bool) -> Iterator[str]:
    """Find groups of unlike islands, and names and ranges that are not in the problem."""
    islands = {island["name"]: island for island in content["islands"]}
    for group in content["groups"]:
        kinds = Counter(_kind(islands[name]) for name in group["members"])
        if len(kinds) > 1:
            place = f"content.groups[name={group['name']}].members"
            yield f"{place}: {len(kinds)} kinds of islands; those of a group are alike"
    if not of_it:
        return
    models = {model.name: model for model in problem.models}
    pools = {pool.name for pool in problem.pools}
    for group in content["groups"]:
        place = f"content.groups[name={group['name']}]"
        model = models.get(group["model"])
        if model is None:
            yield f"{place}.model: {group['model']!r} is not a model of the spec"
        elif group["phase"] not in model.phases:
            yield f"{place}.phase: {group['phase']} does not serve {model.name} in the spec"
        elif any(islands[n].get("started", "") != model.started for n in group["members"]):
            yield f"{place}: its engines were started with other settings than the spec's"
    for name, island in islands.items():
        for pool in island["pool"].split("+") if island.get("parts") else [island["pool"]]:
            if pool not in pools:
                yield f"content.islands[name={name}].pool: {pool!r} is not a pool of the spec"
    for served in content["models"]:
        place, model = f"content.models[name={served['name']}]", models.get(served["name"])
        if model is None:
            yield f"{place}: is not a model of the spec"
            continue
        spans = [Range(route["min"], route["max"]) for route in served["routes"]]
        end = model.ranges[-1].max
        strange = (span for span in spans if span not in model.ranges and span.min != end)
        if span := next(strange, None):
            yield f"{place}: [{span.min}, {span.max}) is no range of the spec: of another version"


def _parts(island: dict[str, Any]) -> tuple[Part, ...]:
    return tuple(Part(p["pool"], p["gpus"], p["layers"]) for p in island.get("parts", ()))


def _kind(island: dict[str, Any]) -> tuple[object, ...]:
    split = tuple(sorted(island["parallelism"].items()))
    started = island.get("started", "")
    return island["pool"], island["gpus"], island["maxBatch"], split, _parts(island), started


def _group(group: dict[str, Any], island: dict[str, Any], model: ModelDemand | None) -> Group:
    """Return a group, with the facts of one of its islands and without rates."""
    phase = Phase(group["phase"])
    return Group(
        name=group["name"],
        model=group["model"],
        pool=island["pool"],
        phase=phase,
        gpus=island["gpus"],
        parallelism=Parallelism(**{key: island["parallelism"][key] for key in _DEGREES}),
        max_batch=island["maxBatch"],
        islands=len(group["members"]),
        rates=(0.0,) * (len(model.ranges) if model else 0),
        utilisation=0.0,
        binding=ROW[phase],
        domain_class=group.get("domainClass", DEFAULT_CLASS),
        parts=_parts(island),
        started=island.get("started", ""),
    )


_DEGREES: Final = tuple(asdict(Parallelism()))


def _routes(model: dict[str, Any], demand: ModelDemand | None) -> Iterator[Route]:
    """Yield routes in the order of ranges; the share is 0 for ranges that the workload lacks."""
    share: dict[Range, float] = {}
    if demand is not None:
        shares = demand.lengths.moments(demand.ranges).probability.tolist()
        share = dict(zip(demand.ranges, shares, strict=True))
    for route in model["routes"]:
        span = Range(route["min"], route["max"])
        pairs = (Pair(p["prefill"], p["decode"], p["weight"]) for p in route["pairs"])
        yield Route(model["name"], span, share.get(span, 0.0), tuple(pairs))


def _nodes_by_pool(plan: Plan, problem: PlanningProblem) -> dict[str, list[tuple[str, int]]]:
    """Return for each pool the nodes of its islands, with the GPUs that each island uses there."""
    sizes = {pool.name: pool.gpus_per_node for pool in problem.pools}
    sections = {group.name: group.sections for group in plan.groups}
    used: dict[str, list[tuple[str, int]]] = {name: [] for name in sizes}
    for island in plan.islands:
        nodes = iter(island.nodes)  # those of the first part come first
        for part in sections[island.group]:
            if size := sizes.get(part.pool):
                count = -(-part.gpus // size)
                used[part.pool] += ((n, min(part.gpus, size)) for n in islice(nodes, count))
    return used


def _unservable(plan: Plan, problem: PlanningProblem) -> Iterator[Unservable]:
    """Yield for each model the share of requests without a route, if there is one."""
    for model in problem.models:
        routed = {route.range for route in plan.routes if route.model == model.name}
        shares = model.lengths.moments(model.ranges).probability.tolist()
        served = sum(p for span, p in zip(model.ranges, shares, strict=True) if span in routed)
        without = [span.min for span in model.ranges if span not in routed]
        if 1.0 - served > ROUNDING:
            yield Unservable(model.name, 1.0 - served, min([*without, model.ranges[-1].max]))
