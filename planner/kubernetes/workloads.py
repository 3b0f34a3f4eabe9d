"""Write one workload per island: a Deployment, or a LeaderWorkerSet if it has several pods.

An island's pods carry the labels of ``labels.py``. Equal tables and templates give equal documents
in equal order, so that applying them twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archipelago.perfmodel.roofline.parallelism import Parallelism

from ..catalogue import accelerator_of
from ..documents import Document
from ..errors import InputError
from ..problem import Phase
from ..started import started_facts
from .engine_flags import Engine, Start, arguments, obstacle, settings, switches, variables
from .labels import (
    EITHER,
    HASH_LENGTH,
    ISLAND_LABEL,
    PHASE_LABEL,
    PLAN_LABEL,
    ROLE_LABEL,
    cut,
    digest,
    label_value,
    role_of,
)
from .pod_template import Fitting, fitted

if TYPE_CHECKING:
    from ..servingplan import ServingPlanSpec


NAME_LENGTH = 50
"""Longest name: a LeaderWorkerSet adds 11 characters (a revision hash) in a label of 63."""


ENGINES = {"vllm": Engine.VLLM, "llm-d": Engine.VLLM, "sglang": Engine.SGLANG, "dynamo": Engine.ENV}
"""Engine whose metrics a model has -> engine whose arguments start its islands."""
NAMED = {"vllm": Engine.VLLM, "sglang": Engine.SGLANG, "tensorrt-llm": Engine.ENV}
"""Name of the engine, if the table states it -> engine whose arguments start its islands."""
GPUS = dict.fromkeys(("cdna2", "cdna3", "cdna4"), "amd.com/gpu") | {
    "gaudi": "habana.ai/gaudi",
    "xe2": "gpu.intel.com/xe",
    "ascend": "huawei.com/Ascend910",
    "tpu": "google.com/tpu",
    "neuron": "aws.amazon.com/neuron",
}
"""Accelerator family -> resource of its device plugin; all others are NVIDIA's."""
PHASE_AT_START = {Engine.SGLANG}
"""Engines that are started for one phase, by an argument."""
TWO = 2
TOGETHER = "give the table and the plan of one ServingPlan"


@dataclass(frozen=True)
class ManifestOptions:
    """Options of the manifests beside the table and the spec.

    ``templates``: pod template by model name, ``""`` for all others. ``engine``: instead of each
    model's engine in the spec. ``selectors``: node labels by pool, for pools with a ``count``.
    """

    plan: str
    templates: Mapping[str, Document]
    namespace: str | None = None
    engine: Engine | None = None
    selectors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """The pods of an island in one pool: GPUs of each, and their nodes."""

    pool: str
    gpus: int
    pods: int
    nodes: tuple[str, ...]


def workloads(content: Document, spec: ServingPlanSpec, options: ManifestOptions) -> list[Document]:
    """Return the manifests of every island of routing content, in the order of their names.

    Raises:
        InputError: a model has no template, or an island cannot be written as pods.
        PlanFileError: a template sets what the plan sets.
    """
    models = {name: group["model"] for group in content["groups"] for name in group["members"]}
    islands = sorted(content["islands"], key=lambda island: str(island["name"]))
    return [_workload(island, models[island["name"]], spec, options) for island in islands]


def gpus_of(manifest: Document) -> int:
    """Return the GPUs of all pods of a workload that `workloads` wrote."""
    spec = manifest["spec"]
    if manifest["kind"] == "Deployment":
        return _gpus(spec["template"])
    group = spec["leaderWorkerTemplate"]
    workers = int(group["size"]) - 1
    return _gpus(group["leaderTemplate"]) + workers * _gpus(group["workerTemplate"])


def _gpus(pod: Document) -> int:
    names = {"nvidia.com/gpu", *GPUS.values()}
    limits = (c["resources"]["limits"] for c in pod["spec"]["containers"] if c.get("resources"))
    return sum(int(count) for given in limits for name, count in given.items() if name in names)


def unplaced(content: Document, spec: ServingPlanSpec, options: ManifestOptions) -> list[str]:
    """Return pools in use without a node selector: only the templates place their pods."""
    used = {part.pool for island in content["islands"] for part in _parts(island)}
    selected = {pool.name for pool in spec.pools if pool.node_selector} | set(options.selectors)
    return sorted(used - selected) if len({pool.name for pool in spec.pools}) > 1 else []


