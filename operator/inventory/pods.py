"""Pods as the inventory keeps them: the GPUs that each holds, and the island it belongs to; pure.

A pod of a plan has the label ``archipelago.dev/plan`` and is in the plan's namespace. Only pods
with this label, or with a request for GPUs, are kept. A plan must not use what any other pod holds,
even on a node that it owns. A report without a relevant change compares equal to the stored pod.

A pod holds GPUs once it runs. One that is scheduled holds them for ``START`` as well, time to pull
its image, and then no more until it starts. Writing a node's name into a pod is not enough: only
the scheduler and the kubelet say that it is scheduled. The plan's own pods count before it: until
it starts, it holds no more than they leave.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from archipelago.planner.documents import Node
from archipelago.planner.kubernetes.labels import (
    ISLAND_LABEL,
    PHASE_LABEL,
    PLAN_LABEL,
    ROLE_LABEL,
)
from archipelago.planner.kubernetes.nodes import gpus, is_pinned

from ..resources.deletions import Deletions
from ..resources.live import IslandPods
from ..resources.names import Key
from ..resources.reading import Body, read_meta, reading

SEVERAL: Final = "several"
"""Role of an island whose pods differ in it; no label has it."""
OVER: Final = ("Succeeded", "Failed")
START: Final = 600.0
"""How long a pod holds its GPUs before it starts, from when it was first seen scheduled [s]."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. ``version``, of the object, grows with every report and does not compare.

    Attributes:
        uid: Of the object.
        namespace: Of the object.
        version: Resource version.
        node: Where it runs or will run; empty if it is not scheduled.
        gpus: Whole GPUs of its node that it was given [GPUs]; a pod that is being deleted holds
            them until its object is gone. 0 if it is not scheduled, over, or without any.
        started: Whether a container of it has started.
        plan: Namespace and label value of its plan; None without one.
        island: Label value of its island; empty without one.
        phase: What its engine runs as: prefill, decode or mixed; empty if not stated.
        ready: Whether it may get requests: Ready, and not being deleted.
        role: Label value of all that its engine runs as; empty if not stated.
        pinned: Whether its island must not be changed by choice.
        deleting: Whether it is being deleted.
    """

    uid: str
    namespace: str
    version: int = field(compare=False)
    node: str
    gpus: int
    started: bool
    plan: Key | None
    island: str
    phase: str
    ready: bool
    role: str = ""
    pinned: bool = False
    deleting: bool = False


def requested(spec: Node) -> int:
    """Return the GPUs that the scheduler reserves for a pod [GPUs].

    Containers run together, and with them the sidecars (init containers that are always restarted).
    Any other init container runs alone, except for the sidecars started before it.
    """
    sidecars, peak = 0, 0
    for container in spec.optional_items("initContainers"):
        if container.mapping().get("restartPolicy") == "Always":
            sidecars += _container_gpus(container)
        else:
            peak = max(peak, sidecars + _container_gpus(container))
    return max(peak, sidecars + sum(map(_container_gpus, spec.optional_items("containers"))))


def _container_gpus(container: Node) -> int:
    """Return a container's GPUs: of an extended resource, a limit alone is the request as well."""
    resources = container.optional("resources")
    if resources is None:
        return 0
    return gpus(resources.optional_mapping("limits") | resources.optional_mapping("requests"))


def read_pod(body: Body) -> PodFacts | None:
    """Read a pod; return None if it neither requests GPUs nor has the label of a plan.

    Raises:
        Unreadable: the object is no pod.
    """
    with reading("Pod", body) as item:
        spec = item.field("spec")
        meta, gpus_requested = read_meta(item), requested(spec)
        plan = meta.labels.get(PLAN_LABEL)
        if not plan and not gpus_requested:
            return None
        status = Node(item.optional_mapping("status"), "status")
        phase = status.mapping().get("phase")
        is_over = phase in OVER  # an ended pod's object may stay
        is_part = bool(plan) and not is_over
        conditions = [condition.mapping() for condition in status.optional_items("conditions")]
        true = [c.get("type") for c in conditions if c.get("status") == "True"]
        states = (
            container.optional_mapping("state").keys()
            for name in ("initContainerStatuses", "containerStatuses")
            for container in status.optional_items(name)
        )
        started = phase == "Running" or any(keys & {"running", "terminated"} for keys in states)
        node = spec.optional("nodeName")
        name = node.text() if node else ""
        scheduled = bool(name) and (started or "PodScheduled" in true)
        return PodFacts(
            uid=meta.uid,
            namespace=meta.namespace,
            version=meta.version,
            node=name,
            gpus=gpus_requested if scheduled and not is_over else 0,
            started=started,
            plan=Key(meta.namespace, plan) if plan else None,
            island=meta.labels.get(ISLAND_LABEL, "") if is_part else "",
            phase=meta.labels.get(PHASE_LABEL, "") if is_part else "",
            ready="Ready" in true and not meta.deleting,
            role=meta.labels.get(ROLE_LABEL, "") if is_part else "",
            pinned=is_part and is_pinned(meta.annotations),
            deleting=meta.deleting,
        )


