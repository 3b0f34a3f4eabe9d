"""Mixed islands, domain classes with links, whole nodes and least cost against brute force.

The brute force shares nothing with the program: it tries every count of every template, and its
rates are those of whole ways from a prefill to a decode template, not of flows between classes.
"""

from dataclasses import replace
from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.planner.layout.rates import round_rates
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.highs import (
    NODE_LIMIT,
    Solution,
    SolverOptions,
    SolveStatus,
    objective_of,
    solve,
)
from archipelago.planner.milp.variables import THETA, Program
from archipelago.planner.problem import STAGES, Billing, Domain, Link, Phase, PlanningProblem, Pool
from archipelago.planner.search.portfolio import solve as search
from archipelago.planner.strategies.exact import least_change, searched
from archipelago.planner.templates.template import Template
from tests.support.planner.small import demand, problem, template

EXACT = SolverOptions(1e-9, 60.0, nodes=NODE_LIMIT)
INPUT = (50.0, 150.0)
"""Lengths of the requests of the two ranges [tokens]; 1e5 bytes of cache a token."""


def pool(name: str, nodes: int, domain_class: str, *, billing: Billing = Billing.PER_GPU) -> Pool:
    """Nodes of 2 GPUs at $1 per GPU, in one domain."""
    return Pool(
        name,
        accelerator("H20"),
        2 * nodes,
        Decimal(1),
        2,
        (Domain("all", nodes, domain_class),),
        (1, 2, 4),
        billing=billing,
    )


def best(p: PlanningProblem, cards: list[Template]) -> tuple[Program, Solution | None]:
    """Solved directly, and in whole numbers, which must agree."""
    program = build_program(p, tuple(cards))
    objective = objective_of(program, p)
    solution = solve(program, objective, EXACT)
    if solution is not None and solution.status is SolveStatus.UNKNOWN:
        return program, solution  # no range is served: nothing bounds theta
    other = search(program, objective, EXACT)
    assert (solution is None) == (other is None)
    if solution is not None and other is not None:
        assert other.objective == pytest.approx(solution.objective, rel=1e-5, abs=1e-6)
        rows = program.matrix @ other.values
        assert (rows <= program.upper + 1e-5).all()
        assert (rows >= program.lower - 1e-5).all()
    return program, solution


def ways(p: PlanningProblem, cards: list[Template]) -> list[tuple[int, int]]:
    """(prefill, decode) templates between which a request may move; mixed ones stand twice."""
    linked = {pair for link in p.links for pair in (link.classes, link.classes[::-1])}
    pairs = []
    for a, b in product(range(len(cards)), repeat=2):
        one, two = cards[a], cards[b]
        if a == b and one.phase is Phase.MIXED:
            pairs.append((a, b))
        if (one.phase, two.phase) == STAGES:
            place = one.domain_class, two.domain_class
            if place[0] == place[1] or place in linked:
                pairs.append((a, b))
    return pairs


def theta_of(p: PlanningProblem, cards: list[Template], counts: tuple[int, ...]) -> float:
    """Largest theta of given islands, by a dense program over ways and ranges."""
    moves = [
        (a, b, j)
        for a, b in ways(p, cards)
        for j in range(2)
        if cards[a].servable[j] and cards[b].servable[j] and counts[a] and counts[b]
    ]
    shares = p.models[0].lengths.moments(p.models[0].ranges).probability
    weight = p.weight(p.models[0])
    upper, right = [], []
    for c, card in enumerate(cards):
        for row in card.rows:
            upper.append([0.0, *(row[j] if c in (a, b) else 0.0 for a, b, j in moves)])
            right.append(float(counts[c]))
    for link in p.links:
        for way in (link.classes, link.classes[::-1]):
            places = [(cards[a].domain_class, cards[b].domain_class) for a, b, _ in moves]
            line = [
                1e5 * INPUT[j] if place == way else 0.0
                for place, (_, _, j) in zip(places, moves, strict=True)
            ]
            upper.append([0.0, *line])
            right.append(link.bytes_per_second)
    equal = [
        [-shares[j] * weight, *(float(range_ == j) for _, _, range_ in moves)] for j in range(2)
    ]
    missing = any(all(range_ != j for _, _, range_ in moves) for j in range(2))
    if missing:
        return 0.0
    cost = np.zeros(1 + len(moves))
    cost[0] = -1
    answer = linprog(cost, upper, right, equal, [0.0, 0.0])
    return float(-answer.fun) if answer.success else 0.0


