"""Read a ResourceSlice (resource.k8s.io/v1, dynamic resource allocation): the GPUs of its node.

A driver publishes what it can give to pods: whole GPUs, slices of GPUs, or both for one GPU, of
which either may be taken. The slices of a pool belong together by generation: ``complete`` chooses.

Attributes and types of the drivers, as their projects publish them:

- NVIDIA: site/content/docs/reference/resourceslice-attributes.md of
  kubernetes-sigs/dra-driver-nvidia-gpu at 9593204 (2026-08-07);
- AMD: docs/driver-attributes.md of ROCm/k8s-gpu-dra-driver at 2622427 (2025-10-06);
- Intel: doc/gaudi/USAGE.md and doc/gpu/USAGE.md of intel/intel-resource-drivers-for-kubernetes at
  1da939f (2026-08-11).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..documents import Node

_MEMORY: Final = re.compile(r"([0-9]{1,18})(|Ki|Mi|Gi|Ti)")
_UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
HARD: Final = ("NoSchedule", "NoExecute")
"""Effects of a taint that keep pods off; ``None`` only informs."""


@dataclass(frozen=True)
class Driver:
    """Attributes of a driver's devices.

    ``whole``: the ``type`` of a whole GPU, empty if devices have no type; ``part``: of a slice.
    """

    product: str
    whole: str = ""
    part: str = ""
    profile: str = ""


DRIVERS: Final[Mapping[str, Driver]] = {
    "gpu.nvidia.com": Driver("productName", "gpu", "mig", "profile"),
    "gpu.amd.com": Driver("productName", "amdgpu", "amdgpu-partition", "partitionProfile"),
    "gpu.intel.com": Driver("model"),
    "gaudi.intel.com": Driver("model"),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Attributes:
        name: In its pool.
        node: Where it is; empty if it belongs to no single node.
        product: As the driver names it.
        mebibytes: Its memory [MiB]; 0 if the driver does not state it.
        part: Profile of the slice that it is; empty: a whole GPU.
        usable: No taint keeps pods off it.
        shared: Several pods may have it at once.
        counters: The sets of counters that it takes from. Devices that take from one set are
            parts of one GPU: what one of them takes, the others lack.
    """

    name: str
    node: str
    product: str
    mebibytes: int = 0
    part: str = ""
    usable: bool = True
    shared: bool = False
    counters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeviceSlice:
    """One ResourceSlice. ``count``: slices of its pool in this generation."""

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class NodeDevices:
    """The GPUs of one node that drivers publish.

    Attributes:
        product: Of all whole GPUs; several if they differ, joined by `` and ``.
        mebibytes: Memory of the smallest of them [MiB]; 0 if it is not stated.
        capacity: Whole GPUs [GPUs].
        allocatable: Those of them that no taint keeps pods off [GPUs].
        parts: Number of slices by profile, apart from those that whole GPUs could be cut into.
        shared: GPUs that several pods may have at once.
    """

    product: str = ""
    mebibytes: int = 0
    capacity: int = 0
    allocatable: int = 0
    parts: tuple[tuple[str, int], ...] = ()
    shared: int = 0


def read_slice(item: Node) -> DeviceSlice | None:
    """Read a ResourceSlice; None if its driver has no GPUs.

    Raises:
        PlanFileError: a field is missing or of another type; the message names the place.
    """
    spec = item.field("spec")
    name, driver = item.field("metadata").field("name").text(), spec.field("driver").text()
    if driver not in DRIVERS:
        return None
    pool, node = spec.field("pool"), spec.optional("nodeName")
    where = node.text() if node else ""
    devices = [_device(each, DRIVERS[driver], where) for each in spec.optional_items("devices")]
    return DeviceSlice(
        name,
        driver,
        pool.field("name").text(),
        pool.field("generation").integer(),
        pool.field("resourceSliceCount").integer(1),
        tuple(device for device in devices if device is not None),
    )


