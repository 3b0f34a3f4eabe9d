"""Turn observed demand into a planning problem, and its posterior into draws of rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from .estimate import ObservedDemand, Prior

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..problem import ModelDemand, PlanningProblem


PRIOR: Final = 0.5
"""Requests assumed for an empty window (Jeffreys' prior of a Poisson rate)."""
NOTHING: Final = 1e-9
"""Share of the expected rate below which a draw has no mix of its own."""


def prior_of(model: ModelDemand, rates: FloatArray | None) -> Prior:
    """Return the prior demand of a model.

    ``rates``: of the last complete window; None: those of the spec, if it states any.
    """
    if rates is None and model.rate is not None:
        shares = model.lengths.moments(model.ranges).probability
        rates = model.rate * np.append(shares, max(0.0, 1.0 - float(shares.sum())))
    return Prior(model.lengths, model.ranges, rates)


def observed_problem(
    problem: PlanningProblem, demands: Mapping[str, ObservedDemand], seconds: float
) -> PlanningProblem:
    """Return the problem with the lengths and rates of a window of so many seconds.

    It has no minimum headroom and no minimum share of routed requests: the observed demand may
    break them for every table alike.
    """
    models = tuple(
        replace(
            model,
            lengths=demands[model.name].lengths,
            rate=max(demands[model.name].rate, PRIOR / seconds),
        )
        for model in problem.models
    )
    return unconstrained(replace(problem, models=models))


def with_expected(
    problem: PlanningProblem, expected: PlanningProblem, draws: FloatArray
) -> tuple[PlanningProblem, FloatArray]:
    """Return the observed problem and its draws with at least the rates of the expected one.

    The mix of lengths stays as it was observed. ``draws``: as of ``rate_draws``.
    """
    least = {model.name: model.rate or 0.0 for model in expected.models}
    models = tuple(
        replace(model, rate=max(model.rate or 0.0, least[model.name])) for model in problem.models
    )
    parts, column = [], 0
    for model in sorted(problem.models, key=lambda model: model.name):
        part = draws[:, column : column + len(model.ranges)]
        column += len(model.ranges)
        shares = model.lengths.moments(model.ranges).probability
        servable = least[model.name] * float(shares.sum())
        total = part.sum(axis=1, keepdims=True)
        some = total > NOTHING * servable
        mix = np.where(some, part / np.where(some, total, 1.0), shares / shares.sum())
        parts.append(np.where(total < servable, servable * mix, part))
    return replace(problem, models=models), np.hstack(parts)


def last_rates_problem(
    problem: PlanningProblem, rates: Mapping[str, FloatArray]
) -> PlanningProblem | None:
    """Return the problem with the last observed rates, else the spec's; None if neither exists."""
    models = []
    for model in problem.models:
        last = rates.get(model.name)
        rate = model.rate if last is None else float(last.sum())
        if not rate:
            return None
        models.append(replace(model, rate=rate))
    return unconstrained(replace(problem, models=tuple(models)))


def planned_rates_problem(problem: PlanningProblem) -> PlanningProblem:
    """Return the problem with the planned rates; if none are stated, with their proportions.

    Theta is then not a headroom, but still a measure to maximise.
    """
    models = (replace(model, rate=problem.weight(model)) for model in problem.models)
    return unconstrained(replace(problem, models=tuple(models)))


def unconstrained(problem: PlanningProblem) -> PlanningProblem:
    """Return the problem without the spec's constraints on headroom, routes and cost."""
    solver = replace(problem.solver, strategy="exact")
    return replace(
        problem, min_headroom=None, max_unservable=1.0, minimise_cost=False, solver=solver
    )


def rate_draws(problem: PlanningProblem, demands: Mapping[str, ObservedDemand]) -> FloatArray:
    """Return draws of all models' rates by range, models in order of their names [req/s].

    Requests beyond the last range have no column: no table can serve them.
    """
    names = sorted(model.name for model in problem.models)
    return np.hstack([demands[name].rate_draws[:, :-1] for name in names])
