"""Simulate the requests of a plan: latencies of users, beside those that the plan promises.

A plan promises means from formulas (queues, Little's law, an affine bound on the step). Here single
requests arrive, follow the routes by their weights, and wait in queues and batches. None of the
planner's capacity rows is used; the times of the performance model are taken as true.

    requests -> route by length -> island of the group, all alike -> prefill queue
    (traffic)                                                     -> cache over the network
                                                                  -> batch of the decode island
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.model import FloatArray

from ..check.index import Build, PlanIndex
from ..errors import InputError
from ..plan import Plan
from ..problem import Objective, Phase, PlanningProblem
from ..strategy import Progress, quiet
from .fleet import GroupResult, PlanSimulation, mean
from .islands import Window
from .traffic import Requests, poisson, replay

if TYPE_CHECKING:
    from archipelago.perfmodel.workload.traces import Trace


PERCENTILES: Final = (50, 90, 99)
THROUGHPUT_LOAD: Final = 0.9
"""Default load of a throughput plan: at 1 its islands are full, and queues without a target grow
without end."""
FILLING: Final = 3.0
"""Mean stays of a request until an empty island counts as filled: up to a share of e^-3."""
LARGEST_SHARE: Final = 0.2
"""Largest share of a trace at each end that is not measured: islands fill and empty."""
TOLERANCE: Final = 0.05
"""Share by which a mean may exceed its target: noise of some ten thousand requests."""


@dataclass(frozen=True)
class Scenario:
    """Number of requests, load as a share of what the plan sustains, and seed.

    ``load`` None: the stated rates, or ``THROUGHPUT_LOAD`` if there are none; of a trace its own
    arrival times. ``trace_model``: model of a trace's requests.
    """

    requests: int = 10_000
    load: float | None = None
    seed: int = 0
    trace_model: str | None = None


@dataclass(frozen=True)
class Latency:
    """A latency of the measured requests [s].

    ``expected``: its mean by the planner's formulas. ``target``: None if the model has none.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    expected: float
    target: float | None

    @property
    def missed(self) -> bool:
        """Whether the mean exceeds the target by more than noise."""
        return self.target is not None and self.mean > self.target * (1 + TOLERANCE)


@dataclass(frozen=True)
class ModelResult:
    """Latencies of one model. ``refused``: share of requests longer than every route."""

    model: str
    requests: int
    refused: float
    ttft: Latency
    tpot: Latency


@dataclass(frozen=True)
class Simulation:
    """Results of a simulation.

    ``requests``: measured, which arrived within ``seconds``. ``rate``: of these [req/s].
    ``promised``: the plan's throughput [req/s].
    """

    name: str
    requests: int
    seconds: float
    rate: float
    promised: float
    models: tuple[ModelResult, ...]
    groups: tuple[GroupResult, ...]

    @property
    def missed(self) -> bool:
        """Whether a model's mean exceeds its target by more than noise."""
        return any(model.ttft.missed or model.tpot.missed for model in self.models)


def simulate(
    problem: PlanningProblem,
    plan: Plan,
    scenario: Scenario,
    trace: Trace | None = None,
    *,
    progress: Progress = quiet,
    build: Build | None = None,
) -> Simulation:
    """Simulate the requests of a plan. Equal arguments give equal results.

    ``trace`` None: Poisson arrivals of the problem's workload. ``build`` None: the performance
    model that plans are made with.

    Raises:
        InputError: the trace does not fit the plan, or the plan serves nothing.
    """
    random = np.random.default_rng(scenario.seed)
    requests, window = _traffic(problem, plan, scenario, trace, random)
    index = PlanIndex(problem, plan) if build is None else PlanIndex(problem, plan, build)
    simulation = PlanSimulation(index, requests, window, random)
    groups = simulation.run(progress)
    measured = int(simulation.offered.sum())
    return Simulation(
        plan.name,
        measured,
        window.length,
        measured / window.length,
        plan.throughput,
        tuple(_model(simulation, groups, i) for i in range(len(problem.models))),
        groups,
    )


def _traffic(
    problem: PlanningProblem,
    plan: Plan,
    scenario: Scenario,
    trace: Trace | None,
    random: np.random.Generator,
) -> tuple[Requests, Window]:
    """Return the requests and the measured window, with filled islands before and after it."""
    filling = FILLING * _stay(problem, plan)
    if trace is not None:
        rate = None if scenario.load is None else scenario.load * plan.throughput
        requests = replay(problem, trace, scenario.trace_model, scenario.requests, rate)
        end = float(requests.arrivals[-1])
        margin = min(filling, LARGEST_SHARE * end)
        return requests, Window(margin, end - margin)
    rates = _rates(problem, plan, scenario.load)
    if rates.sum() <= 0:
        raise InputError("the plan sustains no requests: there is nothing to simulate")
    length = scenario.requests / float(rates.sum())
    count = int(np.ceil(float(rates.sum()) * (length + 2 * filling)))
    requests = poisson(problem, rates, count, random)
    shift = min(filling, float(requests.arrivals[-1]) / 3)
    return requests, Window(shift, shift + length)


def _rates(problem: PlanningProblem, plan: Plan, load: float | None) -> FloatArray:
    """Return the request rate of every model [req/s], shape (models,)."""
    if load is None and problem.objective is not Objective.THROUGHPUT:
        theta = min(plan.theta, 1.0)
    else:
        theta = plan.theta * (THROUGHPUT_LOAD if load is None else load)
    return theta * np.array([problem.weight(model) for model in problem.models])


def _stay(problem: PlanningProblem, plan: Plan) -> float:
    """Return the longest mean stay of a request on an island that decodes [s]."""
    output = {
        model.name: float(model.lengths.probability @ model.lengths.output)
        for model in problem.models
    }
    return max((group.step_time * output[group.model] for group in plan.groups), default=0.0)


def _model(simulation: PlanSimulation, groups: tuple[GroupResult, ...], index: int) -> ModelResult:
    demand, requests = simulation.index.problem.models[index], simulation.requests
    offered = int((simulation.offered & (requests.model == index)).sum())
    at = np.flatnonzero(simulation.measured & (requests.model == index))
    generating = at[requests.outputs[at] > 0]
    first = simulation.first[at] - requests.arrivals[at]
    per_token = (simulation.last[generating] - simulation.first[generating]) / requests.outputs[
        generating
    ]
    pairs = list(zip(simulation.groups, groups, strict=True))
    ttft = np.array([
        0.0 if group.phase is Phase.DECODE else simulation.expected_ttft(group, result)
        for group, result in pairs
    ])  # fmt: skip
    tpot = np.array([result.expected_step_time for result in groups])
    targets = demand.targets
    return ModelResult(
        demand.name,
        offered,
        1 - len(at) / offered if offered else 0.0,
        _latency(first, mean(ttft[simulation.prefill[at]]), targets.ttft),
        _latency(per_token, mean(tpot[simulation.decode[generating]]), targets.tpot),
    )


def _latency(values: FloatArray, expected: float, target: float | None) -> Latency:
    points = np.percentile(values, PERCENTILES) if len(values) else np.zeros(len(PERCENTILES))
    p50, p90, p99 = (float(point) for point in points)
    return Latency(mean(values), p50, p90, p99, expected, target)