def _device(item: Node, driver: Driver, where: str) -> Device | None:
    """Return a device; None if it is neither a GPU nor a slice of one: one for virtual machines."""
    attributes = Node(item.optional_mapping("attributes"), "attributes")
    kind = _string(attributes, "type")
    if driver.whole and kind not in (driver.whole, driver.part):
        return None
    is_part = bool(driver.part) and kind == driver.part
    node = item.optional("nodeName")
    shared = item.optional("allowMultipleAllocations")
    effects = [taint.field("effect").text() for taint in item.optional_items("taints")]
    counters = (each.field("counterSet").text() for each in item.optional_items("consumesCounters"))
    return Device(
        item.field("name").text(),
        node.text() if node else where,
        _string(attributes, driver.product),
        _mebibytes(Node(item.optional_mapping("capacity"), "capacity").optional("memory")),
        (_string(attributes, driver.profile) or kind) if is_part else "",
        not any(effect in HARD for effect in effects),
        shared.truth() if shared else False,
        frozenset(counters),
    )


def _string(attributes: Node, name: str) -> str:
    """Return an attribute that is a text; empty if there is none."""
    attribute = attributes.optional(name) if name else None
    text = attribute.optional("string") if attribute else None
    return text.text() if text else ""


def _mebibytes(capacity: Node | None) -> int:
    """Return a quantity in whole MiB, as drivers write memory; 0 if it is written otherwise."""
    value = capacity.optional("value") if capacity else None
    written = _MEMORY.fullmatch(value.text()) if value else None
    return int(written[1]) * _UNITS[written[2]] >> 20 if written else 0


def complete(slices: Iterable[DeviceSlice]) -> tuple[Device, ...] | None:
    """Return the devices of a pool's newest generation; None while slices of it are missing.

    Never those of an older one: they may be gone, and the scheduler does not give them either.
    """
    found = list(slices)
    newest = max((each.generation for each in found), default=0)
    members = sorted((each for each in found if each.generation == newest), key=lambda s: s.name)
    devices = tuple(device for each in members for device in each.devices)
    names = {device.name for device in devices}
    if not members or len(members) != members[0].count or len(names) != len(devices):
        return None
    return devices


def by_node(devices: Iterable[Device]) -> dict[str, tuple[Device, ...]]:
    """Return the devices of each node; those of no single node are left out."""
    nodes: defaultdict[str, list[Device]] = defaultdict(list)
    for device in devices:
        if device.node:
            nodes[device.node].append(device)
    return {node: tuple(each) for node, each in nodes.items()}


def counted(devices: Iterable[Device]) -> NodeDevices:
    """Return what a node has. A slice of a GPU that is there as a whole is not counted again."""
    found = list(devices)
    whole = [device for device in found if not device.part and not device.shared]
    sets = frozenset[str]().union(*(device.counters for device in whole))
    parts = Counter(d.part for d in found if d.part and not d.counters & sets)
    return NodeDevices(
        " and ".join(sorted({device.product for device in whole})),
        min((device.mebibytes for device in whole), default=0),
        len(whole),
        sum(device.usable for device in whole),
        tuple(sorted(parts.items())),
        sum(device.shared and not device.part for device in found),
    )


def read_allocation(item: Node) -> tuple[tuple[tuple[str, str, str], ...], frozenset[str]]:
    """Return the GPUs that a ResourceClaim has, and the uids of the pods that it is for.

    An administrator's access to a device takes it from nobody.

    Raises:
        PlanFileError: a field is missing or of another type; the message names the place.
    """
    status = Node(item.optional_mapping("status"), "status")
    devices: Any = status
    for name in ("allocation", "devices"):
        devices = devices.optional(name) or Node({}, name)
    held = []
    for result in devices.optional_items("results"):
        admin = result.optional("adminAccess")
        driver = result.field("driver").text()
        if driver in DRIVERS and not (admin and admin.value):
            held.append((driver, result.field("pool").text(), result.field("device").text()))
    owners = item.field("metadata").optional_items("ownerReferences")
    pods = [owner for owner in owners if owner.field("kind").text() == "Pod"]
    consumers = status.optional_items("reservedFor")
    pods += [user for user in consumers if user.field("resource").text() == "pods"]
    return tuple(held), frozenset(pod.field("uid").text() for pod in pods)
