"""Seconds of one re-planning decision (keep, reroute, flip) on standing fleets, with its parts.

    python -m benchmarks.replan [--repeats N] [--only NAME ...]

The plan is that of the frozen instance at its own demand; the demand observed is the same rate with
longer prompts. A decision is everything from the observation on: benchmarking the standing bodies
for the observed lengths, headroom on 200 draws, both programs, the policy. Medians of the repeats;
``templates`` is the part until all templates are there. CPU seconds say what a busy machine hides,
and the bar is on those, for fleets of up to 1,000 islands: exit code 1 when a median misses it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from archipelago.perfmodel.workload.lengths import LengthDistribution
from archipelago.planner.plan import Plan, Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.replan.candidates import evaluate_candidates
from archipelago.planner.replan.deployed import deployed_islands
from archipelago.planner.replan.evaluate import mean_rates
from archipelago.planner.replan.policy import decide
from archipelago.planner.replan.types import Decision, Limits, Observation, PolicyState
from archipelago.planner.strategies.exact import ExactStrategy
from benchmarks.instances import INSTANCES

NAMES = ("thesis-a-conversation", "fleet-10k", "fleet-5x4-20k-deepseek")
BAR = 0.25
"""CPU seconds of a decision at 1,000 islands [s]."""
MOST = 1000
"""Islands that the bar speaks of; larger fleets are shown without one."""
DRAWS = 200
SPREAD = 0.03
"""Standard deviation of the logarithm of every range's rate: a minute of 1,000 requests."""


@dataclass(frozen=True)
class Row:
    """One fleet, measured; times in seconds."""

    name: str
    islands: int
    ranges: int
    seconds: float
    cpu: float
    templates: float
    levels: tuple[float, ...]

    @property
    def missed(self) -> bool:
        """Return whether the bar speaks of this fleet, and is missed."""
        return self.islands <= MOST and self.cpu > BAR

    def __str__(self) -> str:
        mark = "  MISSED" if self.missed else ""
        thetas = " ".join(f"{theta:.4f}" for theta in self.levels)
        return (
            f"{self.name:26} {self.islands:>7} {self.ranges:>6} {self.seconds * 1e3:>7.0f} "
            f"{self.cpu * 1e3:>7.0f} {self.templates * 1e3:>12.0f}   {thetas}{mark}"
        )


def longer(lengths: LengthDistribution) -> LengthDistribution:
    """Return the same lengths with more weight on the longer half, as p * l^0.3."""
    weight = lengths.probability * np.maximum(lengths.length, 1.0) ** 0.3
    return replace(lengths, probability=weight / weight.sum())


def observed(problem: PlanningProblem, plan: Plan) -> PlanningProblem:
    """Return 70 % of what the plan sustains, with longer prompts."""
    models = tuple(
        replace(
            model,
            lengths=longer(model.lengths),
            rate=0.7 * plan.theta * problem.weight(model),
        )
        for model in problem.models
    )
    return replace(problem, models=models, minimise_cost=False)


def timed(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median seconds of the repeats: on the clock, and of the processor."""
    result = []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        result.append((time.perf_counter() - start, time.process_time() - cpu))
    clock, processor = (statistics.median(column) for column in zip(*result, strict=True))
    return clock, processor


def measure(name: str, repeats: int) -> Row:
    """Plan, shift the demand, decide again and again."""
    problem = next(i for i in INSTANCES if i.name == name).build()
    outcome = ExactStrategy().plan(problem)
    if not isinstance(outcome, Planned):
        raise SystemExit(f"{name}: {outcome.message}")
    plan, demand = outcome.plan, observed(problem, outcome.plan)
    mean = mean_rates(demand)
    random = np.random.default_rng(0)
    draws = mean * random.lognormal(0.0, SPREAD, (DRAWS, len(mean)))
    limits = Limits()

    def decision() -> Decision:
        levels = evaluate_candidates(deployed_islands(demand, plan), limits, draws)
        return decide(Observation(demand, plan, draws, levels=levels), PolicyState(), 0.0, limits)

    seconds, cpu = timed(decision, repeats)
    _, built = timed(lambda: deployed_islands(demand, plan), repeats)
    levels = decision().candidates
    return Row(
        name,
        len(plan.islands),
        len(mean),
        seconds,
        cpu,
        built,
        tuple(candidate.theta for candidate in levels),
    )


def main() -> None:
    """Print one line per fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=NAMES)
    options = parser.parse_args()
    head = ("islands", "ranges", "ms", "CPU ms", "templates ms")
    print(f"{'fleet':26} {head[0]:>7} {head[1]} {head[2]:>7} {head[3]:>7} {head[4]:>12}   theta of")
    rows = []
    for name in options.only:
        rows.append(measure(name, options.repeats))
        print(rows[-1], flush=True)
    sys.exit(any(row.missed for row in rows))


if __name__ == "__main__":
    main()
