"""The ServingPlan: from a file or the API server to a PlanningProblem.

Import: ``load_resource``, ``to_problem`` and the models of the resource.
Never: plan, or read a cluster; a reader returns a value or raises errors with place and remedy.

``schema`` defines the resource, with its parts in ``models``, ``engine``, ``workload``, ``pools``,
``own`` and ``replanning``; ``rule`` defines rules between fields, which are checked here and by the
API server; ``load`` reads it, ``errors`` explains errors, ``resolve`` makes the problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .load import load_resource
from .models import Model
from .pools import Domain, Link, Network, Pipeline, Pool
from .schema import API_VERSION, KIND, ServingPlanResource, ServingPlanSpec
from .workload import Bin, Workload

if TYPE_CHECKING:
    from .resolve import to_problem

__all__ = [
    "API_VERSION",
    "KIND",
    "Bin",
    "Domain",
    "Link",
    "Model",
    "Network",
    "Pipeline",
    "Pool",
    "ServingPlanResource",
    "ServingPlanSpec",
    "Workload",
    "load_resource",
    "to_problem",
]


def __getattr__(name: str) -> object:
    """Import ``to_problem`` when it is used: the operator reads plans without it, and numpy."""
    if name != "to_problem":
        raise AttributeError(name)
    from .resolve import to_problem  # noqa: PLC0415

    return to_problem
