"""Infeasible as an answer: what stands in the way, and the smallest change that would help.

Every relaxation is found by solving the changed problem itself, one kind at a time: a latency
target, GPUs of one pool, the budget, the stated rates. Kinds that do not help are not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.plan import Infeasible, InfeasibleReason, Unservable
from archipelago.planner.problem import STAGES, ModelDemand, Phase, PlanningProblem
from archipelago.planner.program import served_ranges
from archipelago.planner.relax import lost_too_much, relaxations

if TYPE_CHECKING:
    from archipelago.planner.deadline import Deadline
    from archipelago.planner.templates import Catalogue


def unservable(problem: PlanningProblem, catalogue: Catalogue) -> tuple[Unservable, ...]:
    """Per model the share of requests that no template can hold, where it is not zero."""
    found = []
    for model in sorted(problem.models, key=lambda m: m.name):
        served = served_ranges(catalogue.templates, model.name, len(model.ranges), problem.links)
        probability = model.lengths.moments(model.ranges).probability
        share = max(0.0, 1.0 - float(probability[served].sum()))
        if not served.all() or share > 1e-12:  # noqa: PLR2004  # rounding of a sum of shares
            lost = np.flatnonzero(~served)
            above = model.ranges[lost[0]].min if len(lost) else model.ranges[-1].max
            found.append(Unservable(model.name, share, above))
    return tuple(found)


def blocked(
    problem: PlanningProblem,
    catalogue: Catalogue,
    missing: tuple[Unservable, ...],
    deadline: Deadline,
) -> Infeasible | None:
    """The answer where some model cannot be served at all, or not enough of it."""
    too_much = [item for item in missing if lost_too_much(item.share, problem.max_unservable)]
    if not too_much:
        return None
    models = {model.name: model for model in problem.models}
    worst = max(too_much, key=lambda item: item.share)
    text, reason = _what_is_missing(models[worst.model], catalogue, worst, problem.max_unservable)
    return _answer(problem, catalogue, reason, text, deadline)


def no_room(problem: PlanningProblem, catalogue: Catalogue, deadline: Deadline) -> Infeasible:
    """The answer where templates exist but no set of islands serves every model and phase."""
    budget = problem.budget_per_hour
    limit = "the pools" if budget is None else f"the pools and ${budget}/h"
    text = f"{limit} have no room for one prefill and one decode island of every model"
    return _answer(problem, catalogue, InfeasibleReason.NO_ROOM, text, deadline)


def too_little(
    problem: PlanningProblem,
    catalogue: Catalogue,
    theta: float,
    bound: float,
    deadline: Deadline,
) -> Infeasible:
    """The answer where the best plan has less headroom than asked."""
    text = (
        f"the best plan reaches headroom {theta:.4g} (at most {bound:.4g}), "
        f"less than minHeadroom {problem.min_headroom:g}"
    )
    return _answer(problem, catalogue, InfeasibleReason.HEADROOM, text, deadline)


def unreached(problem: PlanningProblem, catalogue: Catalogue, deadline: Deadline) -> Infeasible:
    """The answer where no plan has the headroom asked for; how much is possible is not known."""
    text = f"no plan reaches minHeadroom {problem.min_headroom:g}"
    return _answer(problem, catalogue, InfeasibleReason.HEADROOM, text, deadline)


def _answer(
    problem: PlanningProblem,
    catalogue: Catalogue,
    reason: InfeasibleReason,
    text: str,
    deadline: Deadline,
) -> Infeasible:
    offers = relaxations(problem, deadline)
    advice = "; it would fit with " + ", or ".join(o.text for o in offers) if offers else ""
    return Infeasible(reason, text + advice, offers, catalogue.exclusions)


def _what_is_missing(
    model: ModelDemand, catalogue: Catalogue, worst: Unservable, allowed: float
) -> tuple[str, InfeasibleReason]:
    mine = [t for t in catalogue.templates if t.model == model.name]
    for stage in STAGES:
        if not any(stage in t.phase.stages for t in mine):
            text = f"no island can serve {stage} of {model.name}"
            return f"{text}; {_nearest(catalogue, model, stage)}", InfeasibleReason.NO_TEMPLATE
    text = (
        f"{worst.share:.3%} of the requests of {model.name} (inputs from {worst.above} tokens) "
        f"fit no island, more than maxUnservable {allowed:.3%}"
    )
    return text, InfeasibleReason.UNSERVABLE


def _nearest(catalogue: Catalogue, model: ModelDemand, stage: Phase) -> str:
    able = [phase for phase in model.phases if stage in phase.stages]
    found = (catalogue.nearest.get((model.name, phase)) for phase in able)
    nearest = next((exclusion for exclusion in found if exclusion is not None), None)
    if nearest is None:
        return "no pool has an island size for it"
    return f"the nearest is {nearest.template}: {nearest.reason}"
