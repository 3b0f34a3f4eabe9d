"""The live question, read: what is published, what was observed, what is remembered.

In planner processes only. A process is asked about the same plans again and again, so that problems
and plans read from equal texts are kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.nodenames import to_generic
from archipelago.operator.unknown import without_unknown
from archipelago.operator.windowdoc import window_islands, window_models
from archipelago.planner.published import plan_of
from archipelago.planner.replan.facts import Limits, Mode, RoleSwitch
from archipelago.planner.replan.observed import bare
from archipelago.planner.spec import load_resource, to_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.islandtimes import IslandTimes
    from archipelago.operator.scraped import Scraped
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.spec import ServingPlanSpec

KEPT: Final = 8
"""Problems and plans of so many texts: a table of 1,000 islands is about 10 MB as objects."""
PERCENT: Final = 100


@dataclass(frozen=True, eq=False)
class Question:
    """One live question. ``plan`` has the planner's names of nodes. ``age``: of the memory [s].

    ``islands``: by model and value of the island's label, what each took in the window.
    """

    spec: ServingPlanSpec
    problem: PlanningProblem
    plan: Plan
    nodes: Mapping[str, str]
    lost: frozenset[str]
    unready: frozenset[str]
    window: Mapping[str, Scraped] | None
    memory: Mapping[str, Any]
    age: float
    solve: bool
    approved: str | None
    inputs: str
    seed: int
    limits: Limits
    switch: Mapping[str, RoleSwitch]
    islands: Mapping[str, Mapping[str, IslandTimes]] = field(default_factory=dict)


def question_of(request: Mapping[str, Any]) -> Question:
    """Read a request.

    Raises:
        SpecError: the resource breaks a rule.
        PlanFileError: the content is none, or one of another spec.
    """
    text, nodes = _text(request["resource"]), request["nodes"]
    spec, problem = resource_of(request["resource"])
    problem = bare(problem)
    window = request["window"]
    return Question(
        spec=spec,
        problem=problem,
        plan=_plan(
            _generic(_content(request["content"]), json.dumps(nodes)),
            text,
            of_it=not request["lost"],
        ),
        nodes=nodes,
        lost=frozenset(request["lost"]),
        unready=frozenset(request["unready"]),
        window=None if window is None else window_models(window),
        memory=request["memory"],
        age=float(request["age"]),
        solve=request["solve"],
        approved=request["approved"],
        inputs=request["inputs"],
        seed=request["seed"],
        limits=limits_of(spec),
        switch=switch_of(spec),
        islands={} if window is None else window_islands(window),
    )


def limits_of(spec: ServingPlanSpec) -> Limits:
    """``spec.replanning`` as the decision takes it.

    Under ``MinimiseCost`` headroom beyond what was asked for is worth nothing and may cost dollars,
    so that nobody restarts for more of it.
    """
    given, usual = spec.replanning, Limits()
    return Limits(
        mode=Mode(given.mode),
        target=float(given.target_utilisation),
        ample=0.0 if spec.objective == "MinimiseCost" else usual.ample,
        tolerance=given.tolerance_percent / PERCENT,
        windows=(given.windows.needed, given.windows.of),
        horizon=float(given.horizon_seconds),
        cool_down=float(given.cool_down_seconds),
        dwell=float(given.dwell_seconds),
        per_hour=given.max_per_hour,
        flips=given.max_flips,
        moved_gpus=given.max_moved_gpus,
    )


def switch_of(spec: ServingPlanSpec) -> dict[str, RoleSwitch]:
    """By model, how its engine changes phase."""
    return {model.name: RoleSwitch(model.engine.role_switch.lower()) for model in spec.models}


def resource_of(resource: Mapping[str, Any]) -> tuple[ServingPlanSpec, PlanningProblem]:
    """The spec of a resource, and the problem that it states.

    Raises:
        SpecError: it breaks a rule.
    """
    return _problem(_text(resource))


def _text(resource: Mapping[str, Any]) -> str:
    return json.dumps(resource, sort_keys=True)


@lru_cache(maxsize=KEPT)
def _problem(resource: str) -> tuple[ServingPlanSpec, PlanningProblem]:
    known, _ = without_unknown(json.loads(resource))
    loaded = load_resource(known)
    return loaded.spec, to_problem(loaded.metadata.name, loaded.spec)


@lru_cache(maxsize=KEPT)
def _plan(content: str, resource: str, *, of_it: bool) -> Plan:
    """A repair is made of the table of an older spec as well: it does not wait for a plan."""
    return plan_of(json.loads(content), bare(_problem(resource)[1]), of_it=of_it)


def _content(content: str | Mapping[str, Any]) -> str:
    return content if isinstance(content, str) else json.dumps(content)


@lru_cache(maxsize=KEPT)
def _generic(content: str, nodes: str) -> str:
    """The content with the planner's names of nodes; those that are not the plan's keep theirs."""
    names = json.loads(nodes)
    return json.dumps(to_generic(json.loads(content), names).content) if names else content
