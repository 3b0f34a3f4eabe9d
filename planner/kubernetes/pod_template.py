"""A user's pod template: what it must have, and how an island's own is put into it.

What the template says stays as it is. Where it says what only the plan can say (GPUs, a flag of
parallelism, our labels), it is refused with the place: two answers would be worse than none.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archipelago.planner.errors import PlanFileError
from archipelago.planner.labels import GROUP
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archipelago.planner.canonical import Document

ENGINE = "engine"
"""Name of the container that runs the engine; without one of that name it is the first."""
KINDS = ("Pod", "PodTemplate")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Fitting:
    """What one pod of an island gets.

    ``nodes``: names of the nodes that it may stand on; none: wherever ``selector`` and the
    template allow. ``follows``: it only works for the island's first pod, which answers requests
    and probes for all.
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
    """The ``metadata`` and ``spec`` of a pod: of a PodTemplate, of a Pod, or as they stand.

    Raises:
        PlanFileError: it has no containers, or says what the plan says; the message names where.
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
    _refuse_ours(holder)
    return {"metadata": _metadata(holder), "spec": copy.deepcopy(spec.mapping())}


def fitted(template: Document, own: Fitting) -> Document:
    """The template with what the plan says of one pod.

    Raises:
        PlanFileError: both say the same thing; the message names where.
    """
    pod = copy.deepcopy(template)
    pod["metadata"].setdefault("labels", {}).update(own.labels)
    _run(_engine(pod["spec"]), own)
    _place(pod["spec"], own)
    return pod


def _read_container(container: Node) -> None:
    """What is added to must be of the kind that Kubernetes knows."""
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
        for wanted in _listed(term, "matchFields"):
            wanted.mapping()


def _listed(holder: Node, name: str) -> list[Node]:
    found = holder.optional(name)
    return [] if found is None else list(found.items())


def _metadata(holder: Node) -> dict[str, Any]:
    """Labels and annotations; a name or namespace would be that of one pod."""
    given = holder.optional("metadata")
    kept = {} if given is None else given.mapping()
    return {key: copy.deepcopy(kept[key]) for key in ("labels", "annotations") if kept.get(key)}


def _refuse_ours(holder: Node) -> None:
    metadata = holder.optional("metadata")
    labels = None if metadata is None else metadata.optional("labels")
    for label in {} if labels is None else labels.mapping():
        if label.startswith(f"{GROUP}/"):
            raise PlanFileError(f"{labels and labels.path}: {label} is written by us; remove it")


def _engine(spec: Document) -> Document:
    containers: list[Document] = spec["containers"]
    return next((c for c in containers if c["name"] == ENGINE), containers[0])


def _run(container: Document, own: Fitting) -> None:
    if own.follows:
        for probe in PROBES:
            container.pop(probe, None)
    where = f"spec.containers[name={container['name']}]"
    given = [str(word).partition("=")[0] for word in container.get("args") or ()]
    for argument in own.arguments:
        flag = argument.partition("=")[0]
        if flag in given:
            raise PlanFileError(f"{where}.args: {flag} is the plan's to say; remove it")
    if own.arguments:
        container["args"] = [*(container.get("args") or ()), *own.arguments]
    taken = {str(item.get("name")) for item in container.get("env") or ()}
    for name in own.variables:
        if name in taken:
            raise PlanFileError(f"{where}.env: {name} is the plan's to say; remove it")
    ours = [{"name": name, "value": value} for name, value in own.variables.items()]
    container["env"] = [*ours, *(container.get("env") or ())]  # first, so that others can use them
    resources = container["resources"] = container.get("resources") or {}
    for kind in ("limits", "requests"):
        amounts = resources[kind] = resources.get(kind) or {}
        if own.resource in amounts:
            raise PlanFileError(
                f"{where}.resources.{kind}: {own.resource} is the plan's to say; remove it"
            )
        amounts[own.resource] = str(own.gpus)  # as it is stored: a number would always differ


def _place(spec: Document, own: Fitting) -> None:
    selector = spec.get("nodeSelector") or {}
    for label, value in own.selector.items():
        if selector.get(label, value) != value:
            raise PlanFileError(
                f"spec.nodeSelector: {label} is {selector[label]}, the pool's is {value}; remove it"
            )
    if own.selector:
        spec["nodeSelector"] = {**selector, **own.selector}
    if own.nodes:
        affinity = spec["affinity"] = spec.get("affinity") or {}
        of_nodes = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
        terms = (of_nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        placed = [_on(term, node) for term in terms for node in own.nodes]
        of_nodes[REQUIRED] = {"nodeSelectorTerms": placed}


def _on(term: Mapping[str, Any], node: str) -> Document:
    """A term of node affinity that holds on this node only; terms are alternatives.

    By the name of the node, not its label ``kubernetes.io/hostname``, which clouds fill as they
    like. A field takes one value, hence a term for each node.
    """
    named = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {**copy.deepcopy(dict(term)), "matchFields": [*(term.get("matchFields") or ()), named]}
