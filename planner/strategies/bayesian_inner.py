"""The inner program of the thesis: the job of each island, and its share of each range.

Rignall (2025), section 4.8.1, in PuLP with HiGHS, with the thesis' letters. A *job* is a (model,
phase); with one model there are two, and z of decode is the thesis' z_i. Differences, none of which
changes the optimum:

* ``x_prefill,ij <= 1 - z_i`` and ``x_decode,ij <= z_i`` are summed over j, where they are equal to
  the row ``sum_j x = 1`` and tighter;
* the binaries of equal islands (one pool, one size) are one integer, their sum, and their x one x:
  an assignment of the named islands sums to one of these, and one of these is split evenly;
* an (island, range) pair that cannot be served has no x, and a range of probability 0 no rows;
* several models: j runs over all (model, range), p_j is the share of all requests;
* a budget, which the thesis does not have: islands can be idle, and the others cost at most that.

The thesis states neither M nor tau; docs/designs/0002-bayesian-divider.md explains our values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pulp
from numpy.typing import NDArray

from archipelago.perfmodel.model import FloatArray


@dataclass(frozen=True)
class InnerParams:
    """Parameters of the inner program.

    ``weight`` is M, without unit; ``tolerance`` is tau, without unit; ``floor`` is epsilon [req/s].
    ``gap`` and ``seconds`` end a solve. The latter depends on the machine and is rarely reached;
    nodes cannot be limited, since PuLP's HiGHS reports that as an error.
    """

    weight: float = 1.0
    tolerance: float = 0.05
    floor: float = 0.01
    gap: float = 5e-3
    seconds: float = 10.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class InnerProblem:
    """Islands and their rates in every job.

    ``kind``, (islands,): equal numbers for islands of one pool and size.
    ``rate``, (islands, jobs, ranges): b_ij of the job [req/s], 0 where it cannot be done; ranges
    are those of all models after one another. ``phase_of``, (jobs,): 0 prefill, 1 decode.
    ``share``, (ranges,): p_j, of all requests. ``price``, (islands,) [$/h].
    """

    kind: tuple[int, ...]
    rate: FloatArray
    phase_of: tuple[int, ...]
    share: FloatArray
    price: FloatArray
    budget: float | None = None


@dataclass(frozen=True, eq=False)
class Assignment:
    """The solution of the inner program.

    ``job``, (islands,): index of the island's job, -1 for idle. ``part``, (islands, ranges): x, the
    fraction of the island's time for a range. ``rates``, (2, ranges): R_j of prefill and decode
    [req/s].
    """

    job: NDArray[np.int64]
    part: FloatArray
    rates: FloatArray

    @property
    def throughput(self) -> float:
        """The thesis' objective: the smaller of R_prefill and R_decode [req/s]."""
        return float(self.rates.sum(axis=1).min())


@dataclass(frozen=True, eq=False)
class _Variables:
    """``members``: the equal islands of each kind, in the order of the inner."""

    members: list[list[int]]
    z: dict[tuple[int, int], pulp.LpVariable]  # (kind, job) -> islands of the kind that do it
    x: dict[tuple[int, int, int], pulp.LpVariable]  # (kind, job, range) -> of their time together

    def first(self, kind: int) -> int:
        """Return the first island of a kind; all of them are equal."""
        return self.members[kind][0]


def assign(inner: InnerProblem, params: InnerParams) -> Assignment | None:
    """Solve the inner program; None if it has no solution within the limits."""
    if not len(inner.kind):
        return None
    program = pulp.LpProblem("inner", pulp.LpMaximize)
    variables = _variables(program, inner)
    _one_job_each(program, inner, variables)
    rates = _phase_rates(inner, variables)
    deviations, total = _deviations(program, inner, rates, params)
    weights = params.weight / (1.0 + inner.share)
    penalty = pulp.lpSum(float(weights[j]) * d for j, d in deviations)
    program.setObjective(pulp.lpSum(total) - penalty)
    program.solve(
        pulp.HiGHS(
            msg=False,
            gapRel=params.gap,
            timeLimit=params.seconds,
            threads=1,
            parallel="off",
            random_seed=params.seed,
        )
    )
    solved = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return _read(inner, variables) if program.sol_status in solved else None


