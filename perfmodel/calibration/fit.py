"""Least squares of log residuals with priors, over the benches of one set.

Minimises sum_i rho(w_i log(predicted_i / measured_i)^2 / sigma^2) + sum_p rho((log(p / prior_p) /
s_p)^2) by scipy's trust-region least squares. rho is soft-l1, so a stray row counts by its distance
and not by its square. Rows of one deployment share an error of the model: together they weigh at
most as much as ``EFFECTIVE`` independent rows.

Parameters are logarithms, each with a prior, at most nine per (accelerator, engine): end-to-end
times cannot tell more apart. Of closed loops they are factors on the catalogue's defaults, and the
spreads of their priors are how far the fits of published series stray from these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.optimize import least_squares

from ..catalogue.efficiency import EngineFit
from ..errors import MeasurementError
from ..model import FloatArray


class Bench(Protocol):
    """Measured times of one deployment, shape (rows,), and a model's answer to the same."""

    @property
    def measured(self) -> FloatArray:
        """Return measured times [s]."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the group of each row; groups are held out whole."""

    def predict(self, fit: EngineFit) -> FloatArray:
        """Return the times with these efficiencies [s]."""


MOST = 9
"""Free parameters of one set."""

_LEAST_SPREAD = 0.05
"""A few accelerators that agree by chance do not say that the next one will."""


@dataclass(frozen=True)
class Parameter:
    """One free value of an ``EngineFit``: ``names`` that share it, and a log-normal prior.

    ``value``: median of the prior. ``spread``: its standard deviation in natural logarithms, so
    that 0.3 says +-35 % at one sigma. ``low`` and ``high`` bound the value. Units as in
    ``data/efficiencies.yaml``.
    """

    names: tuple[str, ...]
    value: float
    spread: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """Return the first of the names."""
        return self.names[0]

    def informed(self, fitted: Sequence[float]) -> Parameter:
        """Return the same parameter with a prior from its values in fits of other accelerators.

        The median moves to the geometric mean of the fitted values and the prior's own median,
        which counts once; the spread becomes what those values have among them and around it.
        """
        if not fitted:
            return self
        logs = [math.log(value) for value in fitted]
        count = len(logs)
        mean = (math.log(self.value) + sum(logs)) / (count + 1)
        squares = sum((each - mean) ** 2 for each in logs) + self.spread**2
        spread = max(_LEAST_SPREAD, math.sqrt(squares / (count + 1)))
        return replace(self, value=math.exp(mean), spread=min(spread, self.spread))


MFU = Parameter(("mfu",), 0.6, 0.35, 0.1, 1.0)
MBU = Parameter(("mbu",), 0.8, 0.1, 0.5, 1.0)
KV_MBU = Parameter(("kv_mbu",), 0.8, 0.2, 0.4, 1.0)
DECODE_ATTENTION = Parameter(("decode_attention_mfu",), 0.03, 0.7, 0.003, 0.3)
STEP = Parameter(("step",), 1.2e-3, 0.5, 1e-4, 2e-2)
SEQUENCE = Parameter(("sequence",), 2e-5, 0.8, 1e-6, 2e-4)
LAYER = Parameter(("decode_layer",), 8e-6, 0.5, 1e-6, 1e-4)
WAIT = Parameter(("all_reduce_wait",), 4e-6, 0.7, 2e-7, 1e-4)

BATCH = (MFU, MBU, KV_MBU, DECODE_ATTENTION, STEP, SEQUENCE, LAYER, WAIT)
"""Whole batches of many models on one engine: layers tell the gap per layer from that per step."""

_WIDEST = 10.0
"""A value that is this many times its default is no efficiency any more, but another deployment."""


def _factor(spread: float, *names: str) -> Parameter:
    """Return a factor on the values of those names, whose defaults stray by ``spread``."""
    return Parameter(names, 1.0, spread, 1 / _WIDEST, _WIDEST)


_HOST = (_factor(0.3, "step"), _factor(1.0, "sequence"), _factor(1.0, "all_reduce_wait"))
"""What the spreads are taken from: fits to 16 closed-loop series, each beside its default."""

LOOP = (
    _factor(0.2, "mfu"),
    _factor(0.1, "mbu"),
    _factor(0.3, "kv_mbu"),
    *_HOST,
    _factor(0.3, "decode_layer"),
    _factor(0.2, "interference"),
)
"""Closed loops of a dense model: factors on the defaults."""

SPARSE = (
    _factor(0.35, "mfu", "expert_mfu"),
    _factor(0.4, "expert_mbu"),
    _factor(0.3, "kv_mbu"),
    *_HOST,
    _factor(0.7, "expert_layer"),
    _factor(0.15, "expert_spread"),
    _factor(0.2, "interference"),
)
"""Closed loops of a mixture of experts."""

