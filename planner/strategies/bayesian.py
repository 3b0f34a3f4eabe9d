"""The planner of the thesis: Bayesian optimisation over layouts, a mixed-integer program inside.

    until the iterations or the time are used up:
        suggest a batch of divisions (n_t, s_t per pool) by Ax       bayesian_search.py
        divide every pool into islands                               bayesian_division.py
        assign a job to each island by the inner program             bayesian_inner.py
        report the throughput of the inner program to Ax

Rignall (2025), sections 4.8 and 4.9. Each layout is evaluated twice: with the routes of the inner
program, as in the thesis, and with the same islands in the same jobs, routed anew by the exact
program. The plan is the best of the latter. docs/designs/0002-bayesian-divider.md lists the
differences from the thesis with their reasons.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.model import FloatArray

from ..deadline import ENDLESS, Alarm, Deadline, TimeIsUp
from ..errors import InputError, SolverError
from ..layout.assemble import Layout, assemble
from ..layout.evaluate import evaluate
from ..milp.build import build_program
from ..milp.highs import LinearObjective, SolverOptions, largest_theta, minimise, solve
from ..milp.variables import THETA, Program
from ..plan import Infeasible, Planned, PlanningOutcome, Unfinished
from ..problem import STAGES, Billing, Phase, PlanningProblem, Pool, missing_packages
from ..strategy import Finds, Found, Progress, quiet, unheard
from ..templates.catalogue import Catalogue, build_catalogue
from ..templates.template import Template
from .bayesian_division import Division, islands
from .exact import ExactStrategy
from .infeasible import exceeds_unservable, unservable

if TYPE_CHECKING:
    from .bayesian_inner import Assignment, InnerProblem
    from .bayesian_search import Outer


NAME = "bayesian-divider"
RESERVE, LEAST_RESERVE, MOST_RESERVE = 0.05, 1.0, 10.0
"""Part of the time limit that is kept to make and check the plan, and its limits [s]."""
LEAST_SOLVE = 0.5
"""Time that the inner program has in any case [s]."""
FEASIBILITY_SECONDS = 10.0
"""Time limit of the feasibility check before the search [s]."""


@dataclass(frozen=True)
class SearchParams:
    """Length of the search. The defaults are the thesis' final ones (table 5.1).

    ``iterations`` batches of ``batch`` layouts; the first batch is random. ``most_islands``: in one
    pool, since the inner program has a binary for each. ``initial``: evaluated first; the plan is
    never worse.
    """

    iterations: int = 15
    batch: int = 16
    most_islands: int = 64
    initial: Mapping[str, Division] | None = None

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        for name in ("iterations", "batch", "most_islands"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)} is not at least 1")


@dataclass(frozen=True, eq=False)
class Trial:
    """One layout and both evaluations of it.

    ``throughput``: min(R_prefill, R_decode) of the inner program [req/s], which the search
    maximises. ``routed``: theta of the inner program's own routes. ``theta``: theta of the same
    islands in the same jobs, routed anew. All are 0 if the layout cannot serve the workload.
    ``counts``, (templates,): the layout as islands of each template. ``seconds`` since the start.
    """

    counts: NDArray[np.int64]
    throughput: float = 0.0
    routed: float = 0.0
    theta: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Search:
    """All trials in order; ``complete`` is False if the time limit ended the search.

    ``bound``: on theta of any plan.
    """

    catalogue: Catalogue
    program: Program
    trials: tuple[Trial, ...]
    complete: bool
    bound: float

    @property
    def best(self) -> Trial:
        """The layout of the largest theta with new routes; the first of equals."""
        return max(self.trials, key=lambda trial: trial.theta)


@dataclass(frozen=True)
class BayesianDivider:
    """The strategy; its plan has a valid bound, but the search proves no optimum."""

    params: SearchParams = field(default_factory=SearchParams)
    name: str = NAME

    def plan(
        self, problem: PlanningProblem, progress: Progress = quiet, on_found: Finds = unheard
    ) -> PlanningOutcome:
        """Search layouts and return the best as a plan, or the reason why there is none.

        It is back with the best one within the time limit, whatever the search is at then. Loading
        the libraries does not count: that happens once in a process.

        Raises:
            InputError: the extra ``bayes`` is not installed, or the problem has features that the
                thesis' planner does not support.
            SolverError: plans exist, but no layout was found that is one.
        """
        _require_supported(problem)
        load_libraries()
        started = time.perf_counter()
        limit = Deadline(problem.solver.time_limit)
        catalogue = build_catalogue(problem, progress, deadline=limit)
        infeasible = _infeasible(problem, catalogue)
        if infeasible is not None:
            return infeasible
        reserve = min(max(LEAST_RESERVE, RESERVE * limit.limit), MOST_RESERVE, limit.limit / 2)
        until = replace(limit, limit=limit.limit - reserve)
        result = self.search(problem, progress, catalogue, until, on_found)
        best = result.best
        if best.theta <= 0:
            raise SolverError(
                f"{len(result.trials)} layouts were tried and none serves every range, although "
                "plans exist: choose strategy exact, or a longer timeLimitSeconds"
            )
        reason = Unfinished.NO_PROOF if result.complete else Unfinished.TIME_LIMIT
        layout = Layout(best.counts, self.name, result.bound, False, reason)
        missing = unservable(problem, catalogue)
        plan = assemble(problem, catalogue, result.program, layout, missing)
        least = problem.min_headroom
        if least is not None and plan.theta < least:
            raise SolverError(
                f"the best layout found reaches headroom {plan.theta:.4g}, less than minHeadroom "
                f"{least:g}, but up to {plan.certificate.bound:.4g} is not excluded: choose "
                "strategy exact, or a longer timeLimitSeconds"
            )
        return Planned(plan, time.perf_counter() - started)

    def search(
        self,
        problem: PlanningProblem,
        progress: Progress = quiet,
        catalogue: Catalogue | None = None,
        deadline: Deadline | None = None,
        on_found: Finds = unheard,
    ) -> Search:
        """Evaluate ``iterations * batch`` layouts, or as many as the time allows (at least one).

        Without a ``deadline``, the time limit of the problem starts with this call. Once a layout
        serves the workload, the deadline interrupts whatever is under way.
        """
        outer_loop = load_libraries()
        deadline = deadline or Deadline(problem.solver.time_limit)
        catalogue = catalogue or build_catalogue(problem, progress)
        evaluator = _LayoutEvaluator.of(problem, catalogue, deadline)
        most = {
            pool.name: min(self.params.most_islands, pool.count // sizes[0]) if sizes else 0
            for pool, sizes in evaluator.sizes
        }
        usable = {name: count for name, count in most.items() if count > 0}
        batch = self.params.batch
        bound = _bound(evaluator.program, problem)
        rounds, trials = self.params.iterations, list[Trial]()
        with suppress(TimeIsUp), Alarm() as alarm:
            outer = outer_loop(usable, batch, problem.solver.seed)

            def try_out(number: int, divisions: Mapping[str, Division]) -> None:
                trials.append(evaluator.evaluate(divisions))
                best = _most(trials)
                on_found(Found(len(trials), rounds * batch, best, bound))
                if best > 0:
                    alarm.ring_in(deadline.remaining)
                outer.report(number, trials[-1].throughput)

            if self.params.initial is not None:
                try_out(outer.attach(self.params.initial), self.params.initial)
            for iteration in range(rounds):
                if iteration and deadline.passed:
                    break
                progress("proposing layouts", iteration / rounds)
                for at, (number, divisions) in enumerate(outer.propose(batch).items()):
                    if _most(trials) > 0 and deadline.passed:
                        break
                    share = (iteration + at / batch) / rounds
                    progress(f"trying layouts, best {_most(trials):.4g}", share)
                    try_out(number, divisions)
        complete = len(trials) >= rounds * batch
        return Search(catalogue, evaluator.program, tuple(trials), complete, bound)


def _most(trials: list[Trial]) -> float:
    return max((trial.theta for trial in trials), default=0.0)


def load_libraries() -> type[Outer]:
    """Import the outer loop; this takes seconds and warns of its dependencies' deprecations.

    Raises:
        InputError: the extra ``bayes`` is not installed.
    """
    _require_extra()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from . import bayesian_inner  # noqa: F401, PLC0415
        from .bayesian_search import Outer  # noqa: PLC0415
    return Outer


def _require_supported(problem: PlanningProblem) -> None:
    """Refuse features that the divider and its inner program do not support.

    Raises:
        InputError: the problem has such a feature.
    """
    unsupported = {
        "mixed islands": any(model.phases != STAGES for model in problem.models),
        "islands of several pools": bool(problem.pipelines),
        "least cost": problem.minimise_cost,
        "domain classes": len({c for pool in problem.pools for c in pool.classes}) > 1,
        "rentable GPUs": any(pool.max_count is not None for pool in problem.pools),
        "billing by the node": any(p.billing is Billing.PER_NODE for p in problem.pools),
    }
    present = [name for name, is_used in unsupported.items() if is_used]
    if present:
        raise InputError(
            f"strategy bayesian-divider knows no {' and no '.join(present)}: use strategy exact"
        )


def _require_extra() -> None:
    """Check that the extra is installed.

    Raises:
        InputError: it is not.
    """
    missing = missing_packages(NAME)
    if missing:
        raise InputError(
            f"planner.strategy: {NAME} needs {', '.join(missing)}; install it with: "
            "pip install 'archipelago-serving[bayes]', or choose exact"
        )


def _infeasible(problem: PlanningProblem, catalogue: Catalogue) -> Infeasible | None:
    """Return the exact strategy's outcome if it proves that there is no plan."""
    lost = unservable(problem, catalogue)
    blocked = any(exceeds_unservable(item.share, problem.max_unservable) for item in lost)
    if not blocked:
        program = build_program(problem, catalogue.templates)
        objective = minimise(program, np.zeros(program.columns))
        objective.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
        effort = SolverOptions(problem.solver.gap, FEASIBILITY_SECONDS, problem.solver.seed)
        if solve(program, objective, effort) is not None:
            return None
    outcome = ExactStrategy().plan(problem)
    return outcome if isinstance(outcome, Infeasible) else None