class PodTable:
    """The newest version of all relevant pods."""

    def __init__(self) -> None:
        self._pods: dict[str, PodFacts] = {}
        self._of_plan: defaultdict[Key, set[str]] = defaultdict(set)
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._deleted: Deletions[str] = Deletions()
        self._starting: dict[str, float] = {}  # uid -> when it has to have started, in that order

    def get(self, uid: str) -> PodFacts | None:
        """Return a pod."""
        return self._pods.get(uid)

    def update(self, pod: PodFacts, now: float) -> bool:
        """Take in a version; return whether anything relevant changed."""
        before = self._pods.get(pod.uid)
        if before is not None and pod.version <= before.version:
            return False
        if self._deleted.outdate(pod.uid, pod.version):
            return False
        if before is not None:
            self._unlink(before)
        self._pods[pod.uid] = pod
        self._on_node[pod.node].add(pod.uid)
        if pod.plan:
            self._of_plan[pod.plan].add(pod.uid)
        if not pod.gpus or pod.started:
            self._starting.pop(pod.uid, None)
        elif before is None or not before.gpus or before.started:
            self._starting[pod.uid] = now + START
        return before != pod

    def delete(self, uid: str, version: int) -> bool:
        """Remove a pod deleted at that version; a list from before does not bring it back."""
        self._deleted.note(uid, version)
        pod = self._pods.pop(uid, None)
        self._starting.pop(uid, None)
        if pod is not None:
            self._unlink(pod)
        return pod is not None

    def take_late(self, now: float) -> list[PodFacts]:
        """Return the pods that hold no GPUs any more, because they have not started in time."""
        late = [uid for uid, until in self._starting.items() if until <= now]
        for uid in late:
            del self._starting[uid]
        return [self._pods[uid] for uid in late]

    def wake(self) -> float:
        """Return when the next pod has to have started [monotonic s]; infinity without one."""
        return next(iter(self._starting.values()), math.inf)

    def unlisted(
        self, listed: Collection[str], version: int, namespace: str | None
    ) -> tuple[PodFacts, ...]:
        """Return what a list of the namespace (None: of all), taken at that version, lacks."""
        return tuple(
            pod
            for uid, pod in self._pods.items()
            if uid not in listed and namespace in (None, pod.namespace) and pod.version <= version
        )

    def plans_on(self, node: str) -> frozenset[Key]:
        """Return the plans with pods on a node."""
        pods = (self._pods[uid] for uid in self._on_node.get(node, ()))
        return frozenset(pod.plan for pod in pods if pod.plan)

    def held_by_others(self, plan: Key, nodes: Mapping[str, int]) -> dict[str, int]:
        """Return the GPUs that pods outside the plan hold, of the nodes where they do [GPUs].

        ``nodes``: allocatable GPUs by name [GPUs].
        """
        held = {}
        for node, allocatable in nodes.items():
            of_plan, started, starting = 0, 0, 0
            for uid in self._on_node.get(node, ()):
                pod = self._pods[uid]
                if pod.plan == plan:
                    of_plan += pod.gpus
                elif pod.started:
                    started += pod.gpus
                elif uid in self._starting:
                    starting += pod.gpus
            if others := started + max(0, min(starting, allocatable - started - of_plan)):
                held[node] = others
        return held

    def islands(self, plan: Key) -> dict[str, IslandPods]:
        """Return the islands of a plan that have pods, by the value of their label."""
        by_island: defaultdict[str, list[PodFacts]] = defaultdict(list)
        for uid in self._of_plan.get(plan, ()):
            pod = self._pods[uid]
            if pod.island:
                by_island[pod.island].append(pod)
        islands = {}
        for island, found in sorted(by_island.items()):
            pods = [pod for pod in found if not pod.deleting] or found
            phases, roles = {pod.phase for pod in pods}, {pod.role for pod in pods}
            islands[island] = IslandPods(
                ready=all(pod.ready for pod in pods),
                phase=phases.pop() if len(phases) == 1 else "",
                pods=len(pods),
                gpus=sum(pod.gpus for pod in pods),
                nodes=frozenset(pod.node for pod in pods if pod.node),
                role=roles.pop() if len(roles) == 1 else SEVERAL,
                pinned=any(pod.pinned for pod in pods),
                deleting=len(pods) < len(found),
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
