"""From a list of nodes, as ``kubectl get nodes -o json`` gives it, to the pools of a ServingPlan.

Nothing is dropped silently: every node with GPUs is in a pool or in ``left_out`` with the reason.
A pool holds nodes of one accelerator and one number of GPUs, because a ServingPlan says it so.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from archipelago.planner.errors import InputError
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document

RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
SHARED = ("nvidia.com/gpu.shared",)
SLICED = ("nvidia.com/mig-", "amd.com/spx", "amd.com/dpx", "amd.com/qpx", "amd.com/cpx")
DOMAINS = ("nvidia.com/gpu.clique", "topology.kubernetes.io/zone")
"""Labels that say which nodes reach each other at full speed, the closer one first."""
LABEL = 63
"""Characters of a DNS label."""


class Why(StrEnum):
    """Why a node with GPUs is in no pool."""

    UNKNOWN = "unknown product"
    NO_PRODUCT = "no product label"
    CORDONED = "cordoned"
    NOT_READY = "not ready"
    SLICED = "GPUs are offered in parts (MIG or partitions)"
    SHARED = "GPUs are shared"
    NO_GPUS = "GPUs are not allocatable"


@dataclass(frozen=True)
class LeftOut:
    """A node with GPUs that is in no pool, and the value that decided."""

    node: str
    why: Why
    detail: str = ""


@dataclass(frozen=True)
class Inventory:
    """Pools as a spec writes them, and everything that is to be said beside them.

    ``partly``: nodes in pools with fewer GPUs allocatable than there are.
    """

    pools: tuple[Document, ...]
    left_out: tuple[LeftOut, ...]
    partly: tuple[str, ...]
    without_gpus: int

    @property
    def unknown(self) -> tuple[LeftOut, ...]:
        """Nodes whose GPUs the catalogue does not have, or that do not say what they are."""
        return tuple(i for i in self.left_out if i.why in (Why.UNKNOWN, Why.NO_PRODUCT))


@dataclass(frozen=True)
class _Seen:
    """One node with GPUs, read."""

    name: str
    labels: dict[str, Any]
    allocatable: dict[str, Any]
    capacity: dict[str, Any]
    cordoned: bool
    ready: bool

    def gpus(self, stock: dict[str, Any]) -> int:
        """Whole GPUs of a stock [GPUs]."""
        return sum(_count(stock.get(name, 0)) for name in RESOURCES)

    def holds(self, prefixes: tuple[str, ...]) -> str:
        """A resource of that kind that the node has any of, empty for none."""
        held = {**self.capacity, **self.allocatable}
        found = (n for n in sorted(held) if n.startswith(prefixes) and _count(held[n]))
        return next(found, "")


def read_nodes(document: Document) -> Inventory:
    """The inventory of a node list.

    Raises:
        PlanFileError: it is no list of nodes; the message names the place.
        InputError: it is a list of something else.
    """
    pools: defaultdict[tuple[str, int], list[_Seen]] = defaultdict(list)
    left_out, partly, without = [], [], 0
    nodes = [_read(item) for item in Node(document).field("items").items()]
    for node in sorted(nodes, key=lambda n: n.name):
        named = any(label in node.labels for label in _products()["labels"])
        if not (named or node.gpus(node.capacity) or node.holds((*SHARED, *SLICED))):
            without += 1
            continue
        reason = _unusable(node)
        if reason is not None:
            left_out.append(reason)
            continue
        gpus, there = node.gpus(node.allocatable), node.gpus(node.capacity)
        if gpus < there:
            partly.append(f"{node.name}: {gpus} of {there} GPUs are allocatable")
        pools[_accelerator(node.labels)[0], gpus].append(node)
    found = tuple(_pool(key, members, pools) for key, members in sorted(pools.items()))
    return Inventory(found, tuple(left_out), tuple(partly), without)


def _read(item: Node) -> _Seen:
    kind = item.optional("kind")
    if kind is not None and kind.value != "Node":
        raise InputError(
            f"{kind.path}: {kind.value!r} is no Node; give `kubectl get nodes -o json`"
        )
    metadata, status = item.field("metadata"), item.field("status")
    labels, spec = metadata.optional("labels"), item.optional("spec")
    conditions = status.optional("conditions")
    ready = [
        c.field("status").text()
        for c in (conditions.items() if conditions else ())
        if c.field("type").text() == "Ready"
    ]
    capacity = status.optional("capacity")
    allocatable = status.optional("allocatable")
    return _Seen(
        metadata.field("name").text(),
        labels.mapping() if labels else {},
        allocatable.mapping() if allocatable else {},
        capacity.mapping() if capacity else {},
        bool(spec.mapping().get("unschedulable")) if spec else False,
        ready == ["True"],
    )


def _count(quantity: object) -> int:
    """Extended resources are whole numbers, written as text."""
    text = str(quantity)
    return int(text) if text.isdecimal() else 0


def _unusable(node: _Seen) -> LeftOut | None:
    if node.cordoned:
        return LeftOut(node.name, Why.CORDONED)
    if not node.ready:
        return LeftOut(node.name, Why.NOT_READY)
    if sliced := node.holds(SLICED) or _says(node, "-MIG-"):
        return LeftOut(node.name, Why.SLICED, sliced)
    if shared := node.holds(SHARED) or _says(node, "-SHARED") or _strategy(node):
        return LeftOut(node.name, Why.SHARED, shared)
    found, said = _accelerator(node.labels)
    if not found:
        return LeftOut(node.name, Why.UNKNOWN if said else Why.NO_PRODUCT, said)
    return None if node.gpus(node.allocatable) else LeftOut(node.name, Why.NO_GPUS)


def _says(node: _Seen, mark: str) -> str:
    product = str(node.labels.get("nvidia.com/gpu.product", ""))
    return product if mark in product else ""


def _strategy(node: _Seen) -> str:
    strategy = str(node.labels.get("nvidia.com/gpu.sharing-strategy", "none"))
    return "" if strategy == "none" else strategy


def _accelerator(labels: dict[str, Any]) -> tuple[str, str]:
    """The catalogue's name, empty where unknown, and what the node says."""
    said = ""
    for label in _products()["labels"]:
        if label in labels:
            said = said or f"{label}={labels[label]}"
            name = _folded(str(labels[label]))
            if found := _by_name().get(name) or _by_size(name, labels):
                return found, said
    return "", said


