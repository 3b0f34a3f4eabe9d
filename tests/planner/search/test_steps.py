"""One suite for all steps of the search: plans hold, bounds hold, and both only get better."""

from dataclasses import replace
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import yaml

from archipelago.perfmodel.model import FloatArray
from archipelago.planner.deadline import Deadline
from archipelago.planner.milp import highs
from archipelago.planner.milp.benders import Subproblem
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.columns import Effort
from archipelago.planner.milp.highs import SolverOptions, objective_of
from archipelago.planner.search import portfolio, prices
from archipelago.planner.search.blockwise import Blockwise, Column, mix, room_prices
from archipelago.planner.search.classes import Classes
from archipelago.planner.search.direct import Defaults, Near, Plain
from archipelago.planner.search.neighbourhood import Neighbourhood
from archipelago.planner.search.portfolio import (
    Turns,
    at_once,
    begin,
    in_lanes,
    relaxed,
    run,
    solution,
)
from archipelago.planner.search.prices import relax
from archipelago.planner.search.state import Search, Step
from archipelago.planner.search.whole import Whole
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue
from benchmarks.drawn.specs import draw

EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS: tuple[type[Step], ...] = (Near, Classes, Neighbourhood, Whole, Blockwise, Plain, Defaults)
LINKED = ("drawn-4367", "drawn-4341", "drawn-4392")
"""Drawn specs of 2 and 3 models that share links between domain classes."""
NAMES = (
    *("01-llama-on-two-pools", "03-two-models", "05-either", "06-two-zones", "07-least-cost"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in LINKED),
)
TURNS, WORK = 3, 1.0
SEEDS = range(4100, 4112)
NODES_AND_CLASSES = (4108, 4112, 4121)
"""Drawn specs whose pools have several domain classes and are rented by whole nodes."""
LIMIT = 60.0
"""Seconds that no turn needs here: what ends a search is its work."""
SLACK = 1e-5
"""Relative difference that is rounding: HiGHS breaks rows by 1e-6."""


def begun(problem_text: str, gap: float = 5e-4) -> Search:
    resource = load_resource(problem_text)
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    search = begin(program, objective_of(program, problem), SolverOptions(gap, LIMIT))
    assert relaxed(search)
    return search


def example(name: str) -> Search:
    if name in LINKED:
        return begun(yaml.safe_dump(draw(int(name.removeprefix("drawn-"))).spec))
    return begun((EXAMPLES / f"{name}.yaml").read_text())


def agree(search: Search) -> None:
    """Plans are within all rows, cuts hold for them, and no value is below a bound."""
    program, master = search.program, search.master
    for plan in search.found:
        values = master.values(plan.x, plan.theta)
        used = program.matrix @ values
        scale = np.maximum(1.0, np.abs(used))
        assert (used <= program.upper + SLACK * scale).all()
        assert (used >= program.lower - SLACK * scale).all()
        assert plan.value >= search.bound - SLACK * abs(plan.value)
        for cut in master.cuts:
            assert cut.at(plan.x) >= plan.theta * (1 - SLACK)
        for block in master.block_cuts:
            if plan.theta >= block.theta:
                assert float(block.prices @ plan.x) >= block.least * (1 - SLACK)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_only_improves_and_is_never_contradicted(step: type[Step], name: str) -> None:
    """The reference is branch and bound over all columns, with its plan and its bound."""
    search = example(name)
    at_once(search)
    assert search.best is not None
    values, bounds, worker = [search.best.value], [search.bound], step()
    for _ in range(TURNS):
        search.until = search.work + WORK
        more = worker.turn(search)
        values.append(search.best.value)
        bounds.append(search.bound)
        if not more or search.solved:
            break
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds)
    agree(search)
    effort = SolverOptions(5e-4, LIMIT, nodes=300)
    reference = highs.solve(search.program, search.objective, effort)
    assert reference is not None
    assert search.bound <= reference.objective + SLACK * abs(reference.objective)
    assert reference.bound <= search.best.value + SLACK * abs(search.best.value)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_all_steps_together_hold_on_drawn_specs(seed: int) -> None:
    """Within a few turns of every step; a spec without a plan is one by proof."""
    resource = load_resource(yaml.safe_dump(draw(seed).spec))
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    if not any(demand.served.any() for demand in program.demands):
        return
    search = begin(program, objective_of(program, problem), SolverOptions(1e-3, 5.0))
    run(search)
    agree(search)
    assert search.best is not None or search.impossible or search.deadline.passed


