"""Check a user's pod template, and fill it in for the pods of an island.

The template's own fields stay. A field that only the plan can set (GPUs, a flag of parallelism,
Archipelago's labels) is refused with its place: two values would contradict each other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..documents import Document, Node
from ..errors import PlanFileError
from .labels import GROUP

ENGINE = "engine"
"""Name of the engine's container; without such a container it is the first."""
KINDS = ("Pod", "PodTemplate")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Fitting:
    """What is filled in for one pod of an island.

    ``nodes``: names of the nodes that it may run on; empty: any that ``selector`` and the template
    allow. ``follows``: it is a worker; the island's first pod serves requests and probes for all.
    """

    labels: Mapping[str, str]
    gpus: int
    resource: str
    variables: Mapping[str, str]
    arguments: Sequence[str] = ()
    nodes: tuple[str, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False


def read_template(document: Document) -> Document:
    """Return ``metadata`` and ``spec`` of a PodTemplate, a Pod, or an object without a kind.

    Raises:
        PlanFileError: it has no containers, or sets what the plan sets; the message names where.
    """
    node = Node(document)
    kind = node.optional("kind")
    if kind is not None and kind.value not in KINDS:
        raise kind.refuse("Pod or PodTemplate; give the template of a pod, not what makes pods")
    holder = node.field("template") if kind is not None and kind.value == "PodTemplate" else node
    spec = holder.field("spec")
    containers = list(spec.field("containers").items())
    if not containers:
        raise spec.field("containers").refuse("a list with the container of the engine")
    for container in containers:
        _read_container(container)
    _read_placement(spec)
    _refuse_reserved_labels(holder)
    return {"metadata": _metadata(holder), "spec": copy.deepcopy(spec.mapping())}


def fitted(template: Document, fitting: Fitting) -> Document:
    """Return the template filled in for one pod.

    Raises:
        PlanFileError: both set the same field; the message names where.
    """
    pod = copy.deepcopy(template)
    pod["metadata"].setdefault("labels", {}).update(fitting.labels)
    _fill_container(_engine(pod["spec"]), fitting)
    _fill_placement(pod["spec"], fitting)
    return pod


def _read_container(container: Node) -> None:
    """Check the types of the fields that are added to."""
    container.field("name").text()
    container.field("image").text()
    for word in _listed(container, "args"):
        word.text()
    for variable in _listed(container, "env"):
        variable.field("name").text()
    if resources := container.optional("resources"):
        for kind in ("limits", "requests"):
            if amounts := resources.optional(kind):
                amounts.mapping()


def _read_placement(spec: Node) -> None:
    if selector := spec.optional("nodeSelector"):
        selector.mapping()
    below: Node | None = spec
    for field_name in ("affinity", "nodeAffinity", REQUIRED):
        below = None if below is None else below.optional(field_name)
    for term in () if below is None else _listed(below, "nodeSelectorTerms"):
        term.mapping()
        for requirement in _listed(term, "matchFields"):
            requirement.mapping()


def _listed(holder: Node, name: str) -> list[Node]:
    values = holder.optional(name)
    return [] if values is None else list(values.items())


def _metadata(holder: Node) -> dict[str, Any]:
    """Return labels and annotations; a name or namespace would be that of one pod."""
    metadata = holder.optional("metadata")
    fields = {} if metadata is None else metadata.mapping()
    return {key: copy.deepcopy(fields[key]) for key in ("labels", "annotations") if fields.get(key)}


def _refuse_reserved_labels(holder: Node) -> None:
    metadata = holder.optional("metadata")
    labels = None if metadata is None else metadata.optional("labels")
    for label in {} if labels is None else labels.mapping():
        if label.startswith(f"{GROUP}/"):
            raise PlanFileError(f"{labels and labels.path}: {label} is written by us; remove it")


def _engine(spec: Document) -> Document:
    containers: list[Document] = spec["containers"]
    return next((c for c in containers if c["name"] == ENGINE), containers[0])


def _fill_container(container: Document, fitting: Fitting) -> None:
    if fitting.follows:
        for probe in PROBES:
            container.pop(probe, None)
    where = f"spec.containers[name={container['name']}]"
    flags = [str(word).partition("=")[0] for word in container.get("args") or ()]
    for argument in fitting.arguments:
        flag = argument.partition("=")[0]
        if flag in flags:
            raise PlanFileError(f"{where}.args: {flag} is the plan's to say; remove it")
    if fitting.arguments:
        container["args"] = [*(container.get("args") or ()), *fitting.arguments]
    taken = {str(item.get("name")) for item in container.get("env") or ()}
    for name in fitting.variables:
        if name in taken:
            raise PlanFileError(f"{where}.env: {name} is the plan's to say; remove it")
    added = [{"name": name, "value": value} for name, value in fitting.variables.items()]
    container["env"] = [*added, *(container.get("env") or ())]  # first, so that others can use them
    resources = container["resources"] = container.get("resources") or {}
    for kind in ("limits", "requests"):
        amounts = resources[kind] = resources.get(kind) or {}
        if fitting.resource in amounts:
            raise PlanFileError(
                f"{where}.resources.{kind}: {fitting.resource} is the plan's to say; remove it"
            )
        amounts[fitting.resource] = str(
            fitting.gpus
        )  # as it is stored: a number would always differ


def _fill_placement(spec: Document, fitting: Fitting) -> None:
    selector = spec.get("nodeSelector") or {}
    for label, value in fitting.selector.items():
        if selector.get(label, value) != value:
            raise PlanFileError(
                f"spec.nodeSelector: {label} is {selector[label]}, the pool's is {value}; remove it"
            )
    if fitting.selector:
        spec["nodeSelector"] = {**selector, **fitting.selector}
    if fitting.nodes:
        affinity = spec["affinity"] = spec.get("affinity") or {}
        of_nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
        terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        # By the node's name, not its label ``kubernetes.io/hostname``, which clouds fill
        # differently. A field takes one value, hence a term for each node; terms are alternatives.
        placed = [_on_node(term, node) for term in terms for node in fitting.nodes]
        of_nodes[REQUIRED] = {"nodeSelectorTerms": placed}


def _on_node(term: Mapping[str, Any], node: str) -> Document:
    """Return the term of node affinity limited to this node."""
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {**copy.deepcopy(dict(term)), "matchFields": [*(term.get("matchFields") or ()), named]}
