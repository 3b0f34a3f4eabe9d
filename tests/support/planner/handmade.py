"""A plan small enough to check on paper, shared by the tests of documents, tables and checker.

One model with requests of 50 and 150 tokens, half of each, and 10 tokens of output; the affine
model of times takes 1 ms per prompt token and 10 ms + 1 ms B + 1 us K per decode step. At
theta = 8 req/s:

prefill  short-prefill  4 req/s of 0.05 s on 2 islands: each busy 4 * 0.05 / 2 = 0.1 of the time
         long-prefill   4 req/s of 0.15 s on 1 island:  busy 0.6
decode   with k = l + o / 2 = 55 and 155 tokens of mean context and S = sum lambda o (b + c k):
         main-decode    3 short and 4 long req/s: L = 70 token/s, M = 3*550 + 4*1550 = 7850
                        S = 0.07 + 0.00785 = 0.07785, tau = 0.01 / (1 - S)
         spare-decode   1 short req/s: L = 10, M = 550, S = 0.01055
         batch row of 64: (0.01 L + 64 S) / 64 = 0.0887875 and 0.0121125
"""

from decimal import Decimal

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.workload.lengths import Range
from archipelago.planner.plan import (
    Certificate,
    Exclusion,
    Group,
    Island,
    Pair,
    Plan,
    Planned,
    Route,
)
from archipelago.planner.problem import Domain, Objective, Phase, PlanningProblem, Pool
from archipelago.planner.servingplan import ServingPlanResource, load_resource
from tests.support.planner.affine import Affine
from tests.support.planner.small import demand

SHORT, LONG = Range(0, 100), Range(100, 200)
TAU_MAIN, TAU_SPARE = 0.01 / (1 - 0.07785), 0.01 / (1 - 0.01055)

POOLS = (
    Pool("a", accelerator("H20"), 16, Decimal(1), 8, (Domain("rack-0", 1), Domain("rack-1", 1))),
    Pool("b", accelerator("L40S"), 4, Decimal(2)),
)


def problem(**changes: object) -> PlanningProblem:
    index = {"budget_per_hour": Decimal(24), **changes}
    return PlanningProblem("paper", (demand(),), POOLS, **index)  # type: ignore[arg-type]


def build(*_island: object) -> Affine:
    return Affine()


GROUPS = (
    Group(
        "short-prefill",
        "m",
        "a",
        Phase.PREFILL,
        4,
        Parallelism(tp=4),
        1,
        2,
        (4.0, 0.0),
        0.1,
        "time",
    ),
    Group(
        "long-prefill", "m", "b", Phase.PREFILL, 2, Parallelism(pp=2), 1, 1, (0.0, 4.0), 0.6, "time"
    ),
    Group(
        "main-decode",
        "m",
        "a",
        Phase.DECODE,
        8,
        Parallelism(tp=8),
        64,
        1,
        (3.0, 4.0),
        0.0887875,
        "batch",
        TAU_MAIN,
        70 * TAU_MAIN,
        7850 * TAU_MAIN,
        100_000,
    ),
    Group(
        "spare-decode",
        "m",
        "b",
        Phase.DECODE,
        2,
        Parallelism(tp=2),
        64,
        1,
        (1.0, 0.0),
        0.0121125,
        "batch",
        TAU_SPARE,
        10 * TAU_SPARE,
        550 * TAU_SPARE,
        100_000,
    ),
)

PLAN = Plan(
    name="paper",
    strategy="exact",
    performance_model="affine",
    objective=Objective.THROUGHPUT,
    theta=8.0,
    throughput=8.0,
    certificate=Certificate(8.004, 0.004 / 8.004, complete=True),
    cost_per_hour=Decimal(24),  # 16 GPUs at $1 and 4 at $2
    groups=GROUPS,
    islands=(
        Island("short-prefill-0", "short-prefill", ("a-rack-0-0",)),
        Island("short-prefill-1", "short-prefill", ("a-rack-0-0",)),
        Island("long-prefill-0", "long-prefill"),
        Island("main-decode-0", "main-decode", ("a-rack-1-0",)),
        Island("spare-decode-0", "spare-decode"),
    ),
    routes=(
        Route(
            "m",
            SHORT,
            0.5,
            (
                Pair("short-prefill", "main-decode", 750_000),
                Pair("short-prefill", "spare-decode", 250_000),
            ),
        ),
        Route("m", LONG, 0.5, (Pair("long-prefill", "main-decode", 1_000_000),)),
    ),
    unservable=(),
    exclusions=(Exclusion("m/b/x1/decode/tp1", "weights need 16.1 GB, one GPU has 15.0 GB"),),
)
PLANNED = Planned(PLAN, seconds=0.123456)


def resource() -> ServingPlanResource:
    """A ServingPlan with the same names; its lengths are not those of the affine plan."""
    bins = [{"min": 0, "max": 100, "weight": 1}, {"min": 100, "max": 200, "weight": 1}]
    pool_a = {
        "name": "a",
        "accelerator": "H20",
        "count": 16,
        "gpusPerNode": 8,
        "pricePerGPUHour": "1",
        "domains": [{"name": "rack-1", "nodes": 1}, {"name": "rack-0", "nodes": 1}],
    }
    pool_b = {"name": "b", "accelerator": "L40S", "count": 4, "pricePerGPUHour": "2"}
    workload = {
        "histogram": {"bins": bins},
        "outputTokens": {"mean": "10"},
        "ranges": {"count": 2, "spacing": "Width"},
    }
    return load_resource(
        {
            "apiVersion": "archipelago.dev/v1alpha1",
            "kind": "ServingPlan",
            "metadata": {"name": "paper"},
            "spec": {
                "models": [{"name": "m", "architecture": "Llama-3.1-8B", "workload": workload}],
                "pools": [pool_b, pool_a],
                "budgetPerHour": "24",
                "routing": {"affinityKey": "x-session-id"},
            },
        }
    )
