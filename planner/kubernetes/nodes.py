"""One node as the API server has it: its GPUs, and why they cannot be used, if they cannot.

Shared by the offline list (``inventory``) and the operator's live one, so that both judge alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.errors import InputError
from archipelago.planner.products import accelerator_of, count, is_labelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.reader import Node

RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
SHARED: Final = ("nvidia.com/gpu.shared",)
SLICED: Final = ("nvidia.com/mig-", "amd.com/spx", "amd.com/dpx", "amd.com/qpx", "amd.com/cpx")
PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""GKE offers MIG slices under the name of whole GPUs; only this label tells."""
SHARING: Final = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
LEAVING: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # its name before Karpenter 1.0
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
)
"""Taints that say that the node is being taken away. Others keep strangers off GPU nodes, and the
pods of a plan tolerate them: they do not count."""
HARD: Final = ("NoSchedule", "NoExecute")


class Why(StrEnum):
    """Why a node with GPUs is in no pool."""

    UNKNOWN = "unknown product"
    NO_PRODUCT = "no product label"
    CORDONED = "cordoned"
    NOT_READY = "not ready"
    LEAVING = "being taken away"
    SLICED = "GPUs are offered in parts (MIG or partitions)"
    SHARED = "GPUs are shared"
    NO_GPUS = "GPUs are not allocatable"


PASSING: Final = frozenset({Why.CORDONED, Why.NOT_READY, Why.LEAVING, Why.NO_GPUS})
"""What ends by itself or by an operator's hand, and says nothing about what the node is."""


@dataclass(frozen=True)
class SeenNode:
    """One node, read. ``leaving``: the taint that says so, empty for none."""

    name: str
    labels: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    capacity: Mapping[str, Any]
    cordoned: bool
    ready: bool
    leaving: str = ""

    @property
    def has_gpus(self) -> bool:
        """Whether anything says that there are GPUs, usable or not."""
        stock = gpus(self.capacity) or self._holds((*SHARED, *SLICED))
        return is_labelled(self.labels) or bool(stock)

    @property
    def free(self) -> int:
        """Whole GPUs that pods may be given [GPUs]."""
        return gpus(self.allocatable)

    @property
    def there(self) -> int:
        """Whole GPUs that are built in, as the device plugin says [GPUs]."""
        return gpus(self.capacity)

    @property
    def accelerator(self) -> str:
        """The catalogue's name, empty where unknown."""
        return accelerator_of(self.labels)[0]

    def unusable(self) -> tuple[Why, str] | None:
        """Why its GPUs cannot be used, and the value that decided; None where they can."""
        return self.passing() or self.lasting() or (None if self.free else (Why.NO_GPUS, ""))

    def passing(self) -> tuple[Why, str] | None:
        """What is the matter for now."""
        if self.cordoned:
            return Why.CORDONED, ""
        if not self.ready:
            return Why.NOT_READY, ""
        return (Why.LEAVING, self.leaving) if self.leaving else None

    def lasting(self) -> tuple[Why, str] | None:
        """What the node is, whatever its state."""
        if sliced := self._holds(SLICED) or self._says("-MIG-") or self._partition():
            return Why.SLICED, sliced
        if shared := self._holds(SHARED) or self._says("-SHARED") or self._strategy():
            return Why.SHARED, shared
        found, said = accelerator_of(self.labels)
        return None if found else (Why.UNKNOWN if said else Why.NO_PRODUCT, said)

    def _holds(self, prefixes: tuple[str, ...]) -> str:
        """A resource of that kind that the node has any of, empty for none."""
        held = {**self.capacity, **self.allocatable}
        found = (n for n in sorted(held) if n.startswith(prefixes) and count(held[n]))
        return next(found, "")

    def _says(self, mark: str) -> str:
        product = str(self.labels.get("nvidia.com/gpu.product", ""))
        return product if mark in product else ""

    def _partition(self) -> str:
        size = self.labels.get(PARTITION)
        return f"{PARTITION}={size}" if size else ""

    def _strategy(self) -> str:
        said = (str(self.labels.get(label, "none")) for label in SHARING)
        return next((strategy for strategy in said if strategy not in ("", "none")), "")


def gpus(stock: Mapping[str, Any]) -> int:
    """Whole GPUs of a stock or of a request [GPUs]."""
    return sum(count(stock.get(name, 0)) for name in RESOURCES)


def read_node(item: Node) -> SeenNode:
    """A node of a list.

    Raises:
        PlanFileError: it is no such object; the message names the place.
        InputError: it is an object of another kind.
    """
    kind = item.optional("kind")
    if kind is not None and kind.value != "Node":
        raise InputError(
            f"{kind.path}: {kind.value!r} is no Node; give `kubectl get nodes -o json`"
        )
    metadata, status, spec = item.field("metadata"), item.field("status"), item.optional("spec")
    return SeenNode(
        metadata.field("name").text(),
        _mapping(metadata, "labels"),
        _mapping(status, "allocatable"),
        _mapping(status, "capacity"),
        bool(spec.mapping().get("unschedulable")) if spec else False,
        _ready(status),
        _leaving(spec) if spec else "",
    )


def _mapping(parent: Node, name: str) -> dict[str, Any]:
    found = parent.optional(name)
    return found.mapping() if found else {}


def _ready(status: Node) -> bool:
    conditions = status.optional("conditions")
    said = [
        c.field("status").text()
        for c in (conditions.items() if conditions else ())
        if c.field("type").text() == "Ready"
    ]
    return said == ["True"]


def _leaving(spec: Node) -> str:
    taints = spec.optional("taints")
    for taint in taints.items() if taints else ():
        key = taint.field("key").text()
        if key in LEAVING and taint.field("effect").text() in HARD:
            return key
    return ""