def _workload(
    island: Document, model: str, spec: ServingPlanSpec, options: ManifestOptions
) -> Document:
    parts = _parts(island)
    engines = {m.name: m.engine for m in spec.models}
    if model not in engines:
        raise InputError(f"the table serves model {model}, the plan does not: {TOGETHER}")
    facts = started_facts(island.get("started", ""))
    start = Start(
        Phase(island["phase"]),
        Parallelism(**island["parallelism"]),
        island["maxBatch"],
        sum(part.pods for part in parts),
        facts,
    )
    own = NAMED[facts["name"]] if "name" in facts else ENGINES[engines[model].metrics]
    engine = options.engine or own
    if why := _obstacle(parts, engine, start):
        raise InputError(f"island {island['name']}: {why}")
    pools = {pool.name: pool for pool in spec.pools}
    if missing := [part.pool for part in parts if part.pool not in pools]:
        raise InputError(
            f"the table has islands in pool {missing[0]}, the plan does not: {TOGETHER}"
        )
    template = options.templates.get(model) or options.templates.get("")
    if template is None:
        raise InputError(f"model {model} has no template: add --pod-template {model}=FILE")
    either = engines[model].role_switch == "Online" and engine not in PHASE_AT_START
    stated = {**island, "phase": EITHER} if either else island
    labels = {
        PLAN_LABEL: label_value(options.plan),
        ISLAND_LABEL: island["name"],
        **({} if either else {PHASE_LABEL: island["phase"]}),
        ROLE_LABEL: role_of(stated, model),
    }
    words = _variables(options.plan, stated, model, start)

    def pod(part: _Part, *, follows: bool) -> Document:
        pool = pools[part.pool]
        fitting = Fitting(
            labels=labels,
            gpus=part.gpus,
            resource=GPUS.get(
                accelerator_of(pool.accelerator, spec.accelerators).family, "nvidia.com/gpu"
            ),
            variables=words,
            arguments=arguments(engine, start, follows=follows),
            settings=settings(engine, facts),
            switches=switches(engine, facts),
            nodes=part.nodes if pool.node_selector is not None else (),
            selector=options.selectors.get(part.pool, {}),
            follows=follows,
        )
        return fitted(template, fitting)

    scope = {"namespace": options.namespace} if options.namespace else {}
    metadata = {"name": _name(options.plan, island["name"]), **scope, "labels": labels}
    leader = pod(parts[0], follows=False)
    if start.pods > 1:
        group = {
            "size": start.pods,
            "restartPolicy": "RecreateGroupOnPodRestart",  # the pods of an island restart together
            "leaderTemplate": leader,
            "workerTemplate": pod(parts[-1], follows=True),
        }
        return {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": metadata,
            "spec": {"replicas": 1, "leaderWorkerTemplate": group},
        }
    selector = {key: labels[key] for key in (PLAN_LABEL, ISLAND_LABEL)}  # a phase may change
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            # The GPUs hold one pod at a time: the next one waits for them. It must not wait until
            # the last one has ended, as with `Recreate`: on a lost node none ever ends.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "selector": {"matchLabels": selector},
            "template": leader,
        },
    }


def _name(plan: str, island: str) -> str:
    """Return the name of an island's workload; a hash keeps plans of one namespace apart."""
    name = cut(island, NAME_LENGTH - HASH_LENGTH - 3)
    name = name if name[0].isalpha() else f"i-{name}"  # a Service begins with a letter
    return f"{name}-{digest(f'{plan}/{island}')}"


def _parts(island: Document) -> list[_Part]:
    """Return one part per pool; a pool without nodes is one pod."""
    return [
        _Part(
            part["pool"],
            part["gpus"] // max(len(part["nodes"]), 1),
            max(len(part["nodes"]), 1),
            tuple(part["nodes"]),
        )
        for part in island.get("parts") or [island]
    ]


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
        "PHASE": island["phase"],
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
    values |= variables(start.facts)
    return {f"ARCHIPELAGO_{name}": str(value) for name, value in values.items()}
