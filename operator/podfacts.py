"""What is kept of a pod: the GPUs that it holds, and the island that it is part of; pure.

Of all pods of a cluster only those that ask for GPUs or carry ``archipelago.dev/plan`` are kept.
An object that changed nothing of that compares equal to what is known, and nobody acts on it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.gpupods import (
    OVER,
    PLAN_LABEL,
    GpuPod,
    gpu_pod,
    held_by_others,
    requested,
)
from archipelago.operator.manifests import Key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

ISLAND_LABEL: Final = "archipelago.dev/island"
PHASE_LABEL: Final = "archipelago.dev/phase"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One pod. ``version``, of the object, grows with every report and does not compare.

    Attributes:
        uid: Of the object.
        namespace: Where it is.
        version: Resource version.
        node: Where it runs or is to run; empty where it has no place yet.
        holds: The GPUs of its node that it holds; None where it holds none, or no more.
        plan: Namespace and label value of the plan that it says it belongs to; None for nobody's.
        island: Label value of its island; empty for none.
        phase: What its engine runs as: prefill, decode or mixed; empty where it does not say.
        ready: Whether it may be given requests: Ready, and not on its way out.
    """

    uid: str
    namespace: str
    version: int = field(compare=False)
    node: str
    holds: GpuPod | None
    plan: Key | None
    island: str
    phase: str
    ready: bool


@dataclass(frozen=True)
class IslandPods:
    """The pods of one island.

    Attributes:
        ready: Whether there are any and all of them are ready.
        phase: What all of them run as; empty where they differ or one does not say.
        pods: How many there are.
        gpus: GPUs that they hold [GPUs]: less than the island has until all of them are placed.
        nodes: Where they run.
    """

    ready: bool
    phase: str
    pods: int
    gpus: int
    nodes: frozenset[str]


def read_pod(body: Mapping[str, Any]) -> SeenPod | None:
    """Read a pod; None where it neither asks for GPUs nor says that it belongs to a plan."""
    meta, spec = body["metadata"], body["spec"]
    labels = meta.get("labels") or {}
    plan = labels.get(PLAN_LABEL)
    if not plan and not requested(spec):
        return None
    status = body.get("status") or {}
    is_part = bool(plan) and status.get("phase") not in OVER  # of what is over the object may stay
    return SeenPod(
        uid=meta["uid"],
        namespace=meta["namespace"],
        version=int(meta["resourceVersion"]),
        node=spec.get("nodeName") or "",
        holds=gpu_pod(body),
        plan=Key(meta["namespace"], plan) if plan else None,
        island=(labels.get(ISLAND_LABEL) or "") if is_part else "",
        phase=(labels.get(PHASE_LABEL) or "") if is_part else "",
        ready="deletionTimestamp" not in meta and _ready(status),
    )


class PodTable:
    """The pods that count, as last seen."""

    def __init__(self) -> None:
        self._pods: dict[str, SeenPod] = {}
        self._of_plan: defaultdict[Key, set[str]] = defaultdict(set)
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._gone: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> SeenPod | None:
        """What is known of a pod."""
        return self._pods.get(uid)

    def see(self, pod: SeenPod) -> bool:
        """Take in a version; True where somebody could care."""
        known = self._pods.get(pod.uid)
        if pod.version <= max(known.version if known else -1, self._gone.get(pod.uid, -1)):
            return False
        if known is not None:
            self._unlink(known)
        self._pods[pod.uid] = pod
        self._on_node[pod.node].add(pod.uid)
        if pod.plan:
            self._of_plan[pod.plan].add(pod.uid)
        return known != pod

    def drop(self, uid: str, version: int) -> bool:
        """Forget a pod that was gone at that version; a list from before does not bring it back."""
        self._gone[uid] = version
        known = self._pods.pop(uid, None)
        if known is not None:
            self._unlink(known)
        return known is not None

    def missing(
        self, listed: Collection[str], version: int, namespace: str | None
    ) -> tuple[SeenPod, ...]:
        """What a list of the namespace (None: of all), taken at that version, does not hold."""
        self._gone = {uid: when for uid, when in self._gone.items() if when > version}
        return tuple(
            pod
            for uid, pod in self._pods.items()
            if uid not in listed and namespace in (None, pod.namespace) and pod.version <= version
        )

    def plans_on(self, node: str) -> frozenset[Key]:
        """Plans that have pods there."""
        pods = (self._pods[uid] for uid in self._on_node.get(node, ()))
        return frozenset(pod.plan for pod in pods if pod.plan)

    def held_by_others(self, plan: Key) -> Mapping[str, int]:
        """GPUs of each node that pods outside the plan hold [GPUs]."""
        return held_by_others((pod.holds for pod in self._pods.values() if pod.holds), plan)

    def islands(self, plan: Key) -> dict[str, IslandPods]:
        """The islands of a plan that have pods, by the value of their label."""
        found: defaultdict[str, list[SeenPod]] = defaultdict(list)
        for uid in self._of_plan.get(plan, ()):
            pod = self._pods[uid]
            if pod.island:
                found[pod.island].append(pod)
        return {island: _island(found[island]) for island in sorted(found)}

    def _unlink(self, pod: SeenPod) -> None:
        _discard(self._on_node, pod.node, pod.uid)
        if pod.plan:
            _discard(self._of_plan, pod.plan, pod.uid)


def _island(pods: Iterable[SeenPod]) -> IslandPods:
    members = list(pods)
    phases = {pod.phase for pod in members}
    return IslandPods(
        ready=all(pod.ready for pod in members),
        phase=phases.pop() if len(phases) == 1 else "",
        pods=len(members),
        gpus=sum(pod.holds.gpus for pod in members if pod.holds),
        nodes=frozenset(pod.node for pod in members if pod.node),
    )


def _discard(index: defaultdict[Any, set[str]], key: object, uid: str) -> None:
    index[key].discard(uid)
    if not index[key]:
        del index[key]


def _ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