def _bound(program: Program, problem: PlanningProblem) -> float:
    """Return theta of the exact program's linear relaxation, a bound on all its plans."""
    objective = replace(largest_theta(program), integer=False)
    relaxed = solve(program, objective, SolverOptions(0.0, math.inf, problem.solver.seed))
    if relaxed is None:
        raise SolverError("the relaxation has no solution although a plan was found: report this")
    return -relaxed.objective * program.scale


@dataclass(frozen=True, eq=False)
class _LayoutEvaluator:
    """Evaluates layouts; caches the trials of equal ones.

    ``best[pool, size][job]`` is the index in ``program.templates`` of the best one for that job.
    """

    problem: PlanningProblem
    program: Program
    jobs: tuple[tuple[int, Phase], ...]  # (index into the demands, phase)
    best: dict[tuple[str, int], dict[int, int]]
    cache: dict[tuple[tuple[str, int], ...], Trial] = field(default_factory=dict)
    deadline: Deadline = ENDLESS
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(
        cls, problem: PlanningProblem, catalogue: Catalogue, deadline: Deadline
    ) -> _LayoutEvaluator:
        program = build_program(problem, catalogue.templates)
        jobs = tuple((d, phase) for d in range(len(program.demands)) for phase in STAGES)
        best: dict[tuple[str, int], dict[int, int]] = {}
        for c, template in enumerate(program.templates):
            job = jobs.index((int(program.demand_of[c]), template.phase))
            rivals = best.setdefault((template.pool, template.gpus), {})
            if job not in rivals or _merit(program, c) > _merit(program, rivals[job]):
                rivals[job] = c
        return cls(problem, program, jobs, best, deadline=deadline)

    @property
    def sizes(self) -> list[tuple[Pool, list[int]]]:
        """Island sizes of every pool that some template has; the smallest, I_min, comes first."""
        return [
            (pool, sorted(size for name, size in self.best if name == pool.name))
            for pool in self.problem.pools
        ]

    def evaluate(self, divisions: Mapping[str, Division]) -> Trial:
        """Divide, assign, and evaluate; equal layouts only once, as in section 4.8.3."""
        layout = tuple(
            (pool.name, size)
            for pool, sizes in self.sizes
            if pool.name in divisions
            for size in islands(pool, divisions[pool.name], sizes)
        )
        if layout not in self.cache:
            self.cache[layout] = self._trial(layout)
        return replace(self.cache[layout], seconds=time.perf_counter() - self.started)

    def _trial(self, layout: tuple[tuple[str, int], ...]) -> Trial:
        from .bayesian_inner import InnerParams, assign  # noqa: PLC0415

        counts = np.zeros(len(self.program.templates), dtype=np.int64)
        inner = self._inner_problem(layout)
        params = InnerParams(seed=self.problem.solver.seed)
        left = max(self.deadline.remaining, LEAST_SOLVE)  # no alarm rings inside the solver
        assignment = assign(inner, replace(params, seconds=min(params.seconds, left)))
        if assignment is None:
            return Trial(counts)
        templates = [
            None if job < 0 else self.best[kind][int(job)]
            for kind, job in zip(layout, assignment.job, strict=True)
        ]
        np.add.at(counts, [c for c in templates if c is not None], 1)
        theta = _theta(self.program, counts, self.problem)
        if theta <= 0:  # some range without a probability has no island for its route
            return Trial(counts)
        routed = _theta_of_routes(self.program, self.problem, templates, inner, assignment)
        return Trial(counts, assignment.throughput, routed, theta)

    def _inner_problem(self, layout: tuple[tuple[str, int], ...]) -> InnerProblem:
        from .bayesian_inner import InnerProblem  # noqa: PLC0415  # loads pulp

        demands = self.program.demands
        start = np.cumsum([0, *[len(d.probability) for d in demands]])
        share = np.concatenate([d.weight * d.probability * d.served for d in demands])
        rate = np.zeros((len(layout), len(self.jobs), int(start[-1])))
        for i, kind in enumerate(layout):
            for job, c in self.best[kind].items():
                d = self.jobs[job][0]
                rate[i, job, start[d] : start[d + 1]] = _rates(self.program.templates[c])
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(layout))}
        price = {pool.name: float(pool.price_per_gpu_hour) for pool in self.problem.pools}
        budget = self.problem.budget_per_hour
        return InnerProblem(
            tuple(kinds[kind] for kind in layout),
            rate,
            tuple(STAGES.index(phase) for _, phase in self.jobs),
            share / share.sum(),
            np.array([price[pool] * gpus for pool, gpus in layout]),
            None if budget is None else float(budget),
        )


