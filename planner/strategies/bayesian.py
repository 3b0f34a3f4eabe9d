"""The planner of the thesis: Bayesian optimisation over layouts, a mixed-integer program inside.

    until the iterations or the time are used up:
        ask Ax for a batch of divisions (n_t, s_t per pool)          outer.py
        divide every pool into islands                               divider.py
        let the inner program give each island its job               inner_milp.py
        tell Ax the throughput that the inner program reports

Rignall (2025), sections 4.8 and 4.9. Each layout is judged twice: by the routes of the inner
program, as in the thesis, and with the same islands in the same jobs routed anew by the exact
program's rates. The plan is the best of the latter. What departs from the thesis and why:
docs/designs/0002-bayesian-divider.md.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.assemble import Layout, assemble
from archipelago.planner.deadline import Deadline
from archipelago.planner.errors import InputError, SolverError
from archipelago.planner.evaluate import evaluate
from archipelago.planner.feasibility import unservable
from archipelago.planner.packing import classes_of
from archipelago.planner.plan import Infeasible, Planned, PlanningOutcome
from archipelago.planner.problem import STAGES, Billing, Phase, PlanningProblem, Pool
from archipelago.planner.program import THETA, Program, build_program
from archipelago.planner.relax import lost_too_much
from archipelago.planner.solve import Effort, question, solve
from archipelago.planner.strategies.divider import Division, islands
from archipelago.planner.strategies.exact import ExactStrategy
from archipelago.planner.strategy import Progress, quiet
from archipelago.planner.templates import Catalogue, Template, build_catalogue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.strategies.inner_milp import Assignment, Fleet
    from archipelago.planner.strategies.outer import Outer

NAME = "bayesian-divider"
EXTRA = ("ax", "botorch", "torch", "pulp")
FEASIBILITY_SECONDS = 10.0
"""Longest time to find out whether any plan exists before layouts are searched [s]."""


@dataclass(frozen=True)
class SearchParams:
    """How long to search. The defaults are the thesis' final ones (table 5.1).

    ``iterations`` batches of ``batch`` layouts; the first batch is random. ``most_islands`` bounds
    the islands of one pool, since the inner program has a binary for each. ``initial`` is tried
    first, and the plan is never worse than it.
    """

    iterations: int = 15
    batch: int = 16
    most_islands: int = 64
    initial: Mapping[str, Division] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be searched."""
        for name in ("iterations", "batch", "most_islands"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)} is not at least 1")


@dataclass(frozen=True, eq=False)
class Trial:
    """One layout and both judgements of it.

    ``throughput``: min(R_prefill, R_decode) of the inner program [req/s], which the search
    maximises. ``routed``: theta of the inner program's own routes. ``theta``: theta of the same
    islands in the same jobs, routed anew. All are 0 where the layout cannot serve the workload.
    ``counts``, (templates,): the layout as islands of each template. ``seconds`` since the start.
    """

    counts: NDArray[np.int64]
    throughput: float = 0.0
    routed: float = 0.0
    theta: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Search:
    """All trials in order; ``complete`` is False where the time limit ended the search."""

    catalogue: Catalogue
    program: Program
    trials: tuple[Trial, ...]
    complete: bool

    @property
    def best(self) -> Trial:
        """The layout of the largest theta with the routes made anew; the first of equals."""
        return max(self.trials, key=lambda trial: trial.theta)

    @property
    def chosen_by_thesis(self) -> Trial:
        """The layout of the largest throughput that an inner program reported."""
        return max(self.trials, key=lambda trial: trial.throughput)


