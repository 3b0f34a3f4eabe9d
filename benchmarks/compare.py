"""Exact against bayesian-divider on the thesis' three inventories and both traces, in one run.

    python -m benchmarks.compare [--iterations 15] [--batch 16] [--seed 0] [NAME ...]

Needs the extra ``bayes``. Columns: theta [req/s] of both plans as published, of the thesis' own
layout with its own routes, and as (bayes - exact) / exact [%]; seconds of the whole exact plan,
until the exact program held a solution as good as the other's plan (reading to incumbent, templates
included), of the whole search and until the search held its best layout. "sooner" is the whole
search over the seconds to its best. The exit code is 1 when exact is worse anywhere.
"""

import argparse
import math
import sys
import time
from dataclasses import replace

import numpy as np

from archipelago.planner.assemble import Layout, assemble
from archipelago.planner.plan import Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.program import THETA, build_program
from archipelago.planner.solve import Effort, question, solve
from archipelago.planner.strategies import strategy
from archipelago.planner.strategies.bayesian_divider import (
    BayesianDivider,
    SearchParams,
    load_libraries,
)
from archipelago.planner.templates import build_catalogue
from benchmarks.instances import INSTANCES

HEADER = (
    f"{'instance':22} {'exact':>8} {'bayes':>8} {'routes':>8} {'%':>6} | "
    f"{'exact s':>7} {'to best':>7} | {'bayes s':>7} {'to best':>7} {'layouts':>7} {'sooner':>7}"
)


def seconds_to(problem: PlanningProblem, theta: float) -> float:
    """Seconds until the exact program holds a solution of at least ``theta`` [s]; inf if never."""
    started = time.perf_counter()
    program = build_program(problem, build_catalogue(problem).templates)
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    target = -theta / program.scale
    effort = Effort(0.0, problem.solver.time_limit, problem.solver.seed, target=target)
    found = solve(program, question(program, cost), effort)
    reached = found is not None and found.objective <= target
    return time.perf_counter() - started if reached else math.inf


def compare(name: str, problem: PlanningProblem, params: SearchParams) -> bool:
    """Print one line; whether exact is best or equal."""
    exact = strategy("exact").plan(problem)
    if not isinstance(exact, Planned):
        raise SystemExit(f"{name}: {exact.message}")
    settings = replace(problem.solver, strategy="bayesian-divider", time_limit=math.inf)
    started = time.perf_counter()
    found = BayesianDivider(params).search(replace(problem, solver=settings))
    full = time.perf_counter() - started
    best = found.best
    layout = Layout(
        best.counts,
        "bayesian-divider",
        exact.plan.certificate.bound,
        complete=False,
        reason="compared",
    )
    plan = assemble(problem, found.catalogue, found.program, layout, exact.plan.unservable)
    reach = seconds_to(problem, plan.theta)
    own, other = exact.plan.theta, plan.theta
    print(
        f"{name:22} {own:>8.2f} {other:>8.2f} {found.chosen_by_thesis.routed:>8.2f} "
        f"{100 * (other - own) / own:>6.2f} | {exact.seconds:>7.2f} {reach:>7.2f} | "
        f"{full:>7.1f} {best.seconds:>7.1f} {len(found.trials):>7} {full / reach:>6.0f}x",
        flush=True,
    )
    return own >= other


def main() -> int:
    """Compare on the chosen instances; the six of the thesis when none is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="instances; the thesis' six when none is named")
    parser.add_argument("--iterations", type=int, default=SearchParams().iterations)
    parser.add_argument("--batch", type=int, default=SearchParams().batch)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    params = SearchParams(iterations=arguments.iterations, batch=arguments.batch)
    names = arguments.names or [i.name for i in INSTANCES if i.name.startswith("thesis-")]
    load_libraries()  # seconds are those of planning, not of importing
    print(HEADER, flush=True)
    best = True
    for instance in (i for i in INSTANCES if i.name in names):
        problem = instance.build()
        seeded = replace(problem.solver, seed=arguments.seed)
        best &= compare(instance.name, replace(problem, solver=seeded), params)
    return 0 if best else 1


if __name__ == "__main__":
    sys.exit(main())
