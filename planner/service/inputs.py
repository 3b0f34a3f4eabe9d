"""A re-planning request with everything that it refers to: spec, problem, plan, limits.

A process gets requests about the same plans again and again, so problems and plans read from equal
texts are cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from archipelago.perfmodel.calibration.corrections import Calibration
from archipelago.perfmodel.errors import PerfModelError

from ..demand.problem import unconstrained
from ..errors import CalibrationError, InputError
from ..formats.calibrations import FIELD, calibrated, parse_calibration_file
from ..plan import Plan
from ..problem import PlanningProblem
from ..replan.types import Limits, Mode, RoleSwitch, Trigger
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

    ``goal``: the plan to go back to, if that is requested.

    ``problem``: without constraints that were stated for the planned demand.
    """

    request: ReplanRequest
    spec: ServingPlanSpec
    problem: PlanningProblem
    plan: Plan
    limits: Limits
    switch: Mapping[str, RoleSwitch]
    goal: Plan | None = None

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
        CalibrationError: the given calibration cannot be used, and nothing is lost.
    """
    spec, problem = read_resource(request.resource)
    try:
        problem = with_calibration(problem, spec, request.calibration)
    except CalibrationError:
        if not request.lost:  # a repair is arithmetic on the table
            raise
    nodes, text = json.dumps(request.nodes), json.dumps(request.resource, sort_keys=True)
    # A repair does not wait for a plan: it also takes the table of an older spec.
    repairs = request.lost or request.goal or (request.unready and request.window is None)
    plan = _plan(request.content, nodes, text, of_it=not repairs)
    limits, switch = _limited(limits_of(spec), request), role_switches(spec)
    goal = None if request.goal is None else _plan(request.goal, nodes, text, of_it=False)
    return ReplanInput(request, spec, unconstrained(problem), plan, limits, switch, goal)


def with_calibration(problem: PlanningProblem, spec: ServingPlanSpec, text: str) -> PlanningProblem:
    """Return the problem with the calibrations of the file that the spec names, if there is one.

    Raises:
        CalibrationError: the text is no such file, or of no pool and model of the problem.
    """
    if not text:
        return problem
    source = spec.calibration
    path = f"ConfigMap {source.config_map}, key {source.key}" if source else FIELD
    return replace(problem, calibrations=_calibrations(text, path, problem))


def base_of(calibration: str, problem: PlanningProblem) -> str:
    """Return the digest of what is learnt over: a given calibration and stated engines.

    Empty if there is neither: factors on the times of other settings say nothing of these.
    """
    engines = [
        f"{model.architecture.name} {model.architecture.precision.kv} {model.settings}"
        for model in problem.models
        if model.stated or model.started
    ]
    text = "\n".join([calibration, *sorted(engines)])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


@lru_cache(maxsize=CACHED)
def _calibrations(text: str, path: str, problem: PlanningProblem) -> tuple[Calibration, ...]:
    try:
        return calibrated(problem, (parse_calibration_file(text, path, problem),)).calibrations
    except (InputError, PerfModelError) as error:
        raise CalibrationError(str(error)) from None


def limits_of(spec: ServingPlanSpec) -> Limits:
    """Return ``spec.replanning`` as limits of the policy.

    Under ``MinimiseCost`` the target is the plan's own, ``minHeadroom``: more is worth nothing.
    """
    replanning = spec.replanning
    cheapest = spec.objective == "MinimiseCost"
    return Limits(
        mode=Mode(replanning.mode),
        carried=spec.islands.carried,
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


def _limited(limits: Limits, request: ReplanRequest) -> Limits:
    """Return the limits as budgets and annotations narrow them.

    If some islands may change, no more of them flip; if none may, flips are looked for all the
    same, so that the decision can say what is held back.
    """
    allowed = {name: (each.islands, each.message) for name, each in request.allowed.items()}
    most = max((islands for islands, _ in allowed.values()), default=0)
    every = allowed.keys() >= {Trigger.SAFETY, Trigger.GAIN}
    flips = min(limits.flips, most) if every and most else limits.flips
    return replace(limits, pinned=frozenset(request.pinned), allowed=allowed, flips=flips)


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
