"""Requests to simulate: Poisson arrivals of the planned workload, or those of a trace; seeded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from archipelago.planner.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.lengths import LengthDistribution
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.traces import Trace
    from archipelago.planner.problem import PlanningProblem

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
        """How many requests."""
        return len(self.arrivals)


def poisson(
    problem: PlanningProblem, rates: FloatArray, count: int, random: np.random.Generator
) -> Requests:
    """``count`` requests of the problem's workloads at ``rates`` [req/s], shape (models,)."""
    whole = float(rates.sum())
    arrivals = np.cumsum(random.exponential(1.0 / whole, count))
    model = random.choice(len(rates), count, p=rates / whole)
    inputs, outputs = np.zeros(count), np.zeros(count)
    for index, demand in enumerate(problem.models):
        mine = np.flatnonzero(model == index)
        inputs[mine], outputs[mine] = _lengths(demand.lengths, len(mine), random)
    return Requests(model, arrivals, inputs, outputs)


def _lengths(
    lengths: LengthDistribution, count: int, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Inputs from the atoms; outputs log-normal with the atom's two moments.

    Two moments are all that is known of the outputs. Rounding up or down at random keeps the mean.
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
    """The first ``count`` requests of a trace, all of one model.

    ``rate`` [req/s] stretches the arrivals to that mean rate; None keeps the trace's times.

    Raises:
        InputError: the model is not named where there are several, or the trace has no times.
    """
    names = [demand.name for demand in problem.models]
    if model is None and len(names) > 1:
        raise InputError(f"--model: say whose requests the trace holds: {', '.join(names)}")
    if model is not None and model not in names:
        raise InputError(f"--model {model}: the plan serves {', '.join(names)}")
    if trace.timestamps is None:
        raise InputError("--trace: the file has no arrival times; without --trace they are drawn")
    order = np.argsort(trace.timestamps, kind="stable")[:count]
    arrivals = trace.timestamps[order] - trace.timestamps[order[0]]
    span = float(arrivals[-1])
    if span <= 0:
        raise InputError("--trace: all requests arrive at once; a rate needs time to pass")
    if rate is not None:
        arrivals = arrivals * ((len(order) - 1) / span / rate)
    index = 0 if model is None else names.index(model)
    whose = np.full(len(order), index, dtype=np.int64)
    return Requests(whose, arrivals, trace.inputs[order], trace.outputs[order])
