"""Read a node object: its GPUs, their accelerator, and why they cannot be used.

Shared by the offline list (``pools``) and the operator's inventory, so that both agree.

The labels of products are data (``products.yaml``) with their sources. An unknown product stays
unknown: a guess between 40 and 80 GB, or between NVLink and PCIe, would give a plan that does not
fit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final

import yaml

from archipelago.perfmodel.catalogue.accelerators import accelerator, sibling
from archipelago.perfmodel.errors import UnknownName

from ..documents import Node
from ..errors import InputError
from .devices import HARD, NodeDevices
from .labels import DO_NOT_DISRUPT

MACHINE: Final = "node.kubernetes.io/instance-type"
"""Set on every cloud node, with or without GPUs: it alone does not show GPUs."""


DIGITS: Final = 9
"""Most digits of a count."""
MOST_GPUS: Final = 1024
"""Most GPUs of one node [GPUs], as ``gpusPerNode`` of a pool."""


@cache
def products() -> dict[str, Any]:
    """Return ``products.yaml``, with the names of products and machines as keys, normalised."""
    text = files("archipelago.planner").joinpath("kubernetes", "products.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    for kind, normalised in (("products", folded), ("machines", str.casefold)):
        by_alias: dict[str, list[str]] = {}
        for name, aliases in document[kind].items():
            for alias in dict.fromkeys(map(normalised, aliases)):
                by_alias.setdefault(alias, []).append(name)
        document[kind] = by_alias
    return document


def accelerator_of(labels: Mapping[str, Any]) -> tuple[str, str]:
    """Return the catalogue's name, empty if unknown, and the label that decided.

    The instance type decides only if the node has no product label, or between the accelerators
    that a label names.
    """
    table, source = products(), ""
    sizes = {key: count(labels[key]) for key in table["memory"] if key in labels}  # [MiB]
    machine = str(labels.get(MACHINE, ""))
    at_hand = table["machines"].get(machine.casefold(), [])
    for label in table["labels"]:
        if label in labels:
            product = str(labels[label])
            if name := known(product, [size for size in sizes.values() if size], at_hand):
                return name, f"{label}={product}"
            if not source and folded(product.partition("-MIG-")[0]) in table["products"]:
                product = ", ".join([product, *(f"{key}={labels[key]}" for key in sizes)])
            source = source or f"{label}={product}"
    if source or not at_hand:
        return "", source
    return at_hand[0], f"{MACHINE}={machine}"


def known(
    product: str,
    mebibytes: Collection[int],
    machine: Collection[str] = (),
) -> str:
    """Return the accelerator of a product's name and memory, empty if unknown.

    Args:
        product: As a label or a driver writes it; a slice ends in ``-MIG-`` and its profile.
        mebibytes: Memory of one GPU, or slice, by each source that states it [MiB].
        machine: Accelerators of the machine's type; they decide between several.
    """
    return _in_catalogue(product, tuple(mebibytes), tuple(machine))


@lru_cache(maxsize=4096)
def _in_catalogue(product: str, mebibytes: tuple[int, ...], machine: tuple[str, ...]) -> str:
    whole, cut, profile = product.partition("-MIG-")
    names: list[str] = products()["products"].get(folded(whole), [])
    fitting = [name for each in names if (name := _sized(each, cut + profile, mebibytes))]
    if len(fitting) > 1:
        fitting = [name for name in fitting if name in machine]
    if not names or fitting or cut:
        return fitting[0] if len(fitting) == 1 else ""
    other = {name for each in names for size in mebibytes if (name := sibling(each, size << 20))}
    return next((name for name in other if len(other) == 1 and _sized(name, "", mebibytes)), "")


def _sized(name: str, part: str, mebibytes: Collection[int]) -> str:
    """Return the name with the part of it, empty if there is none or not all sizes are its own."""
    try:
        sized = accelerator(f"{name}{part}")
    except UnknownName:
        return ""
    return sized.name if all(sized.may_have(size << 20) for size in mebibytes) else ""


def count(quantity: object) -> int:
    """Return the quantity of an extended resource; 0 if it is not a whole number."""
    text = str(quantity)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= DIGITS else 0


def folded(name: str) -> str:
    """Return the name with letter case and separators normalised."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


