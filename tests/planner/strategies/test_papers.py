"""Small worked examples of the literature that are linear programs, with the numbers they print.

Every number is found by the exact program over templates made of the paper's own figures; what is
written down here is only what the papers print.

* Jiang et al., *Demystifying cost-efficiency in LLM serving over heterogeneous GPUs* (ICML 2025),
  section 4.2 and appendix C: three kinds of GPU, two kinds of requests, makespan.
* Jiang et al., *ThunderServe* (MLSys 2025), section 5: replicas that fit 32 cloud GPUs. Its
  transport program (section 3.3) has no load rows and is printed without numbers.
* Rignall, *Scheduling heterogeneous GPUs* (2025), section 5.1: three inventories of equal price.
* DeepSeek's published day of serving (open-infra-index, 2025): nodes from tokens.

Hu et al. (*BestServe*) and Xiong et al. print no linear program with numbers.
"""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from scipy import sparse

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import (
    LinearObjective,
    Solution,
    SolverOptions,
    minimise,
    objective_of,
    solve,
)
from archipelago.planner.milp.variables import THETA, Program
from archipelago.planner.plan import Part
from archipelago.planner.problem import Phase, PlanningProblem, Pool
from archipelago.planner.search.portfolio import solve as search
from archipelago.planner.templates.template import Template
from benchmarks.instances import INSTANCES
from tests.support.planner.small import demand, template

pytestmark = pytest.mark.slow

EXACT = SolverOptions(1e-9, 60.0)
REQUESTS = 100.0
"""80 of the first kind and 20 of the second."""
RATES = {"t1": (1.0, 1.2), "t2": (0.9, 0.9), "t3": (0.3, 0.5), "t2 x 2": (2.4, 1.5)}
"""Requests per second of one replica on each kind of request; the last on two GPUs together."""


def optimum(program: Program, objective: LinearObjective) -> Solution:
    """The optimum, optimum directly; in whole numbers it is the same."""
    direct = solve(program, objective, EXACT)
    assert direct is not None
    if objective.integer:
        other = search(program, objective, EXACT)
        assert other is not None
        assert other.objective == pytest.approx(direct.objective, rel=1e-6)
    return direct


def theta(program: Program, problem: PlanningProblem) -> float:
    return float(optimum(program, objective_of(program, problem)).values[THETA]) * program.scale


def composition() -> tuple[PlanningProblem, Program]:
    """Two GPUs of each kind at $4, $2 and $2 an hour; $8 to spend."""
    pools = tuple(
        Pool(name, accelerator("H20"), 2, Decimal(price))
        for name, price in (("t1", 4), ("t2", 2), ("t3", 2))
    )
    problem = PlanningProblem(
        "composition", (demand(shares=(0.8, 0.2)),), pools, budget_per_hour=Decimal(8)
    )
    price = {pool.name: float(pool.price_per_gpu_hour) for pool in pools}
    cards = []
    for name, rates in RATES.items():
        pool, gpus = name[:2], 2 if "x" in name else 1
        card = template(pool, gpus, Phase.MIXED, [[1 / rate for rate in rates]])
        cards.append(replace(card, price=gpus * price[pool]))
    return problem, build_program(problem, tuple(cards))


def fixed(program: Program, counts: tuple[int, ...]) -> LinearObjective:
    """Largest theta of given islands."""
    cost = np.zeros(program.columns)
    cost[THETA] = -1.0
    objective = replace(minimise(program, cost), integer=False)
    objective.lower[1 : program.first_pair] = objective.upper[1 : program.first_pair] = counts
    return objective


def makespan(
    counts: tuple[int, ...], shares: dict[int, tuple[float, float]] | None = None
) -> float:
    """Seconds for all requests on given replicas, at given shares of each kind or at the best."""
    _, program = composition()
    objective = fixed(program, counts)
    program = program.without_cover()
    if shares is not None:
        program = assigned(program, shares)
    solution = optimum(program, objective)
    return REQUESTS / (float(solution.values[THETA]) * program.scale)


