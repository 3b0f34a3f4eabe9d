"""One window from observation to decision: what the operator calls.

decision = replan(seen, state, now, limits)          # keep, reroute, flip: milliseconds
if decision.wanted is Rung.REROUTE: replan again at once with the repaired table
if decision.wanted is Rung.RESHAPE: reshape.reshaped elsewhere, then replan(..., planned=...)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archipelago.planner.replan.decide import decide
from archipelago.planner.replan.standing import stand
from archipelago.planner.replan.weigh import weigh, weigh_bound, weigh_planned, with_planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.plan import Plan
    from archipelago.planner.replan.facts import (
        Decision,
        Limits,
        Observation,
        RoleSwitch,
        State,
    )
    from archipelago.planner.template import Template


@dataclass(frozen=True, eq=False)
class Help:
    """What is known beside the window.

    ``switch``: by model, how its engine changes phase. ``bound``: proven on the headroom of any
    plan for this demand (``reshape.bound_of``). ``planned``: the planner's answer; ``asked`` says
    that there is one, also where it found nothing. ``templates``: of the standing bodies under this
    demand, where they are at hand.
    """

    switch: Mapping[str, RoleSwitch] = field(default_factory=dict)
    bound: float | None = None
    planned: Plan | None = None
    asked: bool = False
    templates: tuple[Template, ...] | None = None


ALONE = Help()


def replan(
    seen: Observation, state: State, now: float, limits: Limits, known: Help = ALONE
) -> Decision:
    """Weigh the rungs where that makes sense, and decide."""
    lost = seen.lost & {island.name for island in seen.plan.islands}
    if seen.nodes_trusted and seen.demand_trusted and not lost:
        seen = weighed(seen, limits, known)
    return decide(seen, state, now, limits)


def weighed(seen: Observation, limits: Limits, known: Help = ALONE) -> Observation:
    """The observation with what every rung would reach."""
    standing = stand(seen.problem, seen.plan, known.switch, known.templates)
    rungs = weigh(standing, limits, seen.draws, known.switch)
    if known.asked or known.planned is not None:
        planned = weigh_planned(standing, known.planned, limits, seen.draws, switch=known.switch)
        rungs = with_planned(rungs, planned)
    elif known.bound is not None:
        rungs = (*rungs, weigh_bound(standing, known.bound))
    return replace(seen, rungs=rungs)