RESOURCES: Final = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "habana.ai/gaudi",
    "gpu.intel.com/xe",
    "huawei.com/Ascend910",
    "google.com/tpu",
    "aws.amazon.com/neuron",
)
SHARED: Final = ("nvidia.com/gpu.shared",)
MIG: Final = "nvidia.com/mig-"
SLICED: Final = (MIG, "amd.com/spx", "amd.com/dpx", "amd.com/qpx", "amd.com/cpx")
PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
"""GKE offers MIG slices as whole GPUs; only this label shows it."""
SHARED_GPU: Final = "shared GPU"
REPLICAS: Final = "nvidia.com/gpu.replicas"
SHARING: Final = ("nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy")
LEAVING: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # its name before Karpenter 1.0
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
    # https://github.com/GoogleCloudPlatform/k8s-node-termination-handler, main.go
    "cloud.google.com/impending-node-termination",
    # https://github.com/aws/aws-node-termination-handler, pkg/node
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
)
"""Taints of a node that is being removed. Others keep unrelated pods off GPU nodes; the pods
of a plan tolerate them."""
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
"""Taint of a cordoned node; Kubernetes sets it beside ``spec.unschedulable``."""


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


UNKNOWN_PRODUCT: Final = frozenset({Why.UNKNOWN, Why.NO_PRODUCT})
"""The GPUs are not in the catalogue, or no label names them."""


@dataclass(frozen=True)
class NodeSummary:
    """A parsed node.

    ``leaving``: the taint of its removal, empty if none. ``created``: creationTimestamp, empty if
    unknown. ``devices``: what ResourceSlices say of it. GPUs that a device plugin offers as well
    are counted once, as the plugin offers them. ``pinned``: its islands are not changed by choice.
    """

    name: str
    labels: Mapping[str, Any]
    allocatable: Mapping[str, Any]
    capacity: Mapping[str, Any]
    cordoned: bool
    ready: bool
    leaving: str = ""
    created: str = ""
    devices: NodeDevices | None = None
    pinned: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether labels or resources show GPUs, usable or not."""
        stock = gpus(self.capacity) or self._holds((*SHARED, *SLICED))
        labelled = any(label in self.labels for label in products()["labels"])
        return bool(stock) or labelled or self.devices is not None

    @property
    def by_devices(self) -> NodeDevices | None:
        """What ResourceSlices say, where no device plugin offers GPUs."""
        plugin = gpus(self.capacity) or self._holds((*SHARED, *SLICED))
        return None if plugin else self.devices

    @property
    def allocatable_gpus(self) -> int:
        """Whole allocatable GPUs [GPUs]."""
        devices = self.by_devices
        return possible(devices.allocatable) if devices else gpus(self.allocatable)

    @property
    def capacity_gpus(self) -> int:
        """Whole GPUs that are built in, as the device plugin or a driver reports them [GPUs]."""
        devices = self.by_devices
        return possible(devices.capacity) if devices else gpus(self.capacity)

    @property
    def accelerator(self) -> str:
        """The catalogue's name, empty if unknown."""
        return self._known()[0]

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return what it offers instead of whole GPUs: names and numbers of slices or shares."""
        found: dict[str, int] = {}
        if devices := self.by_devices:
            found |= dict(devices.parts)
            found[SHARED_GPU] = devices.shared
        else:
            for name, amount in {**self.capacity, **self.allocatable}.items():
                if name.startswith((*SLICED, *SHARED)):
                    part = SHARED_GPU if name in SHARED else name.removeprefix(MIG)
                    found[part] = count(amount)
            single = self._product_with("-MIG-").partition("-MIG-")[2]
            whole = str(single or self.labels.get(PARTITION) or (self._shared() and SHARED_GPU))
            found.setdefault(whole, gpus(self.capacity))
        return tuple(sorted((name, number) for name, number in found.items() if name and number))

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
        name, source = self._known()
        if devices := self.by_devices:
            if devices.parts:
                return Why.SLICED, devices.parts[0][0]
            if devices.shared:
                return Why.SHARED, "allowMultipleAllocations"
        else:
            # A slice of the catalogue is an accelerator: of the strategy single, `name` is its own.
            product = "" if name else self._product_with("-MIG-")
            size = self.labels.get(PARTITION)
            partition = f"{PARTITION}={size}" if size else ""
            if sliced := self._holds(SLICED) or product or partition:
                return Why.SLICED, sliced
            if shared := self._shared():
                return Why.SHARED, shared
        return None if name else (Why.UNKNOWN if source else Why.NO_PRODUCT, source)

    def _known(self) -> tuple[str, str]:
        """Return the catalogue's name, empty if unknown, and what decided."""
        devices = self.by_devices
        if devices is None or not devices.product:
            return accelerator_of(self.labels)
        sizes = [devices.mebibytes] if devices.mebibytes else []
        size = f" of {devices.mebibytes} MiB" if sizes else ""
        return known(devices.product, sizes), f"{devices.product}{size}"

    def _shared(self) -> str:
        """Return what shows that several pods get one GPU, empty if nothing does."""
        values = (str(self.labels.get(label, "none")) for label in SHARING)
        strategy = next((value for value in values if value not in ("", "none")), "")
        replicas = self.labels.get(REPLICAS)
        several = f"{REPLICAS}={replicas}" if count(replicas) > 1 else ""
        return self._holds(SHARED) or self._product_with("-SHARED") or strategy or several

    def _holds(self, prefixes: tuple[str, ...]) -> str:
        """Return a resource with such a name that the node has, empty if none."""
        stock = {**self.capacity, **self.allocatable}
        return next((n for n in sorted(stock) if n.startswith(prefixes) and count(stock[n])), "")

    def _product_with(self, mark: str) -> str:
        product = str(self.labels.get("nvidia.com/gpu.product", ""))
        return product if mark in product else ""