def assigned(program: Program, shares: dict[int, tuple[float, float]]) -> Program:
    """The program with one more row per y: y_cj = share_cj theta."""
    rows = np.zeros((len(program.pair_template), program.columns))
    pairs = zip(program.pair_template, program.pair_range, strict=True)
    for row, (c, j) in enumerate(pairs):
        rows[row, program.first_pair + row] = 1.0
        rows[row, THETA] = -shares.get(int(c), (0.0, 0.0))[int(j)]
    zeros = np.zeros(len(rows))
    return replace(
        program,
        matrix=sparse.csr_array(sparse.vstack([program.matrix, sparse.csr_array(rows)])),
        lower=np.concatenate([program.lower, zeros]),
        upper=np.concatenate([program.upper, zeros]),
    )


def in_proportion(counts: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """Each kind of request is shared in proportion to the replicas' rates, as in cases 1 and 2."""
    rates = np.array(list(RATES.values())) * np.array(counts)[:, np.newaxis]
    return {c: (float(a), float(b)) for c, (a, b) in enumerate(rates / rates.sum(axis=0))}


@pytest.mark.parametrize(
    ("counts", "seconds"), [((1, 1, 1, 0), 44.06), ((1, 2, 0, 0), 35.24), ((1, 0, 0, 1), 30.94)]
)
def test_makespan_of_compositions_equals_the_papers(
    counts: tuple[int, ...], seconds: float
) -> None:
    """Jiang et al., cases 1 and 2; the paper cuts the first off at 44.05.

    By hand 80 / 2.2 + 20 / 2.6, then 80 / 2.8 + 20 / 3.0, then 80 / 3.4 + 20 / 2.7.
    """
    assert makespan(counts, in_proportion(counts)) == pytest.approx(seconds, abs=0.005)


def test_makespan_of_an_assignment_equals_the_papers() -> None:
    """Case 3: 15 % and all of the second kind on t1: max(68 / 2.4, 12 / 1 + 20 / 1.2)."""
    shares = {0: (0.15, 1.0), 3: (0.85, 0.0)}
    assert makespan((1, 0, 0, 1), shares) == pytest.approx(28.67, abs=0.005)


def test_best_assignment_has_a_shorter_makespan_than_the_papers() -> None:
    """80 a + 20 / 1.2 = 80 (1 - a) / 2.4 at a = 0.147: 28.43 s."""
    assert makespan((1, 0, 0, 1)) == pytest.approx(28.43, abs=0.005)


def test_program_chooses_composition_configuration_and_assignment_together() -> None:
    """For $8: one t1 and two t2 as one replica, and the same 28.43 s."""
    problem, program = composition()
    solution = optimum(program, objective_of(program, problem))
    assert np.rint(solution.values[1 : program.first_pair]).tolist() == [1, 0, 0, 1]
    assert REQUESTS / theta(program, problem) == pytest.approx(28.43, abs=0.005)


def test_sixty_dollars_rent_twenty_h100() -> None:
    """Jiang et al., section 5.1: 60 / 2.99 per H100."""
    pool = Pool("h100", accelerator("H100"), 100, Decimal("2.99"))
    problem = PlanningProblem("rent", (demand(),), (pool,), budget_per_hour=Decimal(60))
    card = replace(template("h100", 1, Phase.MIXED, [[1.0, 1.0]]), price=2.99)
    assert theta(build_program(problem, (card,)), problem) == pytest.approx(20.0)


def replicas(pools: tuple[Pool, ...], cards: list[Template]) -> tuple[PlanningProblem, Program]:
    """Where each replica serves one request per second, theta counts them."""
    problem = PlanningProblem("replicas", (demand(),), pools)
    return problem, build_program(problem, tuple(cards))


def replica(pool: str, gpus: int, parts: tuple[Part, ...] = ()) -> Template:
    return replace(template(pool, gpus, Phase.MIXED, [[1.0, 1.0]]), parts=parts)


def cloud() -> tuple[PlanningProblem, Program]:
    """ThunderServe's 32 GPUs: 48 GB cards hold LLaMA-30B by two, 24 GB cards by four."""
    types = (("3090ti", 8, 4), ("a40", 8, 8), ("a5000", 8, 4), ("a6000", 8, 4))
    pools = tuple(Pool(n, accelerator("A40"), count, Decimal(0), node) for n, count, node in types)
    across = (Part("a5000", 2, 30), Part("3090ti", 2, 30))
    return replicas(
        pools,
        [
            replica("3090ti", 4),
            replica("a40", 2),
            replica("a5000", 4),
            replica("a5000+3090ti", 4, across),
            replica("a6000", 2),
        ],
    )


def test_thirty_two_cloud_gpus_hold_twelve_replicas() -> None:
    """ThunderServe, section 5.3: at most 12 replicas."""
    problem, program = cloud()
    assert theta(program, problem) == pytest.approx(12.0)


def test_the_deployment_of_table_3_fits_and_has_twelve() -> None:
    """Coding: 1 on 3090Ti, 4 on A40, 1 on A5000, 2 across, 4 on A6000; one more fits nowhere."""
    _, program = cloud()
    counts = (1, 4, 1, 2, 4)
    solution = optimum(program, fixed(program, counts))
    assert float(solution.values[THETA]) * program.scale == pytest.approx(12.0)
    for more in range(len(counts)):
        beyond = tuple(n + (c == more) for c, n in enumerate(counts))
        assert solve(program, fixed(program, beyond), EXACT) is None


def test_eight_a100_hold_four_and_cost_as_printed() -> None:
    """ThunderServe: 4 replicas of two in the in-house server; renting it costs $14.024 an hour."""
    pool = Pool("a100", accelerator("A100-80GB"), 8, Decimal("1.753"), 8)
    card = replace(replica("a100", 2), price=2 * 1.753)
    problem, program = replicas((pool,), [card])
    solution = optimum(program, objective_of(program, problem))
    assert float(solution.values[THETA]) * program.scale == pytest.approx(4.0)
    assert float(program.price @ solution.values) == pytest.approx(14.024)


@pytest.mark.parametrize("letter", ["a", "b", "c"])
def test_the_three_inventories_of_the_thesis_cost_the_same(letter: str) -> None:
    """Table 5.1: $512 an hour at $4, $2 and $1 for H200, H800 and H20."""
    instance = next(i for i in INSTANCES if i.name == f"thesis-{letter}-code")
    problem = instance.build()
    assert sum(pool.count * pool.price_per_gpu_hour for pool in problem.pools) == 512
    assert problem.budget_per_hour == 512


DAY = 86_400.0
NODE = 8


def deepseek(prefill_nodes: int, decode_nodes: int) -> tuple[PlanningProblem, Program]:
    """608 B input and 168 B output tokens a day at 73,700 and 14,800 tokens/s of a node.

    As requests of 4,000 input tokens: 1,759 a second. Nodes of 8 GPUs at $2 a GPU.
    """
    model = demand(shares=(1.0,), rate=608e9 / DAY / 4000)
    output = 168e9 / 608e9 * 4000
    pools = tuple(
        Pool(name, accelerator("H800"), 40 * unit * NODE, Decimal(2), NODE, (), (unit * NODE,))
        for name, unit in (("decode", decode_nodes), ("prefill", prefill_nodes))
    )
    problem = PlanningProblem("day", (model,), pools, min_headroom=1.0, minimise_cost=True)
    cards = (
        template("prefill", prefill_nodes * NODE, Phase.PREFILL, [[4000 / 73_700 / prefill_nodes]]),
        template("decode", decode_nodes * NODE, Phase.DECODE, [[output / 14_800 / decode_nodes]]),
    )
    priced = tuple(replace(card, price=2.0 * card.gpus) for card in cards)
    return problem, build_program(problem, priced)


def nodes(program: Program, values: np.ndarray) -> list[float]:
    gpus = np.array([card.gpus for card in program.templates])
    return list(values[1 : program.first_pair] * gpus / NODE)


def test_nodes_and_cost_of_deepseeks_day_equal_the_published_figures() -> None:
    """7,037,037 / 73,700 = 95.48 and 1,944,444 / 14,800 = 131.38 nodes: $87,116 a day."""
    problem, program = deepseek(4, 18)
    objective = replace(objective_of(program, problem), integer=False)
    relaxed = solve(program.without_cover(), objective, EXACT)
    assert relaxed is not None
    assert nodes(program, relaxed.values) == pytest.approx([95.48, 131.38], abs=0.005)
    assert 24 * relaxed.objective == pytest.approx(87_116, abs=0.5)


def test_deepseeks_day_in_units_of_four_and_eighteen_nodes() -> None:
    """Its own deployment units: 24 of prefill and 8 of decode, 96 + 144 = 240 nodes."""
    problem, program = deepseek(4, 18)
    solution = optimum(program, objective_of(program, problem))
    assert nodes(program, solution.values) == pytest.approx([96, 144])