LATENT = (
    _factor(0.35, "mfu", "expert_mfu", "latent_prefill_mfu"),
    _factor(0.3, "expert_mbu"),
    _factor(0.3, "latent_mfu", "kv_mbu"),
    *_HOST,
    _factor(0.7, "expert_layer"),
    _factor(0.15, "expert_spread"),
    _factor(0.2, "interference"),
)
"""Closed loops of DeepSeek's architecture."""

PREFILL = (
    replace(MFU, low=0.2),
    Parameter(("prefill_attention_mfu",), 0.4, 0.4, 0.05, 1.0),
    Parameter(("dispatch",), 2e-4, 1.0, 1e-5, 5e-3),
    Parameter(("link",), 0.7, 0.5, 0.05, 1.2),
    replace(STEP, value=5e-3, spread=1.0, high=1e-1),
)
"""Prompts alone: what launching, multiplying, attending and adding up over GPUs cost."""


def bounded(name: str, value: float) -> float:
    """Return a value of an ``EngineFit``; a share, or the exponent of routing, is at most 1."""
    share = name.endswith(("mfu", "mbu")) or name == "expert_spread"
    return min(1.0, value) if share else value


SIGMA = 0.03
"""Scatter of a measured time around a model that is right: repeats differ by 1-5 % (log)."""

EFFECTIVE = 8.0
"""Independent rows that one deployment is worth at most."""

_DIFFERENCE = 1e-4
"""Step of forward differences, in logarithms of the parameters."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Benches of one (accelerator, engine), the efficiencies to start from, what may vary.

    ``relative``: parameters are factors on the values of ``base``. A share of a peak is at most 1.

    Raises:
        MeasurementError: no bench, or more parameters than such measurements can tell apart.
    """

    benches: Sequence[Bench]
    base: EngineFit
    parameters: Sequence[Parameter]
    relative: bool = False

    def __post_init__(self) -> None:
        if len(self.parameters) > MOST:
            raise MeasurementError(f"{len(self.parameters)} free parameters; at most {MOST}")
        if not self.benches:
            raise MeasurementError("no measurements to fit to; at least one row is needed")

    @property
    def groups(self) -> FloatArray:
        """Return the group of every row, benches one after the other, shape (rows,)."""
        return np.array([group for bench in self.benches for group in bench.groups])

    @property
    def measured(self) -> FloatArray:
        """Return measured times of all rows [s]."""
        return np.concatenate([bench.measured for bench in self.benches])

    @property
    def weights(self) -> FloatArray:
        """Return the weight of every row: a bench counts as ``EFFECTIVE`` rows at most."""
        sizes = [len(bench.measured) for bench in self.benches]
        return np.concatenate([np.full(n, min(1.0, EFFECTIVE / n)) for n in sizes])

    @property
    def prior(self) -> FloatArray:
        """Return the logarithms of the priors' medians."""
        return np.log([p.value for p in self.parameters])

    def informed(self, fitted: Sequence[Mapping[str, float]]) -> Problem:
        """Return the same problem with priors from other fits."""
        informed = [p.informed([f[p.name] for f in fitted if p.name in f]) for p in self.parameters]
        return replace(self, parameters=tuple(informed))

    def changed(self, fit: EngineFit) -> dict[str, float]:
        """Return the values of ``fit`` that this problem may vary, by their full names."""
        free = {name for parameter in self.parameters for name in parameter.names}
        values = fit.values()
        return {own: value for own, value in values.items() if own.rpartition(".")[2] in free}

    def with_values(self, logs: FloatArray) -> EngineFit:
        """Return the efficiencies with the parameters at exp(``logs``)."""
        values = {
            name: float(value)
            for parameter, value in zip(self.parameters, np.exp(logs), strict=True)
            for name in parameter.names
        }
        if self.relative:
            known = self.base.values()
            bare = {own: own.rpartition(".")[2] for own in known}
            values = {
                own: bounded(name, known[own] * values[name])
                for own, name in bare.items()
                if name in values
            }
        return self.base.replaced(values)

    def residuals(self, logs: FloatArray) -> FloatArray:
        """Return log(predicted / measured) of all rows."""
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
        """Return the derivatives of the residuals by the logarithms, shape (rows, parameters)."""
        units = _DIFFERENCE * np.eye(len(self.logs))
        moved = [self.problem.residuals(self.logs + step) for step in units]
        return np.array([(each - self.residuals) / _DIFFERENCE for each in moved]).T


def fit_engine(
    problem: Problem, used: FloatArray | None = None, start: FloatArray | None = None
) -> Fitted:
    """Return the efficiencies that explain the measurements best.

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
    solution = least_squares(
        costs,
        np.clip(first, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        diff_step=_DIFFERENCE,
        xtol=1e-4,
        ftol=1e-5,
    )
    values = {p.name: float(np.exp(v)) for p, v in zip(problem.parameters, solution.x, strict=True)}
    fit = problem.with_values(solution.x)
    return Fitted(problem, fit, values, solution.x, problem.residuals(solution.x))
