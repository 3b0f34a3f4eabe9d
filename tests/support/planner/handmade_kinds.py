"""Plans on paper for every kind of island and objective, each the plan of ``handmade`` changed.

Requests, times and rates are those of ``handmade`` (theta = 8 req/s, 4 short and 4 long).

mixed      ``short-mixed`` serves short requests whole: u = 4 * 0.05 = 0.2, L = 40 token/s,
           M = 4 * 550 = 2200, S = 0.0422, tau = 0.01 / (1 - u - S); batch row
           0.01 * 40 / 64 + u + S = 0.24845. ``main-decode`` is left with the long ones: L = 40,
           M = 6200, S = 0.0462, tau = 0.01 / (1 - S), batch row 0.05245.
classes    rack-0 is of class east, rack-1 of west; caches of 5 and 15 MB flow
           east -> west     3 req/s * 5 MB              = 15 MB/s
           default -> west  4 req/s * 15 MB             = 60 MB/s
           east -> default  1 req/s * 5 MB              =  5 MB/s
           and NICs of 100 MB/s per GPU: ``main-decode`` takes in 75 of its 800 MB/s = 0.09375.
pipeline   ``long-prefill`` has two stages of two GPUs on ``a`` and one on ``b``, tp2-pp3;
           ``short-prefill`` has one island instead of two: busy 0.2.
rented     half of ``a`` is rented, each node is paid for as a whole; one island of
           ``short-prefill``, so that 4 GPUs of 16 stand idle and are paid for: $24.
cost       the rate is stated, 8 req/s, and theta = 1 is reached at $24 of at least $23.99.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.planner.plan import Certificate, Changes, Group, Island, Pair, Part, Plan, Route
from archipelago.planner.problem import (
    STAGES,
    Billing,
    Domain,
    Link,
    Objective,
    Phase,
    Pool,
    RunningIsland,
)
from tests.support.planner.handmade import GROUPS, PLAN, POOLS, SHORT, problem
from tests.support.planner.small import demand

SHORT_PREFILL, LONG_PREFILL, MAIN, SPARE = GROUPS
ALL_PHASES = (*STAGES, Phase.MIXED)
TAU_MIXED, TAU_LONG = 0.01 / (1 - 0.2 - 0.0422), 0.01 / (1 - 0.0462)


def altered(plan: Plan, name: str, /, **changes: Any) -> Plan:  # noqa: ANN401
    """The plan with one group or island changed, by its name."""
    groups = tuple(replace(g, **changes) if g.name == name else g for g in plan.groups)
    islands = tuple(replace(i, **changes) if i.name == name else i for i in plan.islands)
    known = any(g.name == name for g in plan.groups)
    return replace(plan, groups=groups) if known else replace(plan, islands=islands)


def pools(**changes: dict[str, Any]) -> tuple[Pool, ...]:
    """The two pools with fields changed, by the pool's name."""
    return tuple(replace(pool, **changes.get(pool.name, {})) for pool in POOLS)


ONE_SHORT = replace(SHORT_PREFILL, islands=1, utilisation=0.2)
"""``short-prefill`` with one island: 4 req/s of 0.05 s."""

MIXED_PROBLEM = replace(problem(), models=(demand(phases=ALL_PHASES),))
MIXED = replace(
    PLAN,
    cost_per_hour=Decimal(20),  # 16 GPUs at $1 and 2 at $2
    groups=(
        Group(
            "short-mixed", "m", "a", Phase.MIXED, 8, Parallelism(tp=8), 64, 1, (4.0, 0.0),
            0.24845, "batch", TAU_MIXED, 40 * TAU_MIXED, 2200 * TAU_MIXED, 100_000,
        ),
        LONG_PREFILL,
        replace(
            MAIN, rates=(0.0, 4.0), utilisation=0.05245, step_time=TAU_LONG,
            sequences=40 * TAU_LONG, kv_tokens=6200 * TAU_LONG,
        ),
    ),
    islands=(
        Island("short-mixed-0", "short-mixed", ("a-rack-0-0",)),
        Island("long-prefill-0", "long-prefill"),
        Island("main-decode-0", "main-decode", ("a-rack-1-0",)),
    ),
    routes=(
        Route("m", SHORT, 0.5, (Pair("short-mixed", "short-mixed", 1_000_000),)),
        PLAN.routes[1],
    ),
)  # fmt: skip