def _rates(template: Template) -> FloatArray:
    """Return b_ij = 1 / A_ij, the rate of range j alone [req/s]; 0 if it cannot be served."""
    load = template.rows.max(axis=0)
    servable = template.servable & (load > 0)
    rates: FloatArray = np.where(servable, 1.0 / np.where(servable, load, 1.0), 0.0)
    return rates


def _merit(program: Program, c: int) -> tuple[float, float]:
    """Rank a template for its job: share of requests that it can serve, then rate at the mix."""
    template, demand = program.templates[c], program.demands[int(program.demand_of[c])]
    mix = np.where(template.servable, demand.probability, 0.0)
    load = float((template.rows @ mix).max())
    return float(mix.sum()), 1.0 / load if load > 0 else 0.0


def _theta(program: Program, counts: NDArray[np.int64], problem: PlanningProblem) -> float:
    """Return the largest theta of given islands by the exact program; 0 if a range is unserved."""
    lower, upper = np.zeros(program.columns), np.full(program.columns, np.inf)
    lower[1 : 1 + len(counts)] = upper[1 : 1 + len(counts)] = counts
    upper[1 + len(counts) :][counts[program.pair_template] == 0] = 0.0
    objective = LinearObjective(largest_theta(program).cost, lower, upper, integer=False)
    solution = solve(
        program.without_cover(), objective, SolverOptions(0.0, math.inf, problem.solver.seed)
    )
    return 0.0 if solution is None else float(solution.values[THETA]) * program.scale


