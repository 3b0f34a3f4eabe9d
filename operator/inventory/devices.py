"""GPUs that drivers publish by ResourceSlices, and who has them by ResourceClaims; pure.

Of each pool of a driver the newest generation counts, once all its slices are there. Until then
what was complete before stays: a driver that publishes anew does not take its GPUs away. If all
slices of a pool are gone, its driver restarts or was removed: the GPUs are built in, and none is
allocatable. They are forgotten with their node.

Only devices of one node count: those that a network brings to many nodes belong to no pool of ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from archipelago.planner.kubernetes.devices import (
    Device,
    DeviceSlice,
    NodeDevices,
    by_node,
    complete,
    counted,
    read_allocation,
    read_slice,
)

from ..resources.deletions import Deletions
from ..resources.names import Key
from ..resources.reading import Body, read_meta, reading

if TYPE_CHECKING:
    from .pods import PodTable

PoolKey: TypeAlias = tuple[str, str]
"""A driver and its pool."""


@dataclass(frozen=True)
class SliceFacts:
    """One ResourceSlice. ``version``, of the object, does not compare."""

    published: DeviceSlice
    version: int = field(compare=False)


@dataclass(frozen=True)
class ClaimFacts:
    """One ResourceClaim. ``version``, of the object, does not compare.

    ``devices``: driver, pool and name of each that it has. ``pods``: uids of those it is for.
    """

    uid: str
    namespace: str
    version: int = field(compare=False)
    devices: frozenset[tuple[str, str, str]]
    pods: frozenset[str]


def read_device_slice(body: Body) -> SliceFacts | None:
    """Read a ResourceSlice; return None if its driver has no GPUs.

    Raises:
        Unreadable: the object is no ResourceSlice.
    """
    with reading("ResourceSlice", body) as item:
        published = read_slice(item)
        return SliceFacts(published, read_meta(item).version) if published else None


def read_claim(body: Body) -> ClaimFacts | None:
    """Read a ResourceClaim; return None if it has no GPU.

    Raises:
        Unreadable: the object is no ResourceClaim.
    """
    with reading("ResourceClaim", body) as item:
        meta, (devices, pods) = read_meta(item), read_allocation(item)
        if not devices:
            return None
        return ClaimFacts(meta.uid, meta.namespace, meta.version, frozenset(devices), pods)


class DeviceTable:
    """The GPUs of all nodes. ``watched``: ResourceSlices are served, and may be seen."""

    def __init__(self) -> None:
        self.watched = False
        self._slices: dict[str, SliceFacts] = {}
        self._pools: defaultdict[PoolKey, set[str]] = defaultdict(set)  # names of their slices
        self._settled: dict[PoolKey, Mapping[str, tuple[Device, ...]]] = {}  # by node
        self._gone: set[PoolKey] = set()  # all their slices; GPUs are built in as before
        self._on_node: defaultdict[str, set[PoolKey]] = defaultdict(set)
        self._late: set[PoolKey] | None = None  # pools that a list changes; None: none is read
        self._deleted: Deletions[str] = Deletions()

    def of(self, node: str) -> NodeDevices | None:
        """Return the GPUs of a node; None if no driver has published any."""
        pools = self._on_node.get(node)
        if not pools:
            return None
        return counted(device for pool in pools for device in self._devices(pool, node))

    def keys(self, node: str) -> dict[tuple[str, str, str], Device]:
        """Return the devices of a node by driver, pool and name."""
        return {
            (*pool, device.name): device
            for pool in self._on_node.get(node, ())
            for device in self._devices(pool, node)
        }

    def nodes_of(self, devices: Iterable[tuple[str, str, str]]) -> frozenset[str]:
        """Return the nodes of the pools that devices belong to."""
        pools = {(driver, pool) for driver, pool, _ in devices}
        return frozenset(node for pool in pools for node in self._settled.get(pool, ()))

    def update(self, facts: SliceFacts) -> frozenset[str]:
        """Take in a slice; return the nodes whose GPUs could have changed."""
        name = facts.published.name
        before = self._slices.get(name)
        if before is not None and facts.version <= before.version:
            return frozenset()
        if self._deleted.outdate(name, facts.version):
            return frozenset()
        changed = self._remove(name) if before and before != facts else frozenset()
        self._slices[name] = facts
        pool = facts.published.driver, facts.published.pool
        self._pools[pool].add(name)
        return changed | self._settle(pool) if before != facts else frozenset()

    def delete(self, name: str, version: int) -> frozenset[str]:
        """Remove a slice deleted at that version; return the nodes as ``update``."""
        self._deleted.note(name, version)
        return self._remove(name)

    def begin_list(self) -> None:
        """Begin a list: an older generation may stand before the newest, so none is used yet."""
        self._late = self._late or set()

    def end_list(self, listed: Collection[str], version: int) -> frozenset[str]:
        """End a list taken at that version, and remove what it lacks; return as ``update``."""
        for name, facts in list(self._slices.items()):
            if name not in listed and facts.version <= version:
                self.delete(name, version)
        late, self._late = self._late or set(), None
        return frozenset().union(*map(self._settle, sorted(late)))

    def forget(self, node: str) -> None:
        """Forget the GPUs of a node that is gone, of drivers that are gone."""
        for pool in self._gone & self._on_node.get(node, set()):
            self._set(pool, {n: found for n, found in self._settled[pool].items() if n != node})
            if not self._settled[pool]:
                del self._settled[pool]
                self._gone.discard(pool)

    def _devices(self, pool: PoolKey, node: str) -> tuple[Device, ...]:
        devices = self._settled[pool][node]
        if pool not in self._gone:
            return devices
        return tuple(replace(device, usable=False) for device in devices)

    def _remove(self, name: str) -> frozenset[str]:
        facts = self._slices.pop(name, None)
        if facts is None:
            return frozenset()
        pool = facts.published.driver, facts.published.pool
        self._pools[pool].discard(name)
        return self._settle(pool)

    def _settle(self, pool: PoolKey) -> frozenset[str]:
        """Use what the pool has now if it is complete; return the nodes that it concerns."""
        if self._late is not None:
            self._late.add(pool)
            return frozenset()
        before = self._settled.get(pool, {})
        if not self._pools[pool]:
            del self._pools[pool]
            if before:
                self._gone.add(pool)
            return frozenset(before)
        devices = complete(self._slices[name].published for name in self._pools[pool])
        if devices is None:
            return frozenset()
        self._gone.discard(pool)
        self._set(pool, by_node(devices))
        return frozenset(before.keys() | self._settled[pool].keys())

    def _set(self, pool: PoolKey, now: Mapping[str, tuple[Device, ...]]) -> None:
        """Set what a pool has on which node."""
        for node in self._settled.get(pool, {}).keys() - now.keys():
            self._on_node[node].discard(pool)
            if not self._on_node[node]:
                del self._on_node[node]
        for node in now:
            self._on_node[node].add(pool)
        self._settled[pool] = now


class ClaimTable:
    """The ResourceClaims that have GPUs. ``watched``: the operator may see them."""

    def __init__(self) -> None:
        self.watched = False
        self._claims: dict[str, ClaimFacts] = {}
        self._of_device: dict[tuple[str, str, str], str] = {}
        self._deleted: Deletions[str] = Deletions()

    def update(self, claim: ClaimFacts) -> frozenset[tuple[str, str, str]]:
        """Take in a claim; return the devices that it got or lost, or whose holder has changed."""
        before = self._claims.get(claim.uid)
        if before is not None and claim.version <= before.version:
            return frozenset()
        if self._deleted.outdate(claim.uid, claim.version):
            return frozenset()
        old = self._remove(claim.uid)
        self._claims[claim.uid] = claim
        self._of_device |= dict.fromkeys(claim.devices, claim.uid)
        return old | claim.devices if before != claim else frozenset()

    def delete(self, uid: str, version: int) -> frozenset[tuple[str, str, str]]:
        """Remove a claim that was deleted at that version or has no GPU; return its devices."""
        self._deleted.note(uid, version)
        return self._remove(uid)

    def unlisted(
        self, listed: Collection[str], version: int, namespace: str | None
    ) -> tuple[str, ...]:
        """Return what a list of the namespace (None: of all), taken at that version, lacks."""
        return tuple(
            claim.uid
            for claim in self._claims.values()
            if claim.uid not in listed
            and namespace in (None, claim.namespace)
            and claim.version <= version
        )

    def held_by_others(self, plan: Key, node: str, table: DeviceTable, pods: PodTable) -> int:
        """Return the whole GPUs of a node that claims outside the plan have [GPUs].

        A slice of a GPU takes the whole of it. A pod that requests GPUs as a resource of the node
        may have its claim made by the scheduler: it is counted as a pod already.
        """
        devices = table.keys(node)
        taken = {key for key in devices if self._is_foreign(key, plan, pods)}
        sets = frozenset[str]().union(*(devices[key].counters for key in taken))
        whole = {key: device for key, device in devices.items() if not device.part}
        return sum(key in taken or bool(d.counters & sets) for key, d in whole.items() if d.usable)

    def _is_foreign(self, device: tuple[str, str, str], plan: Key, pods: PodTable) -> bool:
        claim = self._claims.get(self._of_device.get(device, ""))
        if claim is None:
            return False
        known = [pod for pod in map(pods.get, claim.pods) if pod]
        return not any(pod.plan == plan or pod.gpus for pod in known)

    def _remove(self, uid: str) -> frozenset[tuple[str, str, str]]:
        claim = self._claims.pop(uid, None)
        if claim is None:
            return frozenset()
        for device in claim.devices:
            if self._of_device.get(device) == uid:
                del self._of_device[device]
        return claim.devices
