"""Turn a node list (``kubectl get nodes -o json``) into the pools of a ServingPlan.

Every node with GPUs is in a pool or in ``left_out`` with the reason. A pool holds nodes of one
accelerator and one number of GPUs, as a ServingPlan requires.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ..documents import Document, Node
from .labels import VALUE_LENGTH, hashed_label, plain_label
from .nodes import UNKNOWN_PRODUCT, NodeSummary, Why, folded, read_node

DOMAINS = ("nvidia.com/gpu.clique", "topology.kubernetes.io/zone")
"""Labels of nodes that reach each other at full speed, the closest first."""


@dataclass(frozen=True)
class LeftOut:
    """A node with GPUs that is in no pool, and the value that decided."""

    node: str
    why: Why
    detail: str = ""


@dataclass(frozen=True)
class Inventory:
    """Pools as a spec writes them, and the nodes that are not wholly in them.

    ``partly``: nodes in pools with fewer allocatable GPUs than they have.
    """

    pools: tuple[Document, ...]
    left_out: tuple[LeftOut, ...]
    partly: tuple[str, ...]
    without_gpus: int

    @property
    def unknown(self) -> tuple[LeftOut, ...]:
        """Nodes whose GPUs are not in the catalogue, or that have no product label."""
        return tuple(i for i in self.left_out if i.why in UNKNOWN_PRODUCT)


def read_nodes(document: Document) -> Inventory:
    """Return the inventory of a node list.

    Raises:
        PlanFileError: the document is not a list of nodes; the message names the place.
        InputError: an item is of another kind.
    """
    pools: defaultdict[tuple[str, int], list[NodeSummary]] = defaultdict(list)
    left_out, partly, without = [], [], 0
    nodes = [read_node(item) for item in Node(document).field("items").items()]
    for node in sorted(nodes, key=lambda n: n.name):
        if not node.has_gpus:
            without += 1
            continue
        reason = node.unusable()
        if reason is not None:
            left_out.append(LeftOut(node.name, *reason))
            continue
        if node.allocatable_gpus < node.capacity_gpus:
            partly.append(
                f"{node.name}: {node.allocatable_gpus} of {node.capacity_gpus} GPUs are allocatable"
            )
        pools[node.accelerator, node.allocatable_gpus].append(node)
    of_accelerator = Counter(accelerator for accelerator, _ in pools)
    documents = []
    for (accelerator, gpus), members in sorted(pools.items()):
        name = folded(accelerator)
        pool: Document = {
            "name": name if of_accelerator[accelerator] == 1 else f"{name}-x{gpus}",
            "accelerator": accelerator,
            "count": gpus * len(members),
            "gpusPerNode": gpus,
        }
        domains = _domains(members)
        if len(domains) > 1:
            pool["domains"] = [{"name": n, "nodes": c} for n, c in sorted(domains.items())]
        documents.append(pool)
    return Inventory(tuple(documents), tuple(left_out), tuple(partly), without)


def _domains(nodes: list[NodeSummary]) -> Counter[str]:
    """Count the nodes of each domain by the closest label that all have; empty if none.

    A domain is a DNS label, with a hash if two would be equal or one is too long.
    """
    for label in DOMAINS:
        values = [str(node.labels[label]) for node in nodes if node.labels.get(label)]
        if len(values) == len(nodes):
            plain = {value: plain_label(value) for value in values}
            times = Counter(plain.values())
            names = {
                value: name
                if times[name] == 1 and 0 < len(name) <= VALUE_LENGTH
                else hashed_label(value)
                for value, name in plain.items()
            }
            return Counter(names[value] for value in values)
    return Counter()
