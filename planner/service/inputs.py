"""A re-planning request with everything that it refers to: spec, problem, plan, limits.

A process gets requests about the same plans again and again, so problems and plans read from equal
texts are cached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ..demand.problem import unconstrained
from ..plan import Plan
from ..problem import PlanningProblem
from ..replan.types import Limits, Mode, RoleSwitch
from ..servingplan import ServingPlanSpec, load_resource, to_problem
from ..servingplan.load import prune_unknown_fields
from ..table.plan_of_table import plan_of
from ..table.rename import to_generic
from .messages import ReplanRequest

CACHED: Final = 8
"""Problems and plans that a process keeps: a table of 1,000 islands is about 10 MB as objects."""


@dataclass(frozen=True, eq=False)
class ReplanInput:
    """A request with its spec, problem and published plan; ``plan`` has the planner's node names.

    ``problem``: without constraints that were stated for the planned demand.
    """

    request: ReplanRequest
    spec: ServingPlanSpec
    problem: PlanningProblem
    plan: Plan
    limits: Limits
    switch: Mapping[str, RoleSwitch]

    @property
    def lost(self) -> frozenset[str]:
        """Islands on nodes that are gone."""
        return frozenset(self.request.lost)

    @property
    def unready(self) -> frozenset[str]:
        """Islands whose pods are not ready."""
        return frozenset(self.request.unready)


def read_request(request: ReplanRequest) -> ReplanInput:
    """Read resource and table of a request.

    Raises:
        SpecError: the resource breaks a rule.
        PlanFileError: the content is no table, or one of another spec.
    """
    spec, problem = read_resource(request.resource)
    nodes, text = json.dumps(request.nodes), json.dumps(request.resource, sort_keys=True)
    # A repair does not wait for a plan: it also takes the table of an older spec.
    plan = _plan(request.content, nodes, text, of_it=not request.lost)
    limits, switch = limits_of(spec), role_switches(spec)
    return ReplanInput(request, spec, unconstrained(problem), plan, limits, switch)


def limits_of(spec: ServingPlanSpec) -> Limits:
    """Return ``spec.replanning`` as limits of the policy.

    Under ``MinimiseCost`` the target is the plan's own, ``minHeadroom``: more is worth nothing.
    """
    replanning = spec.replanning
    cheapest = spec.objective == "MinimiseCost"
    return Limits(
        mode=Mode(replanning.mode),
        target=float(replanning.target_utilisation),
        required=float(spec.min_headroom or 1) if cheapest else None,
        tolerance=replanning.tolerance_percent / 100,
        windows=(replanning.windows.needed, replanning.windows.of),
        horizon=float(replanning.horizon_seconds),
        cool_down=float(replanning.cool_down_seconds),
        dwell=float(replanning.dwell_seconds),
        per_hour=replanning.max_per_hour,
        flips=replanning.max_flips,
        moved_gpus=replanning.max_moved_gpus,
    )


def role_switches(spec: ServingPlanSpec) -> dict[str, RoleSwitch]:
    """Return how each model's engine changes phase."""
    return {model.name: RoleSwitch(model.engine.role_switch.lower()) for model in spec.models}


def read_resource(resource: Mapping[str, Any]) -> tuple[ServingPlanSpec, PlanningProblem]:
    """Return the spec of a resource, and its problem.

    Raises:
        SpecError: it breaks a rule.
    """
    return _problem(json.dumps(resource, sort_keys=True))


@lru_cache(maxsize=CACHED)
def _problem(resource: str) -> tuple[ServingPlanSpec, PlanningProblem]:
    fields, _ = prune_unknown_fields(json.loads(resource))
    loaded = load_resource(fields)
    return loaded.spec, to_problem(loaded.metadata.name, loaded.spec)


@lru_cache(maxsize=CACHED)
def _plan(content: str, nodes: str, resource: str, *, of_it: bool) -> Plan:
    """Return the plan of a table; nodes have the planner's names, those of other plans theirs."""
    table = to_generic(json.loads(content), json.loads(nodes))
    return plan_of(table, unconstrained(_problem(resource)[1]), of_it=of_it)
