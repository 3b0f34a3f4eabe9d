"""Requests of a simulation: Poisson arrivals of the planned workload, or a trace; seeded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.workload.lengths import LengthDistribution
    from archipelago.perfmodel.workload.traces import Trace

    from ..problem import PlanningProblem


Integers: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their arrival; arrays of shape (requests,).

    ``model``: index into the problem's models. ``arrivals`` [s]; ``inputs`` [tokens], not always
    whole; ``outputs`` [tokens], whole.
    """

    model: Integers
    arrivals: FloatArray
    inputs: FloatArray
    outputs: FloatArray

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrivals)


def poisson(
    problem: PlanningProblem, rates: FloatArray, count: int, random: np.random.Generator
) -> Requests:
    """Draw ``count`` requests of the problem's workloads at ``rates`` [req/s], shape (models,)."""
    total = float(rates.sum())
    arrivals = np.cumsum(random.exponential(1.0 / total, count))
    model = random.choice(len(rates), count, p=rates / total)
    inputs, outputs = np.zeros(count), np.zeros(count)
    for index, demand in enumerate(problem.models):
        at = np.flatnonzero(model == index)
        inputs[at], outputs[at] = _lengths(demand.lengths, len(at), random)
    return Requests(model, arrivals, inputs, outputs)


def _lengths(
    lengths: LengthDistribution, count: int, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw inputs from the atoms, and log-normal outputs with the atom's two moments.

    The workload has only two moments of the outputs. Random rounding keeps the mean.
    """
    shares = lengths.probability / lengths.probability.sum()
    atom = random.choice(len(shares), count, p=shares)
    mean = np.maximum(lengths.output[atom], 1e-9)
    spread = np.sqrt(np.log(np.maximum(lengths.output_square[atom] / mean**2, 1.0)))
    drawn = mean * np.exp(spread * random.standard_normal(count) - spread**2 / 2)
    return lengths.length[atom], np.floor(drawn + random.random(count))


def replay(
    problem: PlanningProblem, trace: Trace, model: str | None, count: int, rate: float | None
) -> Requests:
    """Return the first ``count`` requests of a trace, all of one model.

    ``rate`` [req/s] stretches the arrivals to that mean rate; None keeps the trace's times.

    Raises:
        InputError: the model of the trace is ambiguous, or the trace has no times.
    """
    names = [demand.name for demand in problem.models]
    if model is None and len(names) > 1:
        raise InputError(
            f"--model: name the model of the requests in the trace: {', '.join(names)}"
        )
    if model is not None and model not in names:
        raise InputError(f"--model {model}: the plan serves {', '.join(names)}")
    if trace.timestamps is None:
        raise InputError(
            "--trace: the file has no arrival times; leave --trace out for random ones"
        )
    order = np.argsort(trace.timestamps, kind="stable")[:count]
    arrivals = trace.timestamps[order] - trace.timestamps[order[0]]
    span = float(arrivals[-1])
    if span <= 0:
        raise InputError("--trace: all requests arrive at the same time, so they have no rate")
    if rate is not None:
        arrivals = arrivals * ((len(order) - 1) / span / rate)
    index = 0 if model is None else names.index(model)
    models = np.full(len(order), index, dtype=np.int64)
    return Requests(models, arrivals, trace.inputs[order], trace.outputs[order])