@dataclass(frozen=True)
class BayesianDivider:
    """The strategy; its plan has a valid bound, but the search itself proves nothing."""

    params: SearchParams = field(default_factory=SearchParams)
    name: str = NAME

    def plan(self, problem: PlanningProblem, progress: Progress = quiet) -> PlanningOutcome:
        """Search layouts and return the best as a plan, or say what stands in the way.

        Raises:
            InputError: the extra ``bayes`` is not installed, or the problem has what the thesis'
                planner does not know.
            SolverError: plans exist, but no layout was found that is one.
        """
        _require_known(problem)
        _require()
        started = time.perf_counter()
        limit = Deadline(problem.solver.time_limit)
        catalogue = build_catalogue(problem, progress, deadline=limit)
        answer = _infeasible(problem, catalogue)
        if answer is not None:
            return answer
        found = self.search(problem, progress, catalogue)
        best = found.best
        if best.theta <= 0:
            raise SolverError(
                f"{len(found.trials)} layouts were tried and none serves every range, although "
                "plans exist: choose strategy exact, or a longer timeLimitSeconds"
            )
        reason = "a search proves nothing" if found.complete else "time limit"
        layout = Layout(best.counts, self.name, _bound(found.program, problem), False, reason)
        missing = unservable(problem, catalogue)
        plan = assemble(problem, catalogue, found.program, layout, missing)
        _check_headroom(problem, plan.theta, plan.certificate.bound)
        return Planned(plan, time.perf_counter() - started)

    def search(
        self,
        problem: PlanningProblem,
        progress: Progress = quiet,
        catalogue: Catalogue | None = None,
    ) -> Search:
        """Try ``iterations * batch`` layouts, or what the time allows (one plan at least)."""
        _require()
        deadline = time.perf_counter() + problem.solver.time_limit
        catalogue = catalogue or build_catalogue(problem, progress)
        workshop = _Workshop.of(problem, catalogue)
        most = {
            pool.name: min(self.params.most_islands, pool.count // sizes[0]) if sizes else 0
            for pool, sizes in workshop.sizes
        }
        usable = {name: count for name, count in most.items() if count > 0}
        batch = self.params.batch
        outer = load_libraries()(usable, batch, problem.solver.seed)
        trials: list[Trial] = []
        if self.params.initial is not None:
            number = outer.suggest(self.params.initial)
            trials.append(workshop.judge(self.params.initial))
            outer.tell(number, trials[-1].throughput)
        rounds = self.params.iterations
        proposing = 0.0  # of the last batch [s]; it cannot be interrupted
        for iteration in range(rounds):
            asked = time.perf_counter()
            if iteration and asked + proposing > deadline:
                break
            progress("proposing layouts", iteration / rounds)
            proposals = outer.ask(batch)
            proposing = time.perf_counter() - asked
            for at, (number, divisions) in enumerate(proposals.items()):
                if _most(trials) > 0 and time.perf_counter() > deadline:
                    break
                share = (iteration + at / batch) / rounds
                progress(f"trying layouts, best {_most(trials):.4g}", share)
                trials.append(workshop.judge(divisions))
                outer.tell(number, trials[-1].throughput)
        complete = len(trials) >= rounds * batch
        return Search(catalogue, workshop.program, tuple(trials), complete)


def _most(trials: list[Trial]) -> float:
    return max((trial.theta for trial in trials), default=0.0)


def load_libraries() -> type[Outer]:
    """The outer loop; its import takes seconds, and speaks of its own dependencies' plans."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from archipelago.planner.strategies.outer import Outer  # noqa: PLC0415
    return Outer


def _require_known(problem: PlanningProblem) -> None:
    """Refuse what the divider and its inner program cannot say.

    Raises:
        InputError: the problem has such a thing; the ServingPlan's own rules say where.
    """
    unknown = {
        "mixed islands": any(model.phases != STAGES for model in problem.models),
        "islands of several pools": bool(problem.pipelines),
        "least cost": problem.minimise_cost,
        "domain classes": len({c for pool in problem.pools for c in classes_of(pool)}) > 1,
        "rentable GPUs": any(pool.max_count is not None for pool in problem.pools),
        "billing by the node": any(p.billing is Billing.PER_NODE for p in problem.pools),
    }
    asked = [name for name, present in unknown.items() if present]
    if asked:
        raise InputError(
            f"strategy bayesian-divider knows no {' and no '.join(asked)}: use strategy exact"
        )


def _require() -> None:
    """Find out before the work whether the extra is there.

    Raises:
        InputError: it is not.
    """
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise InputError(
            f"planner.strategy: {NAME} needs {', '.join(missing)}; install it with: "
            "pip install 'archipelago[bayes]', or choose exact"
        )


def _infeasible(problem: PlanningProblem, catalogue: Catalogue) -> Infeasible | None:
    """The exact strategy's answer where it proves that there is no plan."""
    lost = unservable(problem, catalogue)
    blocked = any(lost_too_much(item.share, problem.max_unservable) for item in lost)
    if not blocked:
        program = build_program(problem, catalogue.templates)
        asked = question(program, np.zeros(program.columns))
        asked.lower[THETA] = (problem.min_headroom or 0.0) / program.scale
        effort = Effort(problem.solver.gap, FEASIBILITY_SECONDS, problem.solver.seed)
        if solve(program, asked, effort) is not None:
            return None
    outcome = ExactStrategy().plan(problem)
    return outcome if isinstance(outcome, Infeasible) else None


def _bound(program: Program, problem: PlanningProblem) -> float:
    """Theta of the exact program's linear relaxation: no plan of these templates exceeds it."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    asked = replace(question(program, cost), integer=False)
    relaxed = solve(program, asked, Effort(0.0, math.inf, problem.solver.seed))
    if relaxed is None:
        raise SolverError("the relaxation has no solution although a plan was found: report this")
    return -relaxed.objective * program.scale


def _check_headroom(problem: PlanningProblem, theta: float, bound: float) -> None:
    if problem.min_headroom is not None and theta < problem.min_headroom:
        raise SolverError(
            f"the best layout found reaches headroom {theta:.4g}, less than minHeadroom "
            f"{problem.min_headroom:g}, but up to {bound:.4g} is not excluded: choose strategy "
            "exact, or a longer timeLimitSeconds"
        )


@dataclass(frozen=True, eq=False)
class _Workshop:
    """Everything that trials share, and what is known of layouts already seen.

    ``best[pool, size][job]`` is the template of that job, an index into the program's.
    """

    problem: PlanningProblem
    program: Program
    jobs: tuple[tuple[int, Phase], ...]  # (index into the demands, phase)
    best: dict[tuple[str, int], dict[int, int]]
    seen: dict[tuple[tuple[str, int], ...], Trial] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, problem: PlanningProblem, catalogue: Catalogue) -> _Workshop:
        program = build_program(problem, catalogue.templates)
        jobs = tuple((d, phase) for d in range(len(program.demands)) for phase in STAGES)
        best: dict[tuple[str, int], dict[int, int]] = {}
        for c, template in enumerate(program.templates):
            job = jobs.index((int(program.demand_of[c]), template.phase))
            rivals = best.setdefault((template.pool, template.gpus), {})
            if job not in rivals or _merit(program, c) > _merit(program, rivals[job]):
                rivals[job] = c
        return cls(problem, program, jobs, best)

    @property
    def sizes(self) -> list[tuple[Pool, list[int]]]:
        """Every pool with its island sizes that some template has; the first is I_min."""
        return [
            (pool, sorted(size for name, size in self.best if name == pool.name))
            for pool in self.problem.pools
        ]

    def judge(self, divisions: Mapping[str, Division]) -> Trial:
        """Divide, assign, and judge; equal layouts are judged once, as in section 4.8.3."""
        layout = tuple(
            (pool.name, size)
            for pool, sizes in self.sizes
            if pool.name in divisions
            for size in islands(pool, divisions[pool.name], sizes)
        )
        if layout not in self.seen:
            self.seen[layout] = self._trial(layout)
        return replace(self.seen[layout], seconds=time.perf_counter() - self.started)

    def _trial(self, layout: tuple[tuple[str, int], ...]) -> Trial:
        from archipelago.planner.strategies.inner_milp import (  # noqa: PLC0415  # loads pulp
            InnerParams,
            assign,
        )

        counts = np.zeros(len(self.program.templates), dtype=np.int64)
        fleet = self._fleet(layout)
        found = assign(fleet, InnerParams(seed=self.problem.solver.seed))
        if found is None:
            return Trial(counts)
        chosen = [
            None if job < 0 else self.best[kind][int(job)]
            for kind, job in zip(layout, found.job, strict=True)
        ]
        np.add.at(counts, [c for c in chosen if c is not None], 1)
        theta = _theta(self.program, counts, self.problem)
        if theta <= 0:  # some range without a probability has no island for its route
            return Trial(counts)
        routed = _theta_of_routes(self.program, self.problem, chosen, fleet, found)
        return Trial(counts, found.throughput, routed, theta)

    def _fleet(self, layout: tuple[tuple[str, int], ...]) -> Fleet:
        from archipelago.planner.strategies.inner_milp import Fleet  # noqa: PLC0415  # loads pulp

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
        return Fleet(
            tuple(kinds[kind] for kind in layout),
            rate,
            tuple(STAGES.index(phase) for _, phase in self.jobs),
            share / share.sum(),
            np.array([price[pool] * gpus for pool, gpus in layout]),
            None if budget is None else float(budget),
        )


def _rates(template: Template) -> FloatArray:
    """b_ij = 1 / A_ij [req/s]: an island's rate of range j alone; 0 where it cannot serve it."""
    slowest = template.rows.max(axis=0)
    able = template.servable & (slowest > 0)
    rates: FloatArray = np.where(able, 1.0 / np.where(able, slowest, 1.0), 0.0)
    return rates


def _merit(program: Program, c: int) -> tuple[float, float]:
    """How good a template is for its job: share of requests it can serve, then rate at the mix."""
    template, demand = program.templates[c], program.demands[int(program.demand_of[c])]
    mix = np.where(template.servable, demand.probability, 0.0)
    load = float((template.rows @ mix).max())
    return float(mix.sum()), 1.0 / load if load > 0 else 0.0


def _theta(program: Program, counts: NDArray[np.int64], problem: PlanningProblem) -> float:
    """The largest theta of given islands, by the exact program's rates; 0 where none serves."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    lower, upper = np.zeros(program.columns), np.full(program.columns, np.inf)
    lower[1 : 1 + len(counts)] = upper[1 : 1 + len(counts)] = counts
    upper[1 + len(counts) :][counts[program.pair_template] == 0] = 0.0
    asked = replace(question(program, cost), lower=lower, upper=upper, integer=False)
    found = solve(program.without_cover(), asked, Effort(0.0, math.inf, problem.solver.seed))
    return 0.0 if found is None else float(found.values[THETA]) * program.scale


def _theta_of_routes(
    program: Program,
    problem: PlanningProblem,
    chosen: list[int | None],
    fleet: Fleet,
    found: Assignment,
) -> float:
    """Theta when each range is shared between islands as the inner program did, evaluated.

    Island i takes x_ij b_ij / R_j of range j, whatever the deviations are: these are the routes
    that a router would be given, and the workload's mix is what then comes.
    """
    start = np.cumsum([0, *[len(d.probability) for d in program.demands]])
    models = {model.name: model for model in problem.models}
    work = []
    for i, c in enumerate(chosen):
        if c is None:
            continue
        d, template = int(program.demand_of[c]), program.templates[c]
        mine, job = slice(start[d], start[d + 1]), int(found.job[i])
        total = found.reached[fleet.phase_of[job], mine]
        done = fleet.rate[i, job, mine] * found.part[i, mine]
        share = np.divide(done, total, out=np.zeros_like(done), where=total > 0)
        demand = program.demands[d]
        work.append((template, models[template.model], share * demand.probability * demand.weight))
    loads = [float((template.rows @ unit).max()) for template, _, unit in work]
    if not loads or max(loads) <= 0 or (found.reached[:, fleet.share > 0] <= 0).any():
        return 0.0
    theta = 1.0 / max(loads)
    return theta * min(evaluate(t, demand, unit * theta).supported for t, demand, unit in work)
