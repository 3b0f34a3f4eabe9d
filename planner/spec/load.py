"""From the text of a ServingPlan to its frozen form, or to every mistake with its remedy.

What is refused here is refused by the API server too, and the other way round; the manifests under
``tests/manifests`` are run against both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from archipelago.planner.errors import SpecError
from archipelago.planner.reader import MISFITS
from archipelago.planner.spec.explain import explain, line_of, path_of
from archipelago.planner.spec.rules import broken_rules
from archipelago.planner.spec.schema import ServingPlanResource

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from pydantic_core import ErrorDetails

    from archipelago.planner.spec.rules import Location

MAX_TEXT = 1_048_576
"""Longest text that is parsed [characters]; the largest valid ServingPlan is below 256 KiB."""


def load_resource(source: str | Mapping[str, Any]) -> ServingPlanResource:
    """Read a ServingPlan from YAML or JSON text, or from a mapping as the API server sends it.

    Raises:
        SpecError: it breaks at least one rule; lists every one with field path and remedy.
    """
    body = _parse(source) if isinstance(source, str) else source
    if not isinstance(body, Mapping):
        remedy = "write a ServingPlan: a mapping with apiVersion, kind, metadata and spec"
        raise SpecError([("(file)", remedy)])
    text = source if isinstance(source, str) else ""
    try:
        resource = ServingPlanResource.model_validate(_without_status(body))
    except ValidationError as error:
        details = [d for d in error.errors(include_url=False) if not _follows_from_items(d)]
        raise _error([(d["loc"], explain(d, text)) for d in details], text) from None
    if problems := [*_repeated_names(resource), *broken_rules(resource.spec, ("spec",))]:
        raise _error(problems, text)
    return resource


def _error(problems: list[tuple[Location, str]], text: str) -> SpecError:
    return SpecError(
        [(path_of(place), remedy + line_of(place, text)) for place, remedy in problems]
    )


def _without_status(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "status"}


def _follows_from_items(detail: ErrorDetails) -> bool:
    """Whether a list is called too short only because its items are wrong."""
    return detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a key may stand only once; kubectl silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build the mapping, or raise at the second key of one name."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice in one mapping: keep one of them"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse(text: str) -> object:
    if len(text) > MAX_TEXT:
        remedy = f"the text has {len(text)} characters, at most {MAX_TEXT} are read: shorten it"
        raise SpecError([("(file)", remedy)])
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506  # nosec B506  # it derives from SafeLoader
    except yaml.YAMLError as error:
        raise SpecError([("(file)", _unreadable(error))]) from None
    except RecursionError:
        raise SpecError([("(file)", "nested too deeply to be a ServingPlan")]) from None
    except MISFITS as error:
        raise SpecError([("(file)", f"not readable as YAML: {error}")]) from None


def _unreadable(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.composer.ComposerError) and "single document" in str(error.context):
        return "holds several YAML documents: give one ServingPlan per file"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}"
        return f"not readable as YAML, {where}: {error.problem or error.context}"
    return f"not readable as YAML: {' '.join(str(error).split())}"


def _repeated_names(resource: ServingPlanResource) -> Iterator[tuple[Location, str]]:
    """Names that stand twice in a list that is keyed by name (the API server's list-type map)."""
    spec = resource.spec
    named: dict[Location, list[str]] = {("spec", "models"): [m.name for m in spec.models]}
    named["spec", "pools"] = [pool.name for pool in spec.pools]
    for index, pool in enumerate(spec.pools):
        named["spec", "pools", index, "domains"] = [domain.name for domain in pool.domains]
    if spec.network is not None:
        named["spec", "network", "links"] = [link.name for link in spec.network.links]
    named["spec", "pipelines"] = [pipeline.name for pipeline in spec.pipelines]
    for place, names in named.items():
        for index, name in enumerate(names):
            if name in names[:index]:
                yield (*place, index, "name"), f"Duplicate value {name!r}: give it another name"