def affordable(p: PlanningProblem, cards: list[Template], counts: tuple[int, ...]) -> float | None:
    """The cost of the islands [$/h]; None where they do not fit.

    One domain a pool and nodes of 2: islands of 4 take two nodes, of 2 one, of 1 half of one.
    """
    total = 0.0
    for q in p.pools:
        mine = {c: counts[c] for c, card in enumerate(cards) if card.pool == q.name}
        nodes = sum(cards[c].gpus // 2 * n for c, n in mine.items() if cards[c].gpus > 1)
        nodes += -(-sum(n for c, n in mine.items() if cards[c].gpus == 1) // 2)
        if nodes > q.count // 2:
            return None
        gpus = sum(cards[c].gpus * n for c, n in mine.items())
        total += 2 * nodes if q.billing is Billing.PER_NODE else gpus
    budget = p.budget_per_hour
    return total if budget is None or total <= budget else None


def by_brute_force(p: PlanningProblem, cards: list[Template]) -> tuple[float, float]:
    """Largest theta, and least cost at minHeadroom (infinite where that is out of reach)."""
    gpus = {q.name: q.count for q in p.pools}
    top, least = 0.0, float("inf")
    for counts in product(*(range(gpus[c.pool] // c.gpus + 1) for c in cards)):
        cost = affordable(p, cards, counts)
        if cost is None:
            continue
        theta = theta_of(p, cards, counts)
        top = max(top, theta)
        if theta >= (p.min_headroom or 0.0) * (1 - 1e-9):
            least = min(least, cost)
    return top, least


TIMES = st.floats(0.05, 2.0)


@st.composite
def instances(draw: st.DrawFn) -> tuple[PlanningProblem, list[Template]]:
    """At most 4 templates of all phases, two pools of at most 6 GPUs in one or two classes."""
    share = draw(st.sampled_from([0.0, 0.3]))
    classes = {"a": "east", "b": draw(st.sampled_from(["east", "west"]))}
    billing = draw(st.sampled_from(Billing))
    speed = draw(st.sampled_from([None, 2e6, 2e7]))
    model = replace(demand(shares=(share, 1 - share)), rate=1.0, phases=tuple(Phase))
    p = replace(
        problem({"a": 1}, (model,)),
        pools=tuple(
            pool(name, draw(st.integers(1, 3 if name == "a" else 2)), where, billing=billing)
            for name, where in classes.items()
        ),
        links=() if speed is None else (Link(("east", "west"), speed),),
        budget_per_hour=draw(st.sampled_from([None, Decimal(4)])),
        min_headroom=draw(st.sampled_from([0.2, 1.0])),
        minimise_cost=draw(st.booleans()),
    )
    cards = []
    for phase in (*STAGES, *draw(st.lists(st.sampled_from(list(Phase)), min_size=1, max_size=2))):
        rows = [[draw(TIMES), draw(TIMES)] for _ in range(1 if phase is Phase.PREFILL else 2)]
        name = draw(st.sampled_from(["a", "b"]))
        able = draw(st.sampled_from([[True, True], [True, True], [False, True]]))
        size = draw(st.sampled_from([1, 2, 4]))
        card = template(name, size, phase, rows, servable=able)
        price = float(size) if billing is Billing.PER_GPU else 0.0
        prompt = np.zeros(2) if phase is Phase.MIXED else None
        cards.append(replace(card, domain_class=classes[name], price=price, prompt=prompt))
    return p, cards


@pytest.mark.slow
@settings(max_examples=120)
@given(case=instances())
def test_exact_equals_brute_force(case: tuple[PlanningProblem, list[Template]]) -> None:
    p, cards = case
    top, least = by_brute_force(p, cards)
    program, solution = best(p, cards)
    if not all(program.demands[0].served):
        return  # ranges left out: the brute force serves all or none
    if p.minimise_cost:
        assert (solution is None) == (least == float("inf"))
        assert solution is None or solution.objective == pytest.approx(least, abs=1e-6)
    else:
        theta = 0.0 if solution is None else float(solution.values[THETA]) * program.scale
        assert theta == pytest.approx(top, rel=1e-6, abs=1e-7)


@pytest.mark.slow
@settings(max_examples=60)
@given(case=instances())
def test_integer_weights_keep_flows_links_and_almost_all_of_theta(
    case: tuple[PlanningProblem, list[Template]],
) -> None:
    """Integer shares go only where KV caches can, sum to a million, and lose almost nothing."""
    p, cards = case
    p = replace(p, minimise_cost=False)
    program, solution = best(p, cards)
    if solution is None or solution.values[THETA] <= 1e-6 or not all(program.demands[0].served):
        return
    found = searched(program, p, 10.0)
    assert found is not None
    counts = np.rint(least_change(found, p, 10.0).x[: len(program.templates)]).astype(np.int64)
    settled = round_rates(p, program, counts)
    assert settled.theta <= theta_of(p, cards, tuple(counts)) * (1 + 1e-6)
    allowed = set(ways(p, cards))
    for pairs in settled.pairs.values():
        assert sum(weight for *_, weight in pairs) == 1_000_000
        assert all((a, b) in allowed for a, b, _ in pairs)


def test_mixed_island_serves_prefill_and_decode() -> None:
    """0.4 s a request whole against 0.2 s of prefill and 0.2 s of decode on two islands.

    Two mixed islands: 2 / 0.4 = 5 req/s; one of each: 1 / 0.2 = 5 req/s. With 3 GPUs the third
    mixed island counts (7.5), a third split island does not.
    """
    p = problem({"a": 3}, (replace(demand(), phases=tuple(Phase)),))
    cards = [
        template("a", 1, Phase.PREFILL, [[0.2, 0.2]]),
        template("a", 1, Phase.DECODE, [[0.2, 0.2]]),
        replace(template("a", 1, Phase.MIXED, [[0.4, 0.4]]), prompt=np.zeros(2)),
    ]
    program, solution = best(p, cards)
    assert solution is not None
    assert solution.values[THETA] * program.scale == pytest.approx(7.5)


def test_theta_is_limited_by_the_bandwidth_of_a_link() -> None:
    """Prefill stands in the east, decode in the west: every request moves 1e5 B a token.

    Half of the requests have 50 tokens, half 150: 10 MB on average. 20 MB/s carry 2 req/s, where
    the islands could do 10.
    """
    pools = pool("a", 1, "east"), pool("b", 1, "west")
    p = replace(problem({"a": 1}), pools=pools, links=(Link(("east", "west"), 2e7),))
    cards = [
        replace(template("a", 2, Phase.PREFILL, [[0.1, 0.1]]), domain_class="east"),
        replace(template("b", 2, Phase.DECODE, [[0.1, 0.1]]), domain_class="west"),
    ]
    program, solution = best(p, cards)
    assert solution is not None
    assert solution.values[THETA] * program.scale == pytest.approx(2.0)
    assert not build_program(replace(p, links=()), tuple(cards)).demands[0].served.any()


def test_cost_by_node_counts_every_node_in_use_once() -> None:
    """Three islands of one GPU stand on two nodes of 2: $4 by node, $3 by GPU."""
    models = (replace(demand(), rate=1.0),)
    for billing, cost in ((Billing.PER_NODE, 4.0), (Billing.PER_GPU, 3.0)):
        p = replace(
            problem({"a": 1}, models),
            pools=(pool("a", 3, "default", billing=billing),),
            minimise_cost=True,
            min_headroom=1.0,
        )
        price = 1.0 if billing is Billing.PER_GPU else 0.0
        cards = [
            replace(template("a", 1, Phase.PREFILL, [[2.0, 2.0]]), price=price),
            replace(template("a", 1, Phase.DECODE, [[1.0, 1.0]]), price=price),
        ]
        _, solution = best(p, cards)
        assert solution is not None
        assert solution.objective == pytest.approx(cost)
