"""A plan with every kind of island, small enough to check on paper; shared by the tests of output.

Pool a: 2 nodes of 8 GPUs and one more that may be rented, at $1, paid by the node, class "fast".
Pool b: 4 single GPUs at $2. The cost objective at 1.5 times the stated 4 req/s:

    mixed     2 islands of 4 GPUs of a, both on node a-0
    prefill   1 island of 2 GPUs of a (on a-0 is no room: on a-1) and 1 of b: a pipeline
    decode    1 island of 8 GPUs of a on the rented node

a: 2 * 4 + 2 + 8 = 18 GPUs in use of 3 nodes: 24 GPUs are paid. b: 1 GPU of $2. Cost 26 $/h.
"""

from dataclasses import replace
from decimal import Decimal

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.plan import Certificate, Changes, Group, Island, Pair, Part, Route
from archipelago.planner.problem import Billing, Domain, Objective, Phase, PlanningProblem
from tests.support.planner.handmade import LONG, PLAN, POOLS, SHORT
from tests.support.planner.small import demand

A = replace(
    POOLS[0], domains=(Domain("rack-0", 2, "fast"),), max_count=24, billing=Billing.PER_NODE
)
PROBLEM = PlanningProblem(
    "kinds",
    (demand(rate=4.0, phases=tuple(Phase)),),
    (A, POOLS[1]),
    min_headroom=1.5,
    minimise_cost=True,
    pipelines=(("a", "b"),),
)
GROUPS = (
    Group(
        "m-a-4g-mixed", "m", "a", Phase.MIXED, 4, Parallelism(tp=4), 32, 2, (3.0, 1.0), 0.5,
        "time", 0.02, 1.0, 80.0, 1000, "fast",
    ),
    Group(
        "m-a-2g-b-1g-prefill", "m", "a+b", Phase.PREFILL, 3, Parallelism(tp=1, pp=3), 1, 1,
        (0.0, 2.0), 0.9, "network", domain_class="fast",
        parts=(Part("a", 2, 22), Part("b", 1, 10)),
    ),
    Group(
        "m-a-8g-decode", "m", "a", Phase.DECODE, 8, Parallelism(tp=8), 64, 1, (0.0, 2.0), 0.25,
        "batch", 0.01, 1.0, 155.0, 1000, "fast",
    ),
)  # fmt: skip
KINDS = replace(
    PLAN,
    name="kinds",
    objective=Objective.COST,
    theta=1.5,
    throughput=6.0,
    certificate=Certificate(25.0, 1 / 26, complete=True),
    cost_per_hour=Decimal(26),
    groups=GROUPS,
    islands=(
        Island("m-a-4g-mixed-0", "m-a-4g-mixed", ("a-rack-0-0",)),
        Island("m-a-4g-mixed-1", "m-a-4g-mixed", ("a-rack-0-0",)),
        Island("m-a-2g-b-1g-prefill-0", "m-a-2g-b-1g-prefill", ("a-rack-0-1",)),
        Island("m-a-8g-decode-0", "m-a-8g-decode", ("a-rented-0",)),
    ),
    routes=(
        Route("m", SHORT, 0.5, (Pair("m-a-4g-mixed", "m-a-4g-mixed", 1_000_000),)),
        Route(
            "m",
            LONG,
            0.5,
            (
                Pair("m-a-2g-b-1g-prefill", "m-a-8g-decode", 666_667),
                Pair("m-a-4g-mixed", "m-a-4g-mixed", 333_333),
            ),
        ),
    ),
    rented=(("a", 8),),
    changes=Changes(
        ("m-a-4g-mixed-0", "m-a-4g-mixed-1"),
        ("m-a-8g-decode-0",),
        ("old\x1b[2J-0",),
        ("m-a-2g-b-1g-prefill-0",),
        11,
    ),
)
