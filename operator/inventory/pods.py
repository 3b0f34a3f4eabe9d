"""GPUs that running pods hold, node by node, and whose pods they are; pure.

A pod of a plan carries ``archipelago.dev/plan`` and lives in the plan's namespace. What any other
pod requests is not the plan's to use, even where the plan owns the node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.manifests import Key
from archipelago.planner.nodes import gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLAN_LABEL: Final = "archipelago.dev/plan"
OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that holds GPUs. ``plan``: the one whose label it carries, None for nobody's."""

    uid: str
    node: str
    gpus: int
    plan: Key | None


def gpu_pod(body: Mapping[str, Any]) -> GpuPod | None:
    """Read a pod; None where it holds no whole GPU of a node: not placed, or over, or without.

    A pod that is being deleted holds its GPUs until its object is gone.
    """
    meta, spec = body["metadata"], body["spec"]
    node, phase = spec.get("nodeName"), body.get("status", {}).get("phase")
    held = requested(spec)
    if not node or phase in OVER or not held:
        return None
    plan = (meta.get("labels") or {}).get(PLAN_LABEL)
    return GpuPod(meta["uid"], node, held, Key(meta["namespace"], plan) if plan else None)


def requested(spec: Mapping[str, Any]) -> int:
    """GPUs that the scheduler sets aside for a pod [GPUs].

    Containers run together, and with them the sidecars (init containers that are restarted
    always); another init container runs alone but for the sidecars started before it.
    """
    sidecars, peak = 0, 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += _held(container)
        else:
            peak = max(peak, sidecars + _held(container))
    return max(peak, sidecars + sum(_held(c) for c in spec.get("containers") or ()))


def held_by_others(pods: Iterable[GpuPod], plan: Key) -> Counter[str]:
    """GPUs of each node that pods outside the plan hold [GPUs]."""
    held: Counter[str] = Counter()
    for pod in pods:
        if pod.plan != plan:
            held[pod.node] += pod.gpus
    return held


def _held(container: Mapping[str, Any]) -> int:
    """Of extended resources a limit alone is a request as well, and both are equal."""
    resources = container.get("resources") or {}
    return gpus({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
