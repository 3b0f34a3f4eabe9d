"""Exact against bayesian-divider on the thesis' three inventories and both traces, in one run.

    python -m benchmarks.compare [--iterations 15] [--batch 16] [--seed 0] [--out FILE] [NAME ...]
    python -m benchmarks.compare --out FILE --markdown PAGE

Needs the extra ``bayes``. theta [req/s]: both plans as published, and the thesis' own layout with
its own routes. Seconds: the whole exact plan; until the exact program held a solution as good as
the other's plan (reading to incumbent, templates included, median of three); the whole search; and
until the search held its best layout. ``--out`` keeps each case as it ends, by instance; the cases
of one run may so be started one by one. ``--markdown`` plans nothing and puts what ``--out`` keeps
into a page. The exit code is 1 when exact is worse anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from archipelago.planner.layout.assemble import Layout, assemble
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import SolverOptions, minimise, solve
from archipelago.planner.milp.variables import THETA
from archipelago.planner.plan import Planned
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.strategies import strategy
from archipelago.planner.strategies.bayesian import BayesianDivider, SearchParams, load_libraries
from archipelago.planner.templates.catalogue import build_catalogue
from benchmarks.instances import INSTANCES
from benchmarks.markdown import put, table

REPEATS = 3
HEADER = (
    f"{'instance':22} {'exact':>8} {'bayes':>8} {'routes':>8} {'%':>6} | "
    f"{'exact s':>7} {'to best':>7} | {'bayes s':>7} {'to best':>7} {'layouts':>7} {'sooner':>7}"
)


@dataclass(frozen=True)
class Comparison:
    """One case. Thetas in req/s, times in s; ``seed``, ``iterations``, ``batch`` of the search."""

    instance: str
    exact: float
    bound: float
    bayes: float
    bayes_own_routes: float
    exact_seconds: float
    exact_to_best: float
    bayes_seconds: float
    bayes_to_best: float
    layouts: int
    iterations: int
    batch: int
    seed: int

    @property
    def difference(self) -> float:
        """Return (bayes - exact) / exact, as a percentage."""
        return 100 * (self.bayes - self.exact) / self.exact

    @property
    def sooner(self) -> float:
        """Return the whole search over the seconds that exact took to be as good."""
        return self.bayes_seconds / self.exact_to_best

    def __str__(self) -> str:
        return (
            f"{self.instance:22} {self.exact:>8.2f} {self.bayes:>8.2f} "
            f"{self.bayes_own_routes:>8.2f} {self.difference:>6.2f} | "
            f"{self.exact_seconds:>7.2f} {self.exact_to_best:>7.2f} | "
            f"{self.bayes_seconds:>7.1f} {self.bayes_to_best:>7.1f} {self.layouts:>7} "
            f"{self.sooner:>6.0f}x"
        )


COLUMNS = (
    "inventory and trace",
    "exact [req/s]",
    "bayesian-divider [req/s]",
    "its own routes [req/s]",
    "difference [%]",
    "exact [s]",
    "exact as good after [s]",
    "bayesian-divider [s]",
    "its best after [s]",
    "sooner",
)


def cells(case: Comparison) -> tuple[str, ...]:
    """Return the case's row of the page."""
    return (
        f"`{case.instance}`",
        f"{case.exact:.2f}",
        f"{case.bayes:.2f}",
        f"{case.bayes_own_routes:.2f}",
        f"{case.difference:.2f}",
        f"{case.exact_seconds:.2f}",
        f"{case.exact_to_best:.2f}",
        f"{case.bayes_seconds:.0f}",
        f"{case.bayes_to_best:.0f}",
        f"{case.sooner:.0f} times",
    )


def read(path: Path) -> list[Comparison]:
    """Return the cases that a file keeps, by name."""
    cases = json.loads(path.read_text()) if path.exists() else {}
    return [Comparison(**cases[name]) for name in sorted(cases)]


def keep(path: Path, case: Comparison) -> None:
    """Add a case to a file, or put it in the place of an older one."""
    cases = {old.instance: asdict(old) for old in read(path)} | {case.instance: asdict(case)}
    path.write_text(json.dumps(cases, indent=1, sort_keys=True) + "\n")


def seconds_to(problem: PlanningProblem, theta: float) -> float:
    """Return seconds [s] until the exact program has a solution of ``theta``; inf if never."""
    started = time.perf_counter()
    program = build_program(problem, build_catalogue(problem).templates)
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    target = -theta / program.scale
    effort = SolverOptions(0.0, problem.solver.time_limit, problem.solver.seed, target=target)
    seconds = solve(program, minimise(program, cost), effort)
    solved = seconds is not None and seconds.objective <= target
    return time.perf_counter() - started if solved else math.inf


def compare(name: str, problem: PlanningProblem, params: SearchParams) -> Comparison:
    """Plan by both strategies."""
    exact = strategy("exact").plan(problem)
    if not isinstance(exact, Planned):
        raise SystemExit(f"{name}: {exact.message}")
    settings = replace(problem.solver, strategy="bayesian-divider", time_limit=math.inf)
    started = time.perf_counter()
    search = BayesianDivider(params).search(replace(problem, solver=settings))
    full = time.perf_counter() - started
    best, bound = search.best, exact.plan.certificate.bound
    layout = Layout(best.counts, "bayesian-divider", bound, complete=False, reason="compared")
    plan = assemble(problem, search.catalogue, search.program, layout, exact.plan.unservable)
    return Comparison(
        instance=name,
        exact=exact.plan.theta,
        bound=bound,
        bayes=plan.theta,
        bayes_own_routes=max(search.trials, key=lambda trial: trial.throughput).routed,
        exact_seconds=exact.seconds,
        exact_to_best=statistics.median(seconds_to(problem, plan.theta) for _ in range(REPEATS)),
        bayes_seconds=full,
        bayes_to_best=best.seconds,
        layouts=len(search.trials),
        iterations=params.iterations,
        batch=params.batch,
        seed=problem.solver.seed,
    )


def main() -> int:
    """Compare on the chosen instances; the six of the thesis when none is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="instances; the thesis' six when none is named")
    parser.add_argument("--iterations", type=int, default=SearchParams().iterations)
    parser.add_argument("--batch", type=int, default=SearchParams().batch)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file that keeps each case as it ends")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the kept cases there")
    arguments = parser.parse_args()
    if arguments.markdown:
        put(arguments.markdown, "comparison", table(COLUMNS, map(cells, read(arguments.out))))
        return 0
    params = SearchParams(iterations=arguments.iterations, batch=arguments.batch)
    names = arguments.names or [i.name for i in INSTANCES if i.name.startswith("thesis-")]
    load_libraries()  # seconds are those of planning, not of importing
    print(HEADER, flush=True)
    worse = False
    for instance in (i for i in INSTANCES if i.name in names):
        problem = instance.build()
        seeded = replace(problem.solver, seed=arguments.seed)
        case = compare(instance.name, replace(problem, solver=seeded), params)
        print(case, flush=True)
        if arguments.out:
            keep(arguments.out, case)
        worse |= case.exact < case.bayes
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