@pytest.mark.parametrize("alone", [portfolio.ALONE, 1e-3], ids=["one lane", "two lanes"])
def test_the_same_search_twice_takes_the_same_way(
    alone: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns and lanes end by nodes and by counted work, which do not depend on the machine."""
    monkeypatch.setattr(portfolio, "ALONE", alone)
    one, two = example("03-two-models"), example("03-two-models")
    run(one)
    run(two)
    assert [plan.value for plan in one.found] == [plan.value for plan in two.found]
    assert one.best is not None
    assert two.best is not None
    assert np.array_equal(one.best.x, two.best.x)
    assert one.bound == two.bound
    assert solution(one).nodes == solution(two).nodes
    agree(one)


def test_a_second_lane_works_for_the_first() -> None:
    """What it finds is the plan of both, and counts as work and nodes of the search."""
    search = example("06-two-zones")
    run(search)
    assert search.solved
    agree(search)
    found, work = search.best, search.work
    assert found is not None
    search.options = replace(search.options, gap=0.0, nodes=search.nodes + 100)
    turns = [Turns(Whole()), Turns(Neighbourhood())]
    in_lanes(search, turns)
    assert search.best is not None
    assert search.best.value <= found.value
    assert search.work > work
    assert search.pause == np.inf
    agree(search)


def test_two_lanes_share_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS crashes if two threads use one; a step that began alone goes on in either lane."""
    search = example("06-two-zones")
    relaxed(search)
    at_once(search)
    steps = [Whole(), Blockwise(), Neighbourhood()]
    for step in steps:
        search.until = search.work + 0.02
        step.turn(search)
    users, solve = dict[int, set[int]](), Subproblem.solve

    def noted(
        self: Subproblem, x: FloatArray, seconds: float = np.inf
    ) -> tuple[float, FloatArray, FloatArray]:
        users.setdefault(id(self), set()).add(get_ident())
        return solve(self, x, seconds)

    monkeypatch.setattr(Subproblem, "solve", noted)
    search.options = replace(search.options, gap=0.0, nodes=search.nodes + 100)
    in_lanes(search, [Turns(step) for step in steps])
    assert len(set[int]().union(*users.values())) == 2
    assert all(len(threads) == 1 for threads in users.values())


def test_a_plan_is_kept_if_no_time_is_left_for_a_second_lane() -> None:
    """Dividing the program for its solvers ended with OutOfTimeError."""
    search = example("06-two-zones")
    at_once(search)
    search.deadline = Deadline(0.0)
    in_lanes(search, [Turns(Whole()), Turns(Neighbourhood())])
    agree(search)
    assert search.best is not None


def test_a_search_that_ends_at_the_gap_is_solved() -> None:
    """A proof asks for best / (1 - gap); the gap to it was 0.0005000000000000401 of 0.0005."""
    search = example("06-two-zones")
    at_once(search)
    assert search.best is not None
    for gap in (1e-4, 5e-4, 1e-3):
        search.options = replace(search.options, gap=gap)
        for rounding in range(-4, 5):
            search.bound = search.best.value / (1 - gap) * (1 + rounding * 2.0**-52)
            assert search.solved
        search.bound = search.best.value / (1 - 1.001 * gap)
        assert not search.solved


@pytest.mark.parametrize("seed", [8124037, 2027030011])
def test_a_theta_out_of_reach_is_proven_where_the_solver_fails(seed: int) -> None:
    """On the cost at that theta, HiGHS ended with "Unknown" or went on until the time was up."""
    resource = load_resource(yaml.safe_dump(draw(seed).spec))
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    objective = objective_of(program, problem)
    assert relax(program, objective, 10.0) is highs.SolveStatus.INFEASIBLE


def test_no_proof_is_sought_against_a_theta_that_a_plan_has_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took the time of the relaxation of 66,870 columns, and no bound was left."""
    search = example("07-least-cost")
    monkeypatch.setattr(prices, "_out_of_reach", lambda *_: pytest.fail("a proof is sought"))
    monkeypatch.setattr(highs, "run_again", lambda _: highs.SolveStatus.TIME_LIMIT)
    found = relax(search.program, search.objective, LIMIT, reached=True)
    assert found is highs.SolveStatus.TIME_LIMIT


def test_a_mix_prices_every_known_set_at_what_its_block_pays_or_more() -> None:
    """A set that was mixed in whole seemed cheaper than the mix, so that mixing never ended."""
    search = example("03-two-models")
    at_once(search)
    worker, columns = Blockwise(), list[Column]()
    search.until = search.work + WORK
    worker.turn(search)
    assert search.best is not None
    for number, block in enumerate(search.blocks.all):
        for share in (1.5, 2.0, 3.0):
            x = np.zeros(len(search.best.x))
            x[block.templates] = np.ceil(share * search.best.x[block.templates])
            columns.append(Column(number, x, block.serves(x)))
    cost = np.zeros(len(search.master.columns))
    mixed = mix(search, columns, cost, room_prices(search))
    assert mixed is not None
    rows, blocks, _ = np.split(
        mixed.duals, np.cumsum([len(search.blocks.upper), len(search.blocks.all)])
    )
    priced = [float((cost - search.blocks.shared.T @ rows) @ column.x) for column in columns]
    worth = [float(blocks[column.block]) for column in columns]
    assert (np.array(priced) >= np.array(worth) - 1e-6 * np.abs(worth).max()).all()


def test_a_plan_that_serves_just_enough_is_one() -> None:
    """Under least cost, the cheapest plan often has exactly minHeadroom: it is not short."""
    search = example("07-least-cost")
    run(search)
    assert search.best is not None
    theta = search.best.theta
    search.demand(theta)
    assert search.best is not None
    assert search.best.theta == pytest.approx(theta, rel=1e-9)


@pytest.mark.parametrize("seed", NODES_AND_CLASSES)
def test_classes_alone_offer_a_plan_where_whole_nodes_are_rented(seed: int) -> None:
    """They left the nodes of their islands out once: what they offered was never a plan."""
    search = begun(yaml.safe_dump(draw(seed).spec))
    assert len(search.master.columns) > len(search.program.templates)
    Classes().turn(search)
    assert search.best is not None


@pytest.mark.parametrize("name", LINKED)
def test_models_that_share_links_are_blocks_of_their_own(name: str) -> None:
    """With all links for itself, a model serves as much as beside the others, or more."""
    search = example(name)
    at_once(search)
    assert search.best is not None
    blocks, master = search.blocks, search.master
    models = [{search.program.templates[c].model for c in block.templates} for block in blocks.all]
    assert all(len(names) == 1 for names in models)
    assert len(blocks.all) > 1
    random = np.random.default_rng(0)
    for plan in search.found:
        for x in (plan.x, plan.x * random.integers(0, 2, len(plan.x))):
            alone = min(part.solve(x)[0] for part in master.apart)
            assert alone >= master.evaluate(x, 0.0) * (1 - SLACK)


@pytest.mark.parametrize("name", LINKED)
def test_a_few_blocks_anew_keep_within_the_links_of_all(name: str) -> None:
    """What one model's islands are chosen for at a theta is served beside the others' flows."""
    search = example(name)
    at_once(search)
    assert search.best is not None
    x, theta = search.best.x, search.best.theta / 2
    for block in search.blocks.all:
        free = np.zeros(search.blocks.templates, dtype=bool)
        free[block.templates] = True
        cost = np.concatenate([[0.0], search.master.price(search.relaxation.duals)])
        answer = search.blocks.solve(free, x, cost, Effort(LIMIT, 50), theta=theta)
        assert answer.x is not None
        assert search.master.evaluate(answer.x, 0.0) >= theta * (1 - SLACK)
