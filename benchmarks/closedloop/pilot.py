"""Who changes the table: nobody, somebody who knows everything at once, or the operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from archipelago.perfmodel.workload.lengths import LengthDistribution
from archipelago.planner.plan import Plan, Planned, running_islands
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.candidates import reshape
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.repair import repair
from archipelago.planner.replan.reroute_flip_program import best_flips, best_reroute
from archipelago.planner.replan.rollout import rollout
from archipelago.planner.replan.types import Level, Limits, RoleSwitch
from archipelago.planner.servingplan import ServingPlanSpec, load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.reweigh import Unrepairable
from archipelago.planner.table.write import routing_content
from benchmarks.closedloop.inventory import left_of, resolved, with_nodes
from benchmarks.closedloop.rollout import Rollout, Step

if TYPE_CHECKING:
    from benchmarks.closedloop.fleet import Fleet
    from benchmarks.closedloop.traffic import Traffic


class Pilot(Protocol):
    """What the loop tells, in the order in which it happens; ``fleet.now`` is the time."""

    rollout: Rollout
    sees: float
    """From a change of the nodes to the answer [s]."""

    def scrape(self, fleet: Fleet) -> None:
        """Read the pods' pages."""

    def window(self, fleet: Fleet) -> None:
        """Act on a window that has closed."""

    def shifted(self, fleet: Fleet, traffic: Traffic) -> None:
        """Act on a change of traffic; only the oracle does."""

    def nodes(self, fleet: Fleet, traffic: Traffic) -> None:
        """Act on a list of nodes that has changed, ``sees`` seconds ago."""

    def edited(self, fleet: Fleet, resource: dict[str, Any]) -> None:
        """Another spec was applied."""


class Still:
    """A plan that is never changed."""

    sees = 0.0

    def __init__(self) -> None:
        self.rollout = Rollout(0.0)

    def scrape(self, fleet: Fleet) -> None:
        """Not read."""

    def window(self, fleet: Fleet) -> None:
        """Nothing is done."""

    def shifted(self, fleet: Fleet, traffic: Traffic) -> None:
        """Nothing is done."""

    def nodes(self, fleet: Fleet, traffic: Traffic) -> None:
        """Nothing is done."""

    def edited(self, fleet: Fleet, resource: dict[str, Any]) -> None:
        """Nothing is done."""


@dataclass
class Instant:
    """Knows the true lengths and rates of what comes, at the moment at which it comes.

    Plans with the level that it is told, within the same limits, and rolls out in the same order as
    the operator. Which level serves most is found by trying all.
    """

    spec: ServingPlanSpec
    problem: PlanningProblem
    plan: Plan
    level: Level
    limits: Limits
    switch: Mapping[str, RoleSwitch]
    resource: dict[str, Any]
    drain: float = 10.0
    rollout: Rollout = field(init=False)
    sees = 0.0

    def __post_init__(self) -> None:
        """Nothing is under way."""
        self.rollout = Rollout(self.drain)
        self._names: dict[str, str] = {}

    def scrape(self, fleet: Fleet) -> None:
        """Not needed."""

    def window(self, fleet: Fleet) -> None:
        """Not needed."""

    def shifted(self, fleet: Fleet, traffic: Traffic) -> None:
        """Re-plan for what comes now."""
        self._replan(fleet, true_problem(self.problem, traffic, fleet.now))

    def nodes(self, fleet: Fleet, traffic: Traffic) -> None:
        """Repair, and re-plan for what is left."""
        left = left_by(fleet.gone, frozenset(fleet.lost()), self.plan, self.resource)
        if left is None:
            return
        self.plan, self.problem, self._names = left
        fleet.apply(self._content(self.plan))
        self._replan(fleet, true_problem(self.problem, traffic, fleet.now))

    def edited(self, fleet: Fleet, resource: dict[str, Any]) -> None:
        """Plan what is asked now, with what runs."""
        self.resource, remaining = resource, resolved(resource, left_of(resource, fleet.gone))[0]
        self.spec = load_resource(remaining).spec
        self.problem = to_problem(self.problem.name, self.spec)
        problem = replace(self.problem, running=running_islands(self.plan))
        outcome = strategy(problem.solver.strategy).plan(problem)
        if isinstance(outcome, Planned):
            self._begin(fleet, outcome.plan, problem)

    def _content(self, plan: Plan) -> dict[str, Any]:
        """Its table, with the real names of the nodes."""
        content = routing_content(self.spec, plan)
        return with_nodes(content, self._names) if self._names else content

    def _replan(self, fleet: Fleet, true: PlanningProblem) -> None:
        new = best_of(self.level, true, self.plan, self.limits, self.switch)
        if new is not None:
            self._begin(fleet, new, true)

    def _begin(self, fleet: Fleet, new: Plan, problem: PlanningProblem) -> None:
        steps = rollout(self.plan, new, problem)
        if isinstance(steps, Unrepairable):
            return
        self.plan = new
        tables = [Step(self._content(s.plan), str(s.wait), s.islands) for s in steps]
        self.rollout.begin(tables, fleet.now)


def left_by(
    gone: Collection[str], lost: frozenset[str], plan: Plan, resource: Mapping[str, Any]
) -> tuple[Plan, PlanningProblem, dict[str, str]] | None:
    """Return the repaired plan, the problem of the nodes left, and real names by the planner's.

    ``gone``: nodes; ``lost``: islands on them. None if no plan is left.
    """
    fixed = repair(plan, lost)
    if isinstance(fixed, Unrepairable):
        return None
    remaining, names = resolved(resource, left_of(resource, gone))
    problem = to_problem(resource["metadata"]["name"], load_resource(remaining).spec)
    planners = {real: name for name, real in names.items()}
    islands = (replace(i, nodes=tuple(planners[n] for n in i.nodes)) for i in fixed.islands)
    return replace(fixed, islands=tuple(islands)), problem, names


def best_of(
    level: Level,
    problem: PlanningProblem,
    plan: Plan,
    limits: Limits,
    switch: Mapping[str, RoleSwitch],
) -> Plan | None:
    """Return the best table that a level gives; None where it gives none."""
    if level is Level.KEEP:
        return None
    if level is Level.RESHAPE:
        return reshape(problem, plan, limits, switch)
    standing = deployed_islands(problem, plan, switch)
    if level is Level.REROUTE:
        return best_reroute(standing)
    return best_flips(standing, limits.flips)


def true_problem(problem: PlanningProblem, traffic: Traffic, at: float) -> PlanningProblem:
    """Return the problem with the lengths and rates that traffic really has at a time."""
    spells = traffic.offered(at)
    models = tuple(
        replace(
            model,
            lengths=_mixed([(spell.rate, spell.mix.lengths) for spell in spells[model.name]]),
            rate=sum(spell.rate for spell in spells[model.name]),
        )
        if model.name in spells
        else replace(model, rate=model.rate or 1.0)
        for model in problem.models
    )
    return replace(problem, models=models, min_headroom=None, minimise_cost=False)


def _mixed(parts: list[tuple[float, LengthDistribution]]) -> LengthDistribution:
    """Lengths of several spells together, by their rates."""
    if len(parts) == 1:
        return parts[0][1]
    raise NotImplementedError("spells of one model that overlap")


def switches(spec: Any) -> dict[str, RoleSwitch]:  # noqa: ANN401  # a spec of either age
    """By model, how its engine changes phase."""
    names = {model.name: getattr(model, "engine", None) for model in spec.models}
    return {
        name: RoleSwitch(str(getattr(engine, "role_switch", "Restart")).lower())
        for name, engine in names.items()
    }
