"""Check a user's pod template, and fill it in for the pods of an island.

The template's own fields stay. A field that only the plan can set (GPUs, a flag of parallelism,
Archipelago's labels) is refused with its place: two values would contradict each other.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from ..documents import Document, Node, read_json
from ..errors import InputError, PlanFileError
from .labels import GROUP

ENGINE = "engine"
"""Name of the engine's container; without such a container it is the first."""
KINDS = ("Pod", "PodTemplate")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Fitting:
    """What is filled in for one pod of an island.

    ``arguments``: only the plan can say them. ``nodes``: names of the nodes that it may run on;
    empty: any that ``selector`` and the template allow. ``follows``: it is a worker; the island's
    first pod serves requests and probes for all. ``settings``, by argument, and ``switches``, each
    with its opposite: the template may say the same, but nothing else.
    """

    labels: Mapping[str, str]
    gpus: int
    resource: str
    variables: Mapping[str, str]
    arguments: Sequence[str] = ()
    nodes: tuple[str, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)


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
    for container in containers:  # the types of the fields that are added to
        container.field("name").text()
        container.field("image").text()
        for words in ("command", "args"):
            for word in container.optional_items(words):
                word.text()
        for variable in container.optional_items("env"):
            variable.field("name").text()
        resources = container.optional("resources") or Node({})
        for amounts in ("limits", "requests"):
            resources.optional_mapping(amounts)
    spec.optional_mapping("nodeSelector")
    affinity = spec
    for name in ("affinity", "nodeAffinity", REQUIRED):
        affinity = affinity.optional(name) or Node({})
    for term in affinity.optional_items("nodeSelectorTerms"):
        term.mapping()
        for requirement in term.optional_items("matchFields"):
            requirement.mapping()
    metadata = holder.optional("metadata") or Node({})
    for label in metadata.optional_mapping("labels"):
        if label.startswith(f"{GROUP}/"):
            place = metadata.field("labels").path
            raise PlanFileError(f"{place}: {label} is written by us; remove it")
    fields = metadata.mapping()  # a name or namespace would be that of one pod
    names = [name for name in ("labels", "annotations") if fields.get(name)]
    # Copies of their own: YAML's aliases may make one object of two fields.
    copies = {name: copy.deepcopy(fields[name]) for name in names}
    return {"metadata": copies, "spec": copy.deepcopy(spec.mapping())}


def fitted(template: Document, fitting: Fitting) -> Document:
    """Return the template filled in for one pod.

    Raises:
        PlanFileError: both set the same field; the message names where.
    """
    pod = copy.deepcopy(template)
    pod["metadata"].setdefault("labels", {}).update(fitting.labels)
    containers = pod["spec"]["containers"]
    engine = next((c for c in containers if c["name"] == ENGINE), containers[0])
    _fill_container(engine, fitting)
    _fill_placement(pod["spec"], fitting)
    return pod


def _fill_container(container: Document, fitting: Fitting) -> None:
    if fitting.follows:
        for probe in PROBES:
            container.pop(probe, None)
    place = f"spec.containers[name={container['name']}]"
    words, variables = container.get("args") or (), container.get("env") or ()
    resources = container["resources"] = container.get("resources") or {}
    stated = {
        "args": {str(word).partition("=")[0] for word in words},
        "env": {str(item.get("name")) for item in variables},
        "resources.limits": set(resources.get("limits") or {}),
        "resources.requests": set(resources.get("requests") or {}),
    }
    written = {
        "args": [argument.partition("=")[0] for argument in fitting.arguments],
        "env": list(fitting.variables),
        "resources.limits": [fitting.resource],
        "resources.requests": [fitting.resource],
    }
    for field_name, names in written.items():
        for name in names:
            if name in stated[field_name]:
                raise PlanFileError(f"{place}.{field_name}: {name} is the plan's to say; remove it")
    added_words = [*fitting.arguments, *_settings(container, fitting, place)]
    if added_words:
        container["args"] = [*words, *added_words]
    added = [{"name": name, "value": value} for name, value in fitting.variables.items()]
    container["env"] = [*added, *variables]  # first, so that others can use them
    for kind in ("limits", "requests"):
        # As it is stored: a number would always differ.
        resources[kind] = {**(resources.get(kind) or {}), fitting.resource: str(fitting.gpus)}


def _settings(container: Document, fitting: Fitting, place: str) -> Iterator[str]:
    """Yield the settings that the template does not say, as arguments.

    Raises:
        PlanFileError: the template says something else.
    """
    said = _said([*(container.get("command") or ()), *(container.get("args") or ())])
    for name, value in fitting.settings.items():
        whole, _, key = name.partition(".")
        inside = bool(key) and whole in said
        where = f"{whole} (its {key})" if inside else name
        found = _key_of(said[whole], key) if inside else said.get(name)
        if found is None:
            yield f"{name}={value}"
        elif not _same(found, value):
            raise PlanFileError(
                f"{place}.args: {where} is {found or 'not there'}, the plan is made with {value}: "
                "remove it, or state it in models[].engine"
            )
    for name, opposite in fitting.switches.items():
        if opposite in said:
            raise PlanFileError(
                f"{place}.args: {opposite} contradicts the plan, which counts on the prefix cache: "
                "remove it, or the prefix hits in models[].engine"
            )
        if name and name not in said:
            yield name


def _said(words: Iterable[object]) -> dict[str, str]:
    """Return the arguments of a command line with their values; the last of a name counts.

    Also of a shell's: words with blanks are taken apart. vLLM takes ``_`` for ``-`` in names.
    """
    flat = [part for word in words for part in _parts_of(str(word))]
    said = {}
    for word, after in zip(flat, [*flat[1:], ""], strict=False):  # no word, no pair
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, key = name.partition(".")
            said[head.replace("_", "-") + dot + key] = (
                value if equals or after.startswith("--") else after
            )
    return said


def _parts_of(word: str) -> list[str]:
    if word.startswith("--") or not any(mark.isspace() for mark in word):
        return [word]
    try:
        return shlex.split(word, comments=True)
    except ValueError:  # no shell could read it either
        return word.split()


def _key_of(text: str, key: str) -> str:
    """Return the value of a key in a JSON argument; empty if it has none or cannot be read."""
    try:
        return str(Node(read_json(text).mapping()).mapping().get(key, ""))
    except InputError:
        return ""


def _same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


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
        placed = []
        for term, node in product(terms, fitting.nodes):
            named = {"key": "metadata.name", "operator": "In", "values": [node]}
            fields = [*(term.get("matchFields") or ()), named]
            placed.append({**copy.deepcopy(term), "matchFields": fields})
        of_nodes[REQUIRED] = {"nodeSelectorTerms": placed}
