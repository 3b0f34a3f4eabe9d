"""``archipelago manifests``: one workload per island, for ``kubectl apply``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ...documents import PLAN, Document, Node, load_document, to_yaml_all
from ...errors import InputError, PlanFileError
from ...formats.plan_file import parse_plan, resource_of
from ...kubernetes.engine_flags import Engine
from ...kubernetes.pod_template import read_template
from ...kubernetes.workloads import ManifestOptions, unplaced, workloads
from ...servingplan import ServingPlanResource
from ...table.shards import is_pointer
from ...table.validate import validate_content
from ...table.write import routing_content
from .files import errors_of, parse_document, read_text, warn
from .own import read_resource

KEY = "table.json"
"""Key of the operator's ConfigMap that holds the table."""


@dataclass(frozen=True)
class Options:
    """The options of the command, as written."""

    templates: tuple[str, ...]
    table: str | None
    catalogue: str | None
    namespace: str | None
    engine: str | None
    selectors: tuple[str, ...]


def run(path: str, options: Options) -> int:
    """Write the manifests to standard output, and warnings to standard error."""
    text = read_text(path)
    document = parse_document(text, path)
    content = None
    if document.get("kind") == PLAN:
        with errors_of(path):
            resource = resource_of(document)
            content = routing_content(resource.spec, parse_plan(document))
    else:
        resource = read_resource(text, path, options.catalogue)
    if options.table is not None:
        content = _content(options.table)
    if content is None:
        raise InputError(f"{path}: a ServingPlan has no islands; give its routing table by --table")
    manifest_options = _manifest_options(resource, options)
    for pool in unplaced(content, resource.spec, manifest_options):
        warn(f"pool {pool}: its nodes are unknown; set --select {pool}:LABEL=VALUE")
    try:
        documents = workloads(content, resource.spec, manifest_options)
    except PlanFileError as error:
        raise PlanFileError(f"pod template: {error}") from None
    sys.stdout.write(to_yaml_all(documents))
    return 0


def _content(path: str) -> Document:
    """Return the content of a table, or of the operator's ConfigMap with the table."""
    document = parse_document(read_text(path), path)
    with errors_of(path):
        if document.get("kind") == "ConfigMap":
            document = load_document(Node(document).field("data").field(KEY).text())
        if is_pointer(document):
            remedy = "the table is in shards; join them as docs/reference/routing-table.md shows"
            raise PlanFileError(remedy)
        content = Node(document).field("content").mapping()
        if findings := validate_content(content):
            raise PlanFileError("\n".join(findings))
    return content


def _manifest_options(resource: ServingPlanResource, options: Options) -> ManifestOptions:
    templates = {}
    for text in options.templates:
        model, _, path = text.rpartition("=")
        if model and model not in {m.name for m in resource.spec.models}:
            raise InputError(f"--pod-template {text}: the plan has no model {model!r}")
        document = parse_document(read_text(path), path)
        with errors_of(path):
            templates[model] = read_template(document)
    selectors: dict[str, dict[str, str]] = {}
    pools = {pool.name: pool for pool in resource.spec.pools}
    for text in options.selectors:
        pool, _, rest = text.partition(":")
        label, _, value = rest.partition("=")
        if not label or not value:
            raise InputError(f"--select {text}: write POOL:LABEL=VALUE")
        if pool not in pools:
            raise InputError(f"--select {text}: the plan has no pool {pool!r}")
        if pools[pool].node_selector is not None:
            raise InputError(
                f"--select {text}: the table names the nodes of pool {pool}; remove it"
            )
        selectors.setdefault(pool, {})[label] = value
    return ManifestOptions(
        plan=resource.metadata.name,
        templates=templates,
        namespace=options.namespace or resource.metadata.namespace,
        engine=None if options.engine is None else Engine(options.engine),
        selectors=selectors,
    )
