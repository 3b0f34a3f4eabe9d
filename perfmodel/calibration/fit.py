"""The fit: least squares of log residuals with priors, over the benches of one set.

Minimises sum_i rho(w_i log(predicted_i / measured_i)^2 / sigma^2) + sum_p rho((log(p / prior_p) /
s_p)^2) by scipy's trust-region least squares; rho is soft-l1, so that a stray row counts by its
distance and not by its square. Rows of one deployment share what the model gets wrong about it:
however many there are, they weigh no more than ``EFFECTIVE`` independent ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from archipelago.perfmodel.errors import MeasurementError
from archipelago.perfmodel.fits.parameters import MOST, learnt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archipelago.perfmodel.efficiency import EngineFit
    from archipelago.perfmodel.fits.benches import Bench
    from archipelago.perfmodel.fits.parameters import Parameter
    from archipelago.perfmodel.model import FloatArray

SIGMA = 0.05
"""Scatter of a measured time around a model that is right: repeats differ by 1-5 % (log)."""

EFFECTIVE = 3.0
"""Independent rows that one deployment is worth at most."""

_DIFFERENCE = 1e-4
"""Step of forward differences, in logarithms of the parameters."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Benches of one (accelerator, engine), the efficiencies to start from, what may vary.

    Raises:
        MeasurementError: no bench, or more parameters than such measurements can tell apart.
    """

    benches: Sequence[Bench]
    base: EngineFit
    parameters: Sequence[Parameter]

    def __post_init__(self) -> None:
        if len(self.parameters) > MOST:
            raise MeasurementError(f"{len(self.parameters)} free parameters; at most {MOST}")
        if not self.benches:
            raise MeasurementError("no measurements to fit to; at least one row is needed")

    @property
    def groups(self) -> FloatArray:
        """Group of every row, benches one after the other, shape (rows,)."""
        return np.array([group for bench in self.benches for group in bench.groups])

    @property
    def measured(self) -> FloatArray:
        """Measured times of all rows [s]."""
        return np.concatenate([bench.measured for bench in self.benches])

    @property
    def weights(self) -> FloatArray:
        """Weight of every row: a bench counts as ``EFFECTIVE`` rows at most."""
        sizes = [len(bench.measured) for bench in self.benches]
        return np.concatenate([np.full(n, min(1.0, EFFECTIVE / n)) for n in sizes])

    @property
    def prior(self) -> FloatArray:
        """Logarithms of the priors' medians."""
        return np.log([p.value for p in self.parameters])

    def informed(self, fitted: Sequence[Mapping[str, float]]) -> Problem:
        """The same problem with priors from other fits."""
        return replace(self, parameters=learnt(self.parameters, fitted))

    def with_values(self, logs: FloatArray) -> EngineFit:
        """The efficiencies with the parameters at exp(``logs``)."""
        values = {
            name: float(value)
            for parameter, value in zip(self.parameters, np.exp(logs), strict=True)
            for name in parameter.names
        }
        return self.base.replaced(values)

    def residuals(self, logs: FloatArray) -> FloatArray:
        """log(predicted / measured) of all rows."""
        fit = self.with_values(logs)
        predicted = np.concatenate([bench.predict(fit) for bench in self.benches])
        return np.asarray(np.log(predicted / self.measured))


@dataclass(frozen=True, eq=False)
class Fitted:
    """The values found, and what is needed to say how sure they are.

    ``fit``: what a ``Roofline`` consumes. ``values`` by parameter, ``logs`` their logarithms.
    ``residuals``: log(predicted / measured) of every row, shape (rows,), rows left out included.
    """

    problem: Problem
    fit: EngineFit
    values: dict[str, float]
    logs: FloatArray
    residuals: FloatArray

    @property
    def jacobian(self) -> FloatArray:
        """Derivatives of the residuals by the logarithms, shape (rows, parameters)."""
        units = _DIFFERENCE * np.eye(len(self.logs))
        moved = [self.problem.residuals(self.logs + step) for step in units]
        return np.array([(each - self.residuals) / _DIFFERENCE for each in moved]).T


def fit_engine(
    problem: Problem, used: FloatArray | None = None, start: FloatArray | None = None
) -> Fitted:
    """The efficiencies that explain the measurements best.

    Args:
        problem: Benches, priors and what may vary.
        used: Factor on each row's weight, 0 leaves it out, shape (rows,); all rows without.
        start: Logarithms to start from; the priors' without.
    """
    weights = problem.weights if used is None else problem.weights * used
    scale = np.sqrt(weights) / SIGMA
    spread = np.array([p.spread for p in problem.parameters])
    low = np.log([p.low for p in problem.parameters])
    high = np.log([p.high for p in problem.parameters])

    def costs(logs: FloatArray) -> FloatArray:
        return np.concatenate([scale * problem.residuals(logs), (logs - problem.prior) / spread])

    first = problem.prior if start is None else start
    found = least_squares(
        costs,
        np.clip(first, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=2.0,
        diff_step=_DIFFERENCE,
        xtol=1e-4,
        ftol=1e-5,
    )
    values = {p.name: float(np.exp(v)) for p, v in zip(problem.parameters, found.x, strict=True)}
    fit = problem.with_values(found.x)
    return Fitted(problem, fit, values, found.x, problem.residuals(found.x))


def fit_family(problems: Mapping[str, Problem]) -> dict[str, Fitted]:
    """Fits of several accelerators, each with priors from the first fits of the others."""
    alone = {name: fit_engine(problem) for name, problem in problems.items()}
    return {
        name: fit_engine(
            problem.informed([fit.values for other, fit in alone.items() if other != name])
        )
        for name, problem in problems.items()
    }
