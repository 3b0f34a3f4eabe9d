"""Fields of a newer definition than ours: left out of the planning, and named.

Where the definition was upgraded before the operator, the API server lets fields pass, and adds
defaults, that we do not know. As Kubernetes' API conventions ask of a client, they are ignored and
stay in the object; that they had no effect is said.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_NAMED: Final = 10


def without_unknown(resource: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The resource without fields that our models lack, and the paths of those fields, sorted."""
    from pydantic import ValidationError  # noqa: PLC0415  # after the memory limit is set

    from archipelago.planner.spec.explain import path_of  # noqa: PLC0415
    from archipelago.planner.spec.schema import ServingPlanResource  # noqa: PLC0415

    try:
        ServingPlanResource.model_validate(resource)
    except ValidationError as error:
        unknown = [d["loc"] for d in error.errors() if d["type"] == "extra_forbidden"]
    else:
        unknown = []
    known = copy.deepcopy(resource) if unknown else resource
    for location in unknown:
        holder: Any = known
        for step in location[:-1]:
            holder = holder[step]
        del holder[location[-1]]
    return known, tuple(sorted(path_of(location) for location in unknown))


def remark(paths: tuple[str, ...]) -> str:
    """What to add to a message; empty where nothing was ignored."""
    if not paths:
        return ""
    more = len(paths) - MOST_NAMED
    named = ", ".join(paths[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"; without effect, unknown to this version of the operator: {named}"