CLASSES_A: dict[str, Any] = {
    "domains": (Domain("rack-0", 1, "east"), Domain("rack-1", 1, "west")),
    "nic_per_gpu": 1e8,
}
LINKS = (
    Link(("default", "east"), 5e6),
    Link(("default", "west"), 1e8),
    Link(("east", "west"), 2e7),
)
CLASSES_PROBLEM = replace(problem(links=LINKS), pools=pools(a=CLASSES_A))
CLASSES = replace(
    PLAN,
    groups=(
        replace(SHORT_PREFILL, domain_class="east"),
        LONG_PREFILL,
        replace(MAIN, domain_class="west", utilisation=0.09375, binding="network"),
        SPARE,
    ),
)

PIPELINE_PROBLEM = problem(pipelines=(("a", "b"),))
PIPELINE = replace(
    PLAN,
    groups=(
        ONE_SHORT,
        replace(
            LONG_PREFILL, pool="a+b", gpus=6, parallelism=Parallelism(tp=2, pp=3),
            parts=(Part("a", 4, 24), Part("b", 2, 8)),
        ),
        MAIN,
        SPARE,
    ),
    islands=(
        Island("short-prefill-0", "short-prefill", ("a-rack-0-0",)),
        Island("long-prefill-0", "long-prefill", ("a-rack-0-0",)),
        *PLAN.islands[3:],
    ),
)  # fmt: skip

RENTED_A: dict[str, Any] = {
    "count": 8,
    "max_count": 16,
    "domains": (Domain("rack-0", 1),),
    "billing": Billing.PER_NODE,
}
RENTED_PROBLEM = replace(problem(), pools=pools(a=RENTED_A))
RENTED = replace(
    PLAN,
    groups=(ONE_SHORT, LONG_PREFILL, MAIN, SPARE),
    islands=(
        PLAN.islands[0],
        PLAN.islands[2],
        replace(PLAN.islands[3], nodes=("a-rented-0",)),
        PLAN.islands[4],
    ),
    rented=(("a", 8),),
)

COST_PROBLEM = replace(problem(minimise_cost=True, min_headroom=1.0), models=(demand(rate=8.0),))
COST = replace(
    PLAN,
    objective=Objective.COST,
    theta=1.0,
    certificate=Certificate(23.99, 0.01 / 24, complete=True),
)

RUNNING = (
    RunningIsland("old-0", "m", Phase.PREFILL, Parallelism(tp=4), (("a", 4),), ("a-rack-0-0",)),
    RunningIsland("old-1", "m", Phase.PREFILL, Parallelism(tp=4), (("a", 4),), ("a-rack-1-0",)),
    RunningIsland("old-2", "m", Phase.DECODE, Parallelism(tp=4), (("a", 4),), ("a-rack-1-0",)),
    RunningIsland("old-3", "m", Phase.DECODE, Parallelism(tp=2), (("b", 2),)),
)
CHANGED_PROBLEM = problem(running=RUNNING)
CHANGED = replace(
    PLAN,
    islands=(
        Island("old-0", "short-prefill", ("a-rack-0-0",)),
        Island("old-1", "short-prefill", ("a-rack-0-0",)),
        Island("long-prefill-0", "long-prefill"),
        Island("main-decode-0", "main-decode", ("a-rack-1-0",)),
        Island("old-3", "spare-decode"),
    ),
    changes=Changes(
        kept=("old-0", "old-3"),
        started=("long-prefill-0", "main-decode-0"),
        stopped=("old-2",),
        moved=("old-1",),
        moved_gpus=14,  # 2 + 8 start and 4 move
    ),
)
"""``old-1`` makes room for an island of eight GPUs."""

SPARING_PROBLEM = replace(problem(), models=(demand(phases=ALL_PHASES, max_utilisation=0.8),))
SPARING = replace(
    MIXED,
    groups=(
        replace(MIXED.groups[0], utilisation=0.24845 / 0.8),
        replace(LONG_PREFILL, utilisation=0.6 / 0.8),
        replace(MIXED.groups[2], utilisation=0.05245 / 0.8),
    ),
)
"""Every row may be used to 80 %, so the same use is a larger share."""
