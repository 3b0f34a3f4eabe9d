"""Read a ServingPlan from text or a mapping, or refuse it with all errors and their remedies.

The API server refuses the same resources; the manifests under ``tests/manifests`` are run against
both.

If the CRD was upgraded before the operator, objects have fields that this version lacks. As the
API conventions of Kubernetes require of a client, they are ignored, stay in the object, and are
named in the status as fields without effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import yaml
from pydantic import ValidationError

from ..documents import MISFITS, listed
from ..errors import SpecError
from .errors import explain, line_of, path_of
from .rule import Location, broken_rules
from .schema import ServingPlanResource, ServingPlanSpec

MOST_NAMED: Final = 10


def prune_unknown_fields(resource: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the resource without unknown fields, and the sorted paths of these fields."""
    try:
        ServingPlanResource.model_validate(resource)
    except ValidationError as error:
        unknown = [d["loc"] for d in error.errors() if d["type"] == "extra_forbidden"]
    else:
        unknown = []
    pruned = copy.deepcopy(resource) if unknown else resource
    for location in unknown:
        holder: Any = pruned
        for step in location[:-1]:
            holder = holder[step]
        del holder[location[-1]]
    return pruned, tuple(sorted(path_of(location) for location in unknown))


def fitting_fields(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a spec that fit their schema; unknown fields do not matter.

    Rules between fields and names in the catalogues are not checked.
    """
    try:
        ServingPlanSpec.model_validate(spec)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return spec
    wrong = {detail["loc"][0] for detail in details if detail["type"] != "extra_forbidden"}
    return {name: value for name, value in spec.items() if name not in wrong}


def remark(paths: tuple[str, ...]) -> str:
    """Return a clause for a message; empty if no field was ignored."""
    if not paths:
        return ""
    names = listed(paths, MOST_NAMED)
    return f"; without effect, unknown to this version of the operator: {names}"


MAX_TEXT = 1_048_576
"""Longest text that is parsed [characters]; the largest valid ServingPlan is below 256 KiB."""


def load_resource(
    source: str | Mapping[str, Any],
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> ServingPlanResource:
    """Read a ServingPlan from YAML or JSON text, or from a mapping as the API server sends it.

    Args:
        source: The text or the mapping.
        change: What is done to the mapping before it is checked.

    Raises:
        SpecError: it breaks at least one rule; lists every one with field path and remedy.
    """
    body = _parse(source) if isinstance(source, str) else source
    if not isinstance(body, Mapping):
        remedy = "write a ServingPlan: a mapping with apiVersion, kind, metadata and spec"
        raise SpecError([("(file)", remedy)])
    text = source if isinstance(source, str) else ""
    body = change(body) if change else body
    stated = {key: value for key, value in body.items() if key != "status"}
    problems: list[tuple[Location, str]] = []
    try:
        resource = ServingPlanResource.model_validate(stated)
        problems += broken_rules(resource.spec, ("spec",))
    except ValidationError as error:
        problems += (
            (detail["loc"], explain(detail, text))
            for detail in error.errors(include_url=False)
            # A list may be too short only because its items are wrong.
            if detail["type"] != "too_short" or len(detail["input"]) < detail["ctx"]["min_length"]
        )
    if problems:
        raise SpecError(
            [(path_of(place), remedy + line_of(place, text)) for place, remedy in problems]
        )
    return resource


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without duplicate keys, of which kubectl silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping, or raise at a duplicate key."""
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in keys:
                problem = f"the key {key.value!r} occurs twice in one mapping: remove one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(text: str) -> object:
    if len(text) > MAX_TEXT:
        remedy = f"the text has {len(text)} characters, at most {MAX_TEXT} are read: shorten it"
        raise SpecError([("(file)", remedy)])
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506  # nosec B506  # it derives from SafeLoader
    except yaml.MarkedYAMLError as error:
        mark, what = error.problem_mark, error.problem or error.context
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        remedy = f"not readable as YAML{place}: {what}"
        if "single document" in str(error.context):
            remedy = "holds several YAML documents: give one ServingPlan per file"
    except RecursionError:
        remedy = "nested too deeply to be a ServingPlan"
    except (yaml.YAMLError, *MISFITS) as error:
        remedy = f"not readable as YAML: {' '.join(str(error).split())}"
    raise SpecError([("(file)", remedy)])
