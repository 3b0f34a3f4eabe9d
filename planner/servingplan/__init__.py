"""ServingPlan: from a file or the API server to a PlanningProblem.

``schema`` defines the resource with its parts in ``models``, ``workload``, ``pools``, ``network``
and ``replanning``; ``rules`` says what a rule between fields is, ``poolrules`` has those of a pool,
``between`` those between the parts, ``offline`` what only this side can check;
``load`` reads it, ``explain`` says what is wrong, ``resolve`` turns it into a problem.
"""

from archipelago.planner.spec.load import load_resource
from archipelago.planner.spec.models import Model
from archipelago.planner.spec.network import Link, Network, Pipeline
from archipelago.planner.spec.pools import Domain, Pool
from archipelago.planner.spec.resolve import to_problem
from archipelago.planner.spec.schema import (
    API_VERSION,
    KIND,
    ServingPlanResource,
    ServingPlanSpec,
)
from archipelago.planner.spec.workload import Bin, Workload

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
