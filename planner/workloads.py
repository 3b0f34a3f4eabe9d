"""One workload per island: a Deployment, or a LeaderWorkerSet where it has several nodes.

An island is the pods that carry the labels of ``labels.py``. Equal tables and templates give equal
documents in equal order, so that what is applied twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.planner.engineflags import Engine, Start, arguments, obstacle
from archipelago.planner.errors import InputError
from archipelago.planner.labels import ISLAND_LABEL, PHASE_LABEL, PLAN_LABEL, label_value
from archipelago.planner.podkinds import deployment, leader_and_workers, metadata
from archipelago.planner.podtemplate import Fitting, fitted
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.canonical import Document
    from archipelago.planner.spec import ServingPlanSpec
    from archipelago.planner.spec.pools import Pool

ENGINES = {"vllm": Engine.VLLM, "llm-d": Engine.VLLM, "sglang": Engine.SGLANG, "dynamo": Engine.ENV}
"""Whose metrics tell about a model -> whose arguments its islands are started with."""
GPUS = {"cdna3": "amd.com/gpu", "cdna4": "amd.com/gpu", "gaudi": "habana.ai/gaudi"}
"""Family of an accelerator -> resource of its device plugin; NVIDIA's otherwise."""
TWO = 2
TOGETHER = "give the table and the plan of one ServingPlan"


@dataclass(frozen=True)
class Wish:
    """What is to be written beside the table and the spec.

    ``templates``: of each model by its name, ``""`` for all others. ``engine``: instead of what
    the spec says of each model. ``selectors``: labels of the nodes of pools that are counted.
    """

    plan: str
    templates: Mapping[str, Document]
    namespace: str | None = None
    engine: Engine | None = None
    selectors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """The pods of an island in one pool: GPUs of each, and where they stand."""

    pool: str
    gpus: int
    pods: int
    nodes: tuple[str, ...]


def workloads(content: Document, spec: ServingPlanSpec, wish: Wish) -> list[Document]:
    """Manifests for every island of routing content, in the order of their names.

    Raises:
        InputError: a model has no template, or an island cannot be written as pods.
        PlanFileError: a template says what the plan says.
    """
    models = {name: group["model"] for group in content["groups"] for name in group["members"]}
    islands = sorted(content["islands"], key=lambda island: str(island["name"]))
    return [_workload(island, models[island["name"]], spec, wish) for island in islands]


def unplaced(content: Document, spec: ServingPlanSpec, wish: Wish) -> list[str]:
    """Pools in use of whose nodes nothing is known, so that the templates decide alone."""
    found = {part.pool for island in content["islands"] for part in _parts(island)}
    known = {pool.name for pool in spec.pools if pool.node_selector} | set(wish.selectors)
    return sorted(found - known) if len({pool.name for pool in spec.pools}) > 1 else []


def _workload(island: Document, model: str, spec: ServingPlanSpec, wish: Wish) -> Document:
    parts = _parts(island)
    start = Start(
        Phase(island["phase"]),
        Parallelism(**island["parallelism"]),
        island["maxBatch"],
        sum(part.pods for part in parts),
    )
    engine = wish.engine or _engine_of(spec, model)
    if why := _obstacle(parts, engine, start):
        raise InputError(f"island {island['name']}: {why}")
    labels = {
        PLAN_LABEL: label_value(wish.plan),
        ISLAND_LABEL: island["name"],
        PHASE_LABEL: str(start.phase),
    }
    variables = _variables(wish.plan, island, model, start)
    pods = [
        fitted(
            _template(wish, model),
            Fitting(
                labels=labels,
                gpus=part.gpus,
                resource=_resource(spec, part.pool),
                variables=variables,
                arguments=arguments(engine, start, follows=follows),
                nodes=part.nodes if _is_found(spec, part.pool) else (),
                selector=wish.selectors.get(part.pool, {}),
                follows=follows,
            ),
        )
        for part, follows in _leader_first(parts)
    ]
    about = metadata(wish.plan, island["name"], wish.namespace, labels)
    if start.pods == 1:
        return deployment(about, pods[0])
    leader, worker = pods
    return leader_and_workers(about, leader, worker, start.pods)


def _parts(island: Document) -> list[_Part]:
    """One part per pool; a pool whose GPUs come one by one is one pod."""
    stated = island.get("parts") or [island]
    return [
        _Part(
            part["pool"],
            part["gpus"] // max(len(part["nodes"]), 1),
            max(len(part["nodes"]), 1),
            tuple(part["nodes"]),
        )
        for part in stated
    ]


def _leader_first(parts: list[_Part]) -> list[tuple[_Part, bool]]:
    """Each kind of pod with whether it follows: one alone, or the leader's and the workers'."""
    first, *rest = parts
    if not rest:
        return [(first, False)] + ([(first, True)] if first.pods > 1 else [])
    return [(first, False), *((part, True) for part in rest)]


def _obstacle(parts: list[_Part], engine: Engine, start: Start) -> str | None:
    if len(parts) > TWO or (len(parts) == TWO and parts[0].pods > 1):
        pods = " and ".join(f"{part.pods} nodes of {part.pool}" for part in parts)
        return f"one leader and equal workers cannot be {pods}; make its pods by hand"
    why = obstacle(engine, start)
    if engine is not Engine.ENV and len({part.gpus for part in parts}) > 1:
        why = f"{engine} wants equally many GPUs on each node"
    return f"{why}; say --engine env, and start it yourself" if why else None


def _variables(plan: str, island: Document, model: str, start: Start) -> dict[str, str]:
    split = start.parallelism
    values = {
        "PLAN": plan,
        "ISLAND": island["name"],
        "MODEL": model,
        "PHASE": str(start.phase),
        "GPUS": island["gpus"],
        "NODES": start.pods,
        "TP": split.tp,
        "PP": split.pp,
        "DP": split.dp,
        "EP": split.ep,
        "MAX_BATCH": start.max_batch,
    }
    if island.get("parts"):
        values["LAYERS"] = ",".join(str(part["layers"]) for part in island["parts"])
    return {f"ARCHIPELAGO_{name}": str(value) for name, value in values.items()}


def _engine_of(spec: ServingPlanSpec, model: str) -> Engine:
    found = next((m for m in spec.models if m.name == model), None)
    if found is None:
        raise InputError(
            f"the table serves model {model}, which the plan does not have: {TOGETHER}"
        )
    return ENGINES[found.engine.metrics]


def _template(wish: Wish, model: str) -> Document:
    found = wish.templates.get(model) or wish.templates.get("")
    if found is None:
        raise InputError(f"model {model} has no template: add --pod-template {model}=FILE")
    return found


def _pool(spec: ServingPlanSpec, name: str) -> Pool:
    found = next((pool for pool in spec.pools if pool.name == name), None)
    if found is None:
        raise InputError(f"the table has islands in pool {name}, the plan does not: {TOGETHER}")
    return found


def _resource(spec: ServingPlanSpec, pool: str) -> str:
    family = accelerator(_pool(spec, pool).accelerator).family
    return GPUS.get(family, "nvidia.com/gpu")


def _is_found(spec: ServingPlanSpec, pool: str) -> bool:
    """Whether names of nodes in the table are the cluster's."""
    return _pool(spec, pool).node_selector is not None
