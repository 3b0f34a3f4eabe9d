"""ServingPlan: from a file or the API server to a PlanningProblem.

``schema`` and ``workload`` define the resource, ``rules`` what must hold between its fields,
``load`` reads it, ``explain`` says what is wrong, ``resolve`` turns it into a problem.
"""

from archipelago.planner.spec.load import load_resource
from archipelago.planner.spec.resolve import to_problem
from archipelago.planner.spec.schema import (
    API_VERSION,
    KIND,
    Domain,
    Model,
    Pool,
    ServingPlanResource,
    ServingPlanSpec,
)
from archipelago.planner.spec.workload import Bin, Workload

__all__ = [
    "API_VERSION",
    "KIND",
    "Bin",
    "Domain",
    "Model",
    "Pool",
    "ServingPlanResource",
    "ServingPlanSpec",
    "Workload",
    "load_resource",
    "to_problem",
]