def _variables(program: pulp.LpProblem, inner: InnerProblem) -> _Variables:
    members = [
        [i for i, k in enumerate(inner.kind) if k == kind] for kind in dict.fromkeys(inner.kind)
    ]
    able = np.argwhere((inner.rate[[m[0] for m in members]] > 0) & (inner.share > 0))
    x = {(i, k, j): program.add_variable(f"x_{i}_{k}_{j}", 0) for i, k, j in able.tolist()}
    jobs = sorted({(i, k) for i, k, _ in x})
    z = {
        (i, k): program.add_variable(f"z_{i}_{k}", 0, len(members[i]), pulp.LpInteger)
        for i, k in jobs
    }
    return _Variables(members, z, x)


def _one_job_each(program: pulp.LpProblem, inner: InnerProblem, variables: _Variables) -> None:
    """Add constraints 1 and 2: all of an island's time is for the ranges of its one job."""
    parts: dict[tuple[int, int], list[pulp.LpVariable]] = {job: [] for job in variables.z}
    for (i, k, _), x in variables.x.items():
        parts[i, k].append(x)
    for job, z in variables.z.items():
        program += pulp.lpSum(parts[job]) == z
    jobs = range(inner.rate.shape[1])
    for i, equals in enumerate(variables.members):
        islands = pulp.lpSum(variables.z[i, k] for k in jobs if (i, k) in variables.z)
        count = len(equals)
        program += (islands == count) if inner.budget is None else (islands <= count)
    if inner.budget is not None:
        cost = pulp.lpSum(
            float(inner.price[variables.first(i)]) * z for (i, _), z in variables.z.items()
        )
        program += cost <= inner.budget


def _phase_rates(
    inner: InnerProblem, variables: _Variables
) -> list[dict[int, pulp.LpAffineExpression]]:
    """Return R_j of both phases, for ranges of positive probability."""
    terms: list[dict[int, list[tuple[pulp.LpVariable, float]]]] = [
        {int(j): [] for j in np.flatnonzero(inner.share > 0)} for _ in range(2)
    ]
    for (i, k, j), x in variables.x.items():
        terms[inner.phase_of[k]][j].append((x, float(inner.rate[variables.first(i), k, j])))
    return [{j: pulp.LpAffineExpression(t) for j, t in phase.items()} for phase in terms]


def _deviations(
    program: pulp.LpProblem,
    inner: InnerProblem,
    rates: Sequence[dict[int, pulp.LpAffineExpression]],
    params: InnerParams,
) -> tuple[list[tuple[int, pulp.LpVariable]], list[pulp.LpVariable]]:
    """Add constraints 3 to 6; return every delta with its range, and R_prefill and R_decode."""
    deltas: list[tuple[int, pulp.LpVariable]] = []
    totals = []
    for phase, name in enumerate(("prefill", "decode")):
        total = program.add_variable(f"R_{name}", params.floor)
        program += pulp.lpSum(rates[phase].values()) == total
        totals.append(total)
        for j, rate in rates[phase].items():
            p = float(inner.share[j])
            delta = program.add_variable(f"delta_{name}_{j}", 0)
            program += rate - p * total <= delta
            program += p * total - rate <= delta
            program += delta <= params.tolerance * p * total
            deltas.append((j, delta))
    for j in rates[0]:
        delta = program.add_variable(f"delta_match_{j}", 0)
        program += rates[1][j] - rates[0][j] <= delta
        program += rates[0][j] - rates[1][j] <= delta
        deltas.append((j, delta))
    return deltas, totals


def _read(inner: InnerProblem, variables: _Variables) -> Assignment:
    """Read the solution by island: those of one kind and job divide their time evenly."""
    islands, _, ranges = inner.rate.shape
    job = np.full(islands, -1, dtype=np.int64)
    part, rates = np.zeros((islands, ranges)), np.zeros((2, ranges))
    unassigned = [iter(equals) for equals in variables.members]
    for (i, k), z in variables.z.items():
        mine = list(islice(unassigned[i], round(z.value())))
        job[mine] = k
        for j in range(ranges):
            x = variables.x.get((i, k, j))
            if mine and x is not None:
                part[mine, j] = max(0.0, x.value()) / len(mine)
                rates[inner.phase_of[k], j] += inner.rate[mine[0], k, j] * max(0.0, x.value())
    return Assignment(job, part, rates)
