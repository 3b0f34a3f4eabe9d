"""Tables of standing islands whose headroom is computed on paper, for the tests of re-planning.

One model with requests of 50 and 150 tokens and 10 tokens of output (``small.demand``). Islands are
single GPUs; a row of 0.1 s per request means 10 req/s. True step times (``Affine``) leave room far
beyond these rows, so that the rows decide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.plan import Certificate, Group, Island, Pair, Plan, Route
from archipelago.planner.problem import Objective, Phase, PlanningProblem
from archipelago.planner.replan.deployed import DeployedIslands
from archipelago.planner.templates.template import Template
from tests.support.planner import small

P, D = Phase.PREFILL, Phase.DECODE
PAIR = {("p", "d"): 1_000_000}


def problem(
    rate: float = 10.0, shares: tuple[float, ...] = (0.5, 0.5), pools: Sequence[str] = ("a",)
) -> PlanningProblem:
    """The observed demand [req/s], its share of each range."""
    return small.problem(dict.fromkeys(pools, 16), (small.demand(shares=shares, rate=rate),))


def template(pool: str, phase: Phase, *seconds: float) -> Template:
    """A template of one GPU with one row: seconds of an island per request of each range."""
    return small.template(pool, 1, phase, [list(seconds)])


def plan(
    groups: Mapping[str, tuple[str, Phase, int]],
    routes: Sequence[Mapping[tuple[str, str], int]] = (PAIR, PAIR),
) -> Plan:
    """Groups (pool, phase, islands) by name, and the weights of the pairs of each range."""
    named = tuple(
        Group(name, "m", pool, phase, 1, Parallelism(), 64, count, (0.0,) * len(routes), 0.0, "")
        for name, (pool, phase, count) in groups.items()
    )
    return Plan(
        name="paper",
        strategy="exact",
        performance_model="affine",
        objective=Objective.HEADROOM,
        theta=1.0,
        throughput=1.0,
        certificate=Certificate(1.0, 0.0, complete=True),
        cost_per_hour=small.problem({"a": 1}).pools[0].price_per_gpu_hour,
        groups=named,
        islands=tuple(
            Island(f"{name}-{i}", name)
            for name, (_, _, count) in groups.items()
            for i in range(count)
        ),
        routes=tuple(
            Route("m", small.demand(shares=(1 / len(routes),) * len(routes)).ranges[j], 0.5, pairs)
            for j, pairs in enumerate(
                tuple(Pair(*names, weight) for names, weight in route.items()) for route in routes
            )
        ),
        unservable=(),
        exclusions=(),
    )


TWO_POOLS = {"slow": ("a", P, 1), "fast": ("b", P, 1), "d": ("a", D, 1)}
HALVES = {("slow", "d"): 500_000, ("fast", "d"): 500_000}


def two_pools(rate: float = 15.0) -> DeployedIslands:
    """Prefill at 10 req/s on pool a and 20 req/s on b, half of the requests each; decode at 100.

    At 15 req/s the slow island is busy 0.75 of the time, the fast one 0.375: h = 4 / 3. With a
    third and two thirds both are busy 0.5: h = 2.
    """
    templates = (template("a", P, 0.1, 0.1), template("a", D, 0.01, 0.01))
    fast = template("b", P, 0.05, 0.05)
    return DeployedIslands(
        problem(rate, pools=("a", "b")), plan(TWO_POOLS, (HALVES, HALVES)), (*templates, fast)
    )


def one_and_three(rate: float = 10.0) -> DeployedIslands:
    """One prefill island at 10 req/s and three decode islands at 20 req/s each, of one body.

    At 10 req/s h = 1: prefill is busy all the time, decode 1/6. With two and two h = 2 (decode 4);
    with three and one h = 2 as well, for then decode binds.
    """
    templates = template("a", P, 0.1, 0.1), template("a", D, 0.05, 0.05)
    return DeployedIslands(problem(rate), plan({"p": ("a", P, 1), "d": ("a", D, 3)}), templates)


def at(standing: DeployedIslands, rate: float) -> DeployedIslands:
    """The same table under another rate [req/s]."""
    model = replace(standing.problem.models[0], rate=rate)
    return replace(standing, problem=replace(standing.problem, models=(model,)))


def draws(rate: float, spread: float, count: int = 200, seed: int = 0) -> FloatArray:
    """Rates of both ranges, off by a normal factor of this standard deviation."""
    random = np.random.default_rng(seed)
    return np.asarray(rate / 2 * (1 + spread * random.standard_normal((count, 2))))
