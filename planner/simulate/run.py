"""A plan at work, request by request: what users would see, beside what the plan promises.

A plan promises means from formulas (queues, Little's law, an affine bound on the step). Here single
requests arrive, follow the routes by their weights, wait, and take turns; none of the planner's
capacity rows is used. What remains a model is the performance model: its times are taken as true.

    requests -> route by length -> island of the group, all alike -> prefill queue
    (traffic)                                                     -> cache over the network
                                                                  -> batch of the decode island
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.planner.checks.facts import Facts
from archipelago.planner.errors import InputError
from archipelago.planner.fleet import Fleet, GroupResult, mean
from archipelago.planner.islands import Window
from archipelago.planner.problem import Objective, Phase
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.traffic import poisson, replay

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.traces import Trace
    from archipelago.planner.checks.facts import Build
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.traffic import Requests

PERCENTILES: Final = (50, 90, 99)
THROUGHPUT_LOAD: Final = 0.9
"""Share of a throughput plan's requests that is simulated where nothing else is asked for: at 1 its
islands are full, and queues without a target grow without end."""
FILLING: Final = 3.0
"""Mean stays of a request after which an empty island counts as filled: e^-3 is left."""
LARGEST_SHARE: Final = 0.2
"""Share of a trace that may go into filling and emptying the islands."""
TOLERANCE: Final = 0.05
"""Share of a target by which a mean may be above it: that much is chance in some ten thousand
requests."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated: how many requests, at which share of what the plan sustains, which seed.

    ``load`` None: the stated rates, or ``THROUGHPUT_LOAD`` where none are stated; of a trace with
    arrival times those. ``trace_model``: whose requests a trace holds.
    """

    requests: int = 10_000
    load: float | None = None
    seed: int = 0
    trace_model: str | None = None


@dataclass(frozen=True)
class Latency:
    """A latency of the measured requests [s]; ``expected``: its mean by the planner's formulas.

    ``target`` None where the model has none.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    expected: float
    target: float | None

    @property
    def missed(self) -> bool:
        """Whether the mean is above the target by more than chance."""
        return self.target is not None and self.mean > self.target * (1 + TOLERANCE)


@dataclass(frozen=True)
class ModelResult:
    """What users of one model see. ``refused``: share of requests longer than every route."""

    model: str
    requests: int
    refused: float
    ttft: Latency
    tpot: Latency


@dataclass(frozen=True)
class Simulation:
    """What was simulated and what came out.

    ``requests`` arrived within ``seconds`` and were measured; ``rate`` [req/s]; ``promised``: the
    plan's throughput [req/s].
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
        """Whether some model's mean is above its target by more than chance."""
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
    """Send requests through a plan and measure. Equal arguments give equal results.

    ``trace`` None: Poisson arrivals of the problem's own workload. ``build`` None: the model of
    times that plans are made with.

    Raises:
        InputError: the trace does not fit the plan, or the plan serves nothing.
    """
    random = np.random.default_rng(scenario.seed)
    requests, window = _traffic(problem, plan, scenario, trace, random)
    facts = Facts(problem, plan) if build is None else Facts(problem, plan, build)
    fleet = Fleet(facts, requests, window, random)
    groups = fleet.run(progress)
    measured = int(fleet.offered.sum())
    return Simulation(
        plan.name,
        measured,
        window.length,
        measured / window.length,
        plan.throughput,
        tuple(_model(fleet, groups, i) for i in range(len(problem.models))),
        groups,
    )


def _traffic(
    problem: PlanningProblem,
    plan: Plan,
    scenario: Scenario,
    trace: Trace | None,
    random: np.random.Generator,
) -> tuple[Requests, Window]:
    """Requests, and the part of the time that is measured: full islands before it and after it."""
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
    """Requests per second of every model [req/s], shape (models,)."""
    if load is None and problem.objective is not Objective.THROUGHPUT:
        theta = min(plan.theta, 1.0)
    else:
        theta = plan.theta * (THROUGHPUT_LOAD if load is None else load)
    return theta * np.array([problem.weight(model) for model in problem.models])


def _stay(problem: PlanningProblem, plan: Plan) -> float:
    """Longest mean stay of a request on an island that decodes [s]."""
    output = {
        model.name: float(model.lengths.probability @ model.lengths.output)
        for model in problem.models
    }
    return max((group.step_time * output[group.model] for group in plan.groups), default=0.0)


def _model(fleet: Fleet, groups: tuple[GroupResult, ...], index: int) -> ModelResult:
    demand, requests = fleet.facts.problem.models[index], fleet.requests
    offered = int((fleet.offered & (requests.model == index)).sum())
    at = np.flatnonzero(fleet.measured & (requests.model == index))
    talking = at[requests.outputs[at] > 0]
    first = fleet.first[at] - requests.arrivals[at]
    per_token = (fleet.last[talking] - fleet.first[talking]) / requests.outputs[talking]
    pairs = list(zip(fleet.groups, groups, strict=True))
    ttft = np.array([
        0.0 if group.phase is Phase.DECODE else fleet.expected_ttft(group, result)
        for group, result in pairs
    ])  # fmt: skip
    tpot = np.array([result.expected_step_time for result in groups])
    targets = demand.targets
    return ModelResult(
        demand.name,
        offered,
        1 - len(at) / offered if offered else 0.0,
        _latency(first, mean(ttft[fleet.prefill[at]]), targets.ttft),
        _latency(per_token, mean(tpot[fleet.decode[talking]]), targets.tpot),
    )


def _latency(values: FloatArray, expected: float, target: float | None) -> Latency:
    points = np.percentile(values, PERCENTILES) if len(values) else np.zeros(len(PERCENTILES))
    half, most, nearly_all = (float(point) for point in points)
    return Latency(mean(values), half, most, nearly_all, expected, target)