def _theta_of_routes(
    program: Program,
    problem: PlanningProblem,
    templates: list[int | None],
    inner: InnerProblem,
    assignment: Assignment,
) -> float:
    """Return theta with the routes of the inner program, evaluated.

    Island i takes the share x_ij b_ij / R_j of range j, whatever the deviations: a router gets
    these shares, and the requests have the workload's mix.
    """
    start = np.cumsum([0, *[len(d.probability) for d in program.demands]])
    models = {model.name: model for model in problem.models}
    work = []
    for i, c in enumerate(templates):
        if c is None:
            continue
        d, template = int(program.demand_of[c]), program.templates[c]
        mine, job = slice(start[d], start[d + 1]), int(assignment.job[i])
        total = assignment.rates[inner.phase_of[job], mine]
        done = inner.rate[i, job, mine] * assignment.part[i, mine]
        share = np.divide(done, total, out=np.zeros_like(done), where=total > 0)
        demand = program.demands[d]
        work.append((template, models[template.model], share * demand.probability * demand.weight))
    loads = [float((template.rows @ unit).max()) for template, _, unit in work]
    if not loads or max(loads) <= 0 or (assignment.rates[:, inner.share > 0] <= 0).any():
        return 0.0
    theta = 1.0 / max(loads)
    return theta * min(evaluate(t, demand, unit * theta).supported for t, demand, unit in work)
