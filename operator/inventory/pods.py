"""Pods as the inventory keeps them: the GPUs that each holds, and the island it belongs to; pure.

A pod of a plan has the label ``archipelago.dev/plan`` and is in the plan's namespace. Only pods
with this label, or with a request for GPUs, are kept. A plan must not use what any other pod
requests, even on a node that it owns. A report without a relevant change compares equal to the
stored pod.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from archipelago.planner.kubernetes.labels import ISLAND_LABEL, PHASE_LABEL, PLAN_LABEL
from archipelago.planner.kubernetes.nodes import gpus

from ..resources.live import IslandPods
from ..resources.names import Key

OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``version``, of the object, grows with every report and does not compare.

    Attributes:
        uid: Of the object.
        namespace: Of the object.
        version: Resource version.
        node: Where it runs or will run; empty if it is not scheduled.
        gpus: Whole GPUs of its node that it holds [GPUs]; a pod that is being deleted holds them
            until its object is gone. 0 if it is not scheduled, over, or without any.
        plan: Namespace and label value of its plan; None without one.
        island: Label value of its island; empty without one.
        phase: What its engine runs as: prefill, decode or mixed; empty if not stated.
        ready: Whether it may get requests: Ready, and not being deleted.
    """

    uid: str
    namespace: str
    version: int = field(compare=False)
    node: str
    gpus: int
    plan: Key | None
    island: str
    phase: str
    ready: bool


def requested(spec: Mapping[str, Any]) -> int:
    """Return the GPUs that the scheduler reserves for a pod [GPUs].

    Containers run together, and with them the sidecars (init containers that are always restarted).
    Any other init container runs alone, except for the sidecars started before it.
    """
    sidecars, peak = 0, 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += _container_gpus(container)
        else:
            peak = max(peak, sidecars + _container_gpus(container))
    return max(peak, sidecars + sum(map(_container_gpus, spec.get("containers") or ())))


def _container_gpus(container: Mapping[str, Any]) -> int:
    """Return a container's GPUs: of an extended resource, a limit alone is the request as well."""
    resources = container.get("resources") or {}
    return gpus({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def read_pod(body: Mapping[str, Any]) -> PodFacts | None:
    """Read a pod; return None if it neither requests GPUs nor has the label of a plan."""
    meta, spec = body["metadata"], body["spec"]
    labels = meta.get("labels") or {}
    plan, gpus_requested = labels.get(PLAN_LABEL), requested(spec)
    if not plan and not gpus_requested:
        return None
    status = body.get("status") or {}
    is_over = status.get("phase") in OVER  # an ended pod's object may stay
    is_part = bool(plan) and not is_over
    conditions = status.get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    return PodFacts(
        uid=meta["uid"],
        namespace=meta["namespace"],
        version=int(meta["resourceVersion"]),
        node=spec.get("nodeName") or "",
        gpus=gpus_requested if spec.get("nodeName") and not is_over else 0,
        plan=Key(meta["namespace"], plan) if plan else None,
        island=(labels.get(ISLAND_LABEL) or "") if is_part else "",
        phase=(labels.get(PHASE_LABEL) or "") if is_part else "",
        ready="deletionTimestamp" not in meta and ready,
    )


class PodTable:
    """The newest version of all relevant pods."""

    def __init__(self) -> None:
        self._pods: dict[str, PodFacts] = {}
        self._of_plan: defaultdict[Key, set[str]] = defaultdict(set)
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._deleted: dict[str, int] = {}

    def get(self, uid: str) -> PodFacts | None:
        """Return a pod."""
        return self._pods.get(uid)

    def update(self, pod: PodFacts) -> bool:
        """Take in a version; return whether anything relevant changed."""
        before = self._pods.get(pod.uid)
        if pod.version <= max(before.version if before else -1, self._deleted.get(pod.uid, -1)):
            return False
        if before is not None:
            self._unlink(before)
        self._pods[pod.uid] = pod
        self._on_node[pod.node].add(pod.uid)
        if pod.plan:
            self._of_plan[pod.plan].add(pod.uid)
        return before != pod

    def delete(self, uid: str, version: int) -> bool:
        """Remove a pod deleted at that version; a list from before does not bring it back."""
        self._deleted[uid] = version
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._unlink(pod)
        return pod is not None

    def unlisted(
        self, listed: Collection[str], version: int, namespace: str | None
    ) -> tuple[PodFacts, ...]:
        """Return what a list of the namespace (None: of all), taken at that version, lacks."""
        self._deleted = {uid: when for uid, when in self._deleted.items() if when > version}
        return tuple(
            pod
            for uid, pod in self._pods.items()
            if uid not in listed and namespace in (None, pod.namespace) and pod.version <= version
        )

    def plans_on(self, node: str) -> frozenset[Key]:
        """Return the plans with pods on a node."""
        pods = (self._pods[uid] for uid in self._on_node.get(node, ()))
        return frozenset(pod.plan for pod in pods if pod.plan)

    def held_by_others(self, plan: Key) -> Mapping[str, int]:
        """Return the GPUs of each node that pods outside the plan hold [GPUs]."""
        held: Counter[str] = Counter()
        for pod in self._pods.values():
            if pod.gpus and pod.plan != plan:
                held[pod.node] += pod.gpus
        return held

    def islands(self, plan: Key) -> dict[str, IslandPods]:
        """Return the islands of a plan that have pods, by the value of their label."""
        by_island: defaultdict[str, list[PodFacts]] = defaultdict(list)
        for uid in self._of_plan.get(plan, ()):
            pod = self._pods[uid]
            if pod.island:
                by_island[pod.island].append(pod)
        islands = {}
        for island, pods in sorted(by_island.items()):
            phases = {pod.phase for pod in pods}
            islands[island] = IslandPods(
                ready=all(pod.ready for pod in pods),
                phase=phases.pop() if len(phases) == 1 else "",
                pods=len(pods),
                gpus=sum(pod.gpus for pod in pods),
                nodes=frozenset(pod.node for pod in pods if pod.node),
            )
        return islands

    def _unlink(self, pod: PodFacts) -> None:
        _discard(self._on_node, pod.node, pod.uid)
        if pod.plan:
            _discard(self._of_plan, pod.plan, pod.uid)


def _discard(index: defaultdict[Any, set[str]], key: object, uid: str) -> None:
    index[key].discard(uid)
    if not index[key]:
        del index[key]
