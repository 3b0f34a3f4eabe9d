"""Read a node object: its GPUs, their accelerator, and why they cannot be used.

Shared by the offline list (``pools``) and the operator's inventory, so that both agree.

The labels of products are data (``products.yaml``) with their sources. An unknown product stays
unknown: a guess between 40 and 80 GB, or between NVLink and PCIe, would give a plan that does not
fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import yaml

from ..errors import InputError

if TYPE_CHECKING:
    from ..documents import Node


MACHINE: Final = "node.kubernetes.io/instance-type"
"""Set on every cloud node, with or without GPUs: it alone does not show GPUs."""


def is_labelled(labels: Mapping[str, Any]) -> bool:
    """Return whether any label names a GPU product."""
    return any(label in labels for label in _products()["labels"])


def accelerator_of(labels: Mapping[str, Any]) -> tuple[str, str]:
    """Return the catalogue's name, empty if unknown, and the label that decided.

    The instance type decides only if the node has no product label.
    """
    source = ""
    for label in _products()["labels"]:
        if label in labels:
            source = source or f"{label}={labels[label]}"
            product = folded(str(labels[label]))
            if name := _by_product().get(product) or _by_memory(product, labels):
                return name, source
    if source or MACHINE not in labels:
        return "", source
    machine = str(labels[MACHINE])
    name = _by_machine().get(machine.casefold(), "")
    return name, f"{MACHINE}={machine}" if name else ""


def count(quantity: object) -> int:
    """Return the quantity of an extended resource; 0 if it is not a whole number."""
    text = str(quantity)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS else 0


def folded(name: str) -> str:
    """Return the name with letter case and separators normalised."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


_DIGITS: Final = 9
"""Most digits of a number of GPUs."""


def _by_memory(product: str, labels: Mapping[str, Any]) -> str:
    row = _products()["sized"].get(product, {"labels": (), "sizes": ()})
    mebibytes = {count(labels[label]) for label in row["labels"] if label in labels}
    return next((s["accelerator"] for s in row["sizes"] if mebibytes == {s["mebibytes"]}), "")


@cache
def _products() -> dict[str, Any]:
    text = files("archipelago.planner").joinpath("kubernetes", "products.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@cache
def _by_product() -> dict[str, str]:
    products: dict[str, list[str]] = _products()["products"]
    return {folded(product): name for name, names in products.items() for product in names}


@cache
def _by_machine() -> dict[str, str]:
    machines: dict[str, list[str]] = _products()["machines"]
    return {m.casefold(): name for name, names in machines.items() for m in names}


RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
SHARED: Final = ("nvidia.com/gpu.shared",)
SLICED: Final = ("nvidia.com/mig-", "amd.com/spx", "amd.com/dpx", "amd.com/qpx", "amd.com/cpx")
PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""GKE offers MIG slices as whole GPUs; only this label shows it."""
SHARING: Final = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
LEAVING: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # its name before Karpenter 1.0
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
)
"""Taints of a node that is being removed. Others keep unrelated pods off GPU nodes; the pods
of a plan tolerate them."""
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


@dataclass(frozen=True)
class NodeSummary:
    """A parsed node. ``leaving``: the taint of its removal, empty if none."""

    name: str
    labels: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    capacity: Mapping[str, Any]
    cordoned: bool
    ready: bool
    leaving: str = ""

    @property
    def has_gpus(self) -> bool:
        """Whether labels or resources show GPUs, usable or not."""
        stock = gpus(self.capacity) or self._holds((*SHARED, *SLICED))
        return is_labelled(self.labels) or bool(stock)

    @property
    def allocatable_gpus(self) -> int:
        """Whole allocatable GPUs [GPUs]."""
        return gpus(self.allocatable)

    @property
    def capacity_gpus(self) -> int:
        """Whole GPUs in the capacity that the device plugin reports [GPUs]."""
        return gpus(self.capacity)

    @property
    def accelerator(self) -> str:
        """The catalogue's name, empty if unknown."""
        return accelerator_of(self.labels)[0]

    def unusable(self) -> tuple[Why, str] | None:
        """Return why the GPUs cannot be used, and the value that decided; None if they can."""
        return (
            self.temporary_reason()
            or self.permanent_reason()
            or (None if self.allocatable_gpus else (Why.NO_GPUS, ""))
        )

    def temporary_reason(self) -> tuple[Why, str] | None:
        """Return a temporary reason against the node: its state."""
        if self.cordoned:
            return Why.CORDONED, ""
        if not self.ready:
            return Why.NOT_READY, ""
        return (Why.LEAVING, self.leaving) if self.leaving else None

    def permanent_reason(self) -> tuple[Why, str] | None:
        """Return a permanent reason against the node: what it offers, whatever its state."""
        size = self.labels.get(PARTITION)
        partition = f"{PARTITION}={size}" if size else ""
        if sliced := self._holds(SLICED) or self._product_with("-MIG-") or partition:
            return Why.SLICED, sliced
        values = (str(self.labels.get(label, "none")) for label in SHARING)
        strategy = next((value for value in values if value not in ("", "none")), "")
        if shared := self._holds(SHARED) or self._product_with("-SHARED") or strategy:
            return Why.SHARED, shared
        name, source = accelerator_of(self.labels)
        return None if name else (Why.UNKNOWN if source else Why.NO_PRODUCT, source)

    def _holds(self, prefixes: tuple[str, ...]) -> str:
        """Return a resource with such a name that the node has, empty if none."""
        stock = {**self.capacity, **self.allocatable}
        return next((n for n in sorted(stock) if n.startswith(prefixes) and count(stock[n])), "")

    def _product_with(self, mark: str) -> str:
        product = str(self.labels.get("nvidia.com/gpu.product", ""))
        return product if mark in product else ""


def gpus(stock: Mapping[str, Any]) -> int:
    """Return the whole GPUs of a node's resources or of a request [GPUs]."""
    return sum(count(stock.get(name, 0)) for name in RESOURCES)


def read_node(item: Node) -> NodeSummary:
    """Parse a node object.

    Raises:
        PlanFileError: a field is missing or of another type; the message names the place.
        InputError: the object is of another kind.
    """
    kind = item.optional("kind")
    if kind is not None and kind.value != "Node":
        raise InputError(
            f"{kind.path}: {kind.value!r} is no Node; give `kubectl get nodes -o json`"
        )
    metadata, status, spec = item.field("metadata"), item.field("status"), item.optional("spec")
    return NodeSummary(
        metadata.field("name").text(),
        _mapping(metadata, "labels"),
        _mapping(status, "allocatable"),
        _mapping(status, "capacity"),
        bool(spec.mapping().get("unschedulable")) if spec else False,
        _ready(status),
        _leaving(spec) if spec else "",
    )


def _mapping(parent: Node, name: str) -> dict[str, Any]:
    node = parent.optional(name)
    return node.mapping() if node else {}


def _ready(status: Node) -> bool:
    conditions = status.optional("conditions")
    values = [
        c.field("status").text()
        for c in (conditions.items() if conditions else ())
        if c.field("type").text() == "Ready"
    ]
    return values == ["True"]


def _leaving(spec: Node) -> str:
    taints = spec.optional("taints")
    for taint in taints.items() if taints else ():
        key = taint.field("key").text()
        if key in LEAVING and taint.field("effect").text() in HARD:
            return key
    return ""
