"""The objects that hold an island's pods: a Deployment of one, or a LeaderWorkerSet of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archipelago.planner.labels import HASH_LENGTH, ISLAND_LABEL, PLAN_LABEL, cut, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.canonical import Document

NAME_LENGTH = 50
"""A LeaderWorkerSet adds 11 characters in a label of 63 (the hash of a StatefulSet's revision)."""


def metadata(plan: str, island: str, namespace: str | None, labels: Mapping[str, str]) -> Document:
    """Named after the island; the hash keeps plans of one namespace apart."""
    name = cut(island, NAME_LENGTH - HASH_LENGTH - 3)
    name = name if name[0].isalpha() else f"i-{name}"  # a Service begins with a letter
    where = {"namespace": namespace} if namespace else {}
    return {"name": f"{name}-{digest(f'{plan}/{island}')}", **where, "labels": dict(labels)}


def deployment(metadata: Document, pod: Document) -> Document:
    """Never two of its pods at once: the GPUs are there once."""
    labels = metadata["labels"]
    mine = {key: labels[key] for key in (PLAN_LABEL, ISLAND_LABEL)}  # a phase may change
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": mine},
            "template": pod,
        },
    }


def leader_and_workers(
    metadata: Document, leader: Document, worker: Document, size: int
) -> Document:
    """One group of ``size`` pods, which live and die together."""
    template: dict[str, Any] = {
        "size": size,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": leader,
        "workerTemplate": worker,
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }
