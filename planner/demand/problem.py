"""Observed demand as a planning problem, and what may be true instead as draws of its rates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.planner.livedemand.demand import Believed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.livedemand.demand import Observed
    from archipelago.planner.problem import ModelDemand, PlanningProblem

PRIOR: Final = 0.5
"""Requests that a window without any stands for (Jeffreys' prior of a Poisson rate)."""


def believed(model: ModelDemand, rates: FloatArray | None) -> Believed:
    """What is held true of a model before a window.

    ``rates``: of the last window that missed nothing; without one what the spec states, if it does.
    """
    if rates is None and model.rate is not None:
        shares = model.lengths.moments(model.ranges).probability
        rates = model.rate * np.append(shares, max(0.0, 1.0 - float(shares.sum())))
    return Believed(model.lengths, model.ranges, rates)


def observed_problem(
    problem: PlanningProblem, seen: Mapping[str, Observed], seconds: float
) -> PlanningProblem:
    """The problem with the lengths and rates of a window of so many seconds.

    What was asked of the plan for its stated demand is left out: a least headroom and a least share
    of requests with a route are broken by the demand, not by a table, and would refuse every table
    alike. Cost is that of the islands that stand.
    """
    models = tuple(
        replace(
            model,
            lengths=seen[model.name].lengths,
            rate=max(seen[model.name].rate, PRIOR / seconds),
        )
        for model in problem.models
    )
    return bare(replace(problem, models=models))


def known_problem(
    problem: PlanningProblem, rates: Mapping[str, FloatArray]
) -> PlanningProblem | None:
    """The problem with the rates seen last, else stated; None where a model has neither."""
    models = []
    for model in problem.models:
        last = rates.get(model.name)
        rate = model.rate if last is None else float(last.sum())
        if not rate:
            return None
        models.append(replace(model, rate=rate))
    return bare(replace(problem, models=tuple(models)))


def planned_problem(problem: PlanningProblem) -> PlanningProblem:
    """The problem with the rates that were planned for; where none are stated, their proportions.

    Theta is then no headroom, but more of it is better all the same.
    """
    models = (replace(model, rate=problem.weight(model)) for model in problem.models)
    return bare(replace(problem, models=tuple(models)))


def bare(problem: PlanningProblem) -> PlanningProblem:
    """The problem without what was asked of the plan for its stated demand."""
    solver = replace(problem.solver, strategy="exact")
    return replace(
        problem, min_headroom=None, max_unservable=1.0, minimise_cost=False, solver=solver
    )


def rate_draws(problem: PlanningProblem, seen: Mapping[str, Observed]) -> FloatArray:
    """Draws of the rates of all models' ranges by the models' names [req/s].

    Requests beyond the last range have no column: no weight and no island changes anything there.
    """
    names = sorted(model.name for model in problem.models)
    return np.hstack([seen[name].rate_draws[:, :-1] for name in names])
