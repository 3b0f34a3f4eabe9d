"""``archipelago render``: one workload per island, for ``kubectl apply``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.canonical import PLAN, load_document, to_yaml_all
from archipelago.planner.commands.files import parse_document, read_text
from archipelago.planner.engineflags import Engine
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.planfile import parse_plan
from archipelago.planner.podtemplate import read_template
from archipelago.planner.reader import Node
from archipelago.planner.shards import is_pointer
from archipelago.planner.spec import load_resource
from archipelago.planner.stored import resource_of
from archipelago.planner.table import routing_content, validate_content
from archipelago.planner.text import safe
from archipelago.planner.workloads import Wish, unplaced, workloads

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.spec import ServingPlanResource

DONE = 0
KEY = "table.json"
"""Key of the operator's ConfigMap that holds the table."""


@dataclass(frozen=True)
class Asked:
    """The options as they were written."""

    templates: tuple[str, ...]
    table: str | None
    namespace: str | None
    engine: str | None
    selectors: tuple[str, ...]


def run(path: str, asked: Asked) -> int:
    """Write the manifests to standard output; what decides less than it could is said beside."""
    document = parse_document(read_text(path), path)
    resource, content = _planned(document, path)
    if asked.table is not None:
        content = _content(asked.table)
    if content is None:
        raise InputError(f"{path}: a ServingPlan has no islands; give its routing table by --table")
    wish = _wish(resource, asked)
    for pool in unplaced(content, resource.spec, wish):
        _say(f"pool {pool}: nothing says which nodes are its own; --select {pool}:LABEL=VALUE does")
    try:
        documents = workloads(content, resource.spec, wish)
    except PlanFileError as error:
        raise PlanFileError(f"pod template: {error}") from None
    sys.stdout.write(to_yaml_all(documents))
    return DONE


def _planned(document: Document, path: str) -> tuple[ServingPlanResource, Document | None]:
    """What was asked for, and the content of the table where a plan is at hand."""
    if document.get("kind") != PLAN:
        return load_resource(document), None
    try:
        resource = resource_of(document)
        return resource, routing_content(resource.spec, parse_plan(document))
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from None


def _content(path: str) -> Document:
    """Content of a ConfigMap of the operator, or of the table in it."""
    document = parse_document(read_text(path), path)
    try:
        content = _content_of(document)
        findings = validate_content(content)
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from None
    if findings:
        raise PlanFileError("\n".join(f"{path}: {finding}" for finding in findings))
    return content


def _content_of(document: Document) -> Document:
    if document.get("kind") == "ConfigMap":
        document = load_document(Node(document).field("data").field(KEY).text())
    if is_pointer(document):
        remedy = "the table lies in shards; join them as docs/routing-table.md shows"
        raise PlanFileError(remedy)
    return Node(document).field("content").mapping()


def _wish(resource: ServingPlanResource, asked: Asked) -> Wish:
    templates = {}
    for text in asked.templates:
        model, _, path = text.rpartition("=")
        if model and model not in {m.name for m in resource.spec.models}:
            raise InputError(f"--pod-template {text}: the plan has no model {model!r}")
        templates[model] = _template(path)
    selectors: dict[str, dict[str, str]] = {}
    for text in asked.selectors:
        pool, label, value = _selected(text, resource)
        selectors.setdefault(pool, {})[label] = value
    return Wish(
        plan=resource.metadata.name,
        templates=templates,
        namespace=asked.namespace or resource.metadata.namespace,
        engine=None if asked.engine is None else Engine(asked.engine),
        selectors=selectors,
    )


def _template(path: str) -> Document:
    try:
        return read_template(parse_document(read_text(path), path))
    except PlanFileError as error:
        text = str(error)
        raise PlanFileError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None


def _selected(text: str, resource: ServingPlanResource) -> tuple[str, str, str]:
    pool, _, rest = text.partition(":")
    label, _, value = rest.partition("=")
    if not label or not value:
        raise InputError(f"--select {text}: write POOL:LABEL=VALUE")
    found = {p.name: p for p in resource.spec.pools}.get(pool)
    if found is None:
        raise InputError(f"--select {text}: the plan has no pool {pool!r}")
    if found.node_selector is not None:
        raise InputError(f"--select {text}: the table names the nodes of pool {pool}; remove it")
    return pool, label, value


def _say(line: str) -> None:
    sys.stderr.write(f"{safe(line)}\n")