def relevant(node: NodeSummary, keys: Collection[str]) -> NodeSummary:
    """Return the node with these labels and with what its GPUs are read from, and nothing else."""
    labels = {
        *keys,
        *products()["labels"],
        *products()["memory"],
        *SHARING,
        PARTITION,
        REPLICAS,
        MACHINE,
    }
    names = (*RESOURCES, *SHARED, *SLICED)
    return replace(
        node,
        labels={key: value for key, value in node.labels.items() if key in labels},
        allocatable={k: v for k, v in node.allocatable.items() if k.startswith(names)},
        capacity={k: v for k, v in node.capacity.items() if k.startswith(names)},
    )


def is_pinned(annotations: Mapping[str, Any]) -> bool:
    """Return whether a node or pod says that its islands must not be changed by choice."""
    return annotations.get(DO_NOT_DISRUPT) == "true"


def gpus(stock: Mapping[str, Any]) -> int:
    """Return the whole GPUs of a node's resources or of a request [GPUs]."""
    return possible(sum(count(stock.get(name, 0)) for name in RESOURCES))


def possible(number: int) -> int:
    """Return 0 for a number of GPUs that no node has: the plan of its pool would be invalid."""
    return number if number <= MOST_GPUS else 0


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
    metadata, status = item.field("metadata"), item.field("status")
    spec = item.optional("spec") or Node({}, "spec")
    ready = [
        condition.field("status").text()
        for condition in status.optional_items("conditions")
        if condition.field("type").text() == "Ready"
    ]
    created = metadata.optional("creationTimestamp")
    taints = [
        taint.field("key").text()
        for taint in spec.optional_items("taints")
        if taint.field("effect").text() in HARD
    ]
    return NodeSummary(
        metadata.field("name").text(),
        metadata.optional_mapping("labels"),
        status.optional_mapping("allocatable"),
        status.optional_mapping("capacity"),
        bool(spec.mapping().get("unschedulable")) or UNSCHEDULABLE in taints,
        ready == ["True"],
        next((key for key in taints if key in LEAVING), ""),
        created.text() if created else "",
        pinned=is_pinned(metadata.optional_mapping("annotations")),
    )