def _by_size(name: str, labels: dict[str, Any]) -> str:
    row = _products()["sized"].get(name)
    size = _count(labels.get(row["label"], 0)) if row else 0
    sizes = row["sizes"] if row else ()
    return next((s["accelerator"] for s in sizes if s["mebibytes"] == size), "")


@cache
def _products() -> dict[str, Any]:
    text = files("archipelago.planner").joinpath("data", "products.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@cache
def _by_name() -> dict[str, str]:
    products: dict[str, list[str]] = _products()["products"]
    return {_folded(said): name for name, names in products.items() for said in names}


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


def _pool(
    key: tuple[str, int], nodes: list[_Seen], pools: dict[tuple[str, int], list[_Seen]]
) -> Document:
    accelerator, gpus = key
    alone = sum(1 for name, _ in pools if name == accelerator) == 1
    name = _folded(accelerator)
    pool: Document = {
        "name": name if alone else f"{name}-x{gpus}",
        "accelerator": accelerator,
        "count": gpus * len(nodes),
        "gpusPerNode": gpus,
    }
    domains = _domains(nodes)
    if len(domains) > 1:
        pool["domains"] = [{"name": n, "nodes": c} for n, c in sorted(domains.items())]
    return pool


def _domains(nodes: list[_Seen]) -> Counter[str]:
    """Nodes of each domain by the closest label that all of them have; empty for none."""
    for label in DOMAINS:
        values = [str(node.labels[label]) for node in nodes if node.labels.get(label)]
        if len(values) == len(nodes):
            names = _labels(sorted({*values}))
            return Counter(names[value] for value in values)
    return Counter()


def _labels(values: list[str]) -> dict[str, str]:
    """A DNS label for every value; where two would be one, or one is too long, a hash ends it."""
    plain = {v: re.sub(r"[^a-z0-9]+", "-", v.casefold()).strip("-") for v in values}
    taken = Counter(plain.values())
    return {
        value: name if taken[name] == 1 and 0 < len(name) <= LABEL else _hashed(name, value)
        for value, name in plain.items()
    }


def _hashed(name: str, value: str) -> str:
    end = hashlib.sha256(value.encode()).hexdigest()[:8]
    return f"{name[: LABEL - 1 - len(end)].strip('-')}-{end}".strip("-")
