"""Bounds by prices: that of the solver, from any prices a bound that holds, and names that stay."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.planner.milp import highs
from archipelago.planner.milp.build import build_program
from archipelago.planner.milp.duality import (
    bound_of,
    priced_bound,
    proven_bound,
    row_names,
)
from archipelago.planner.milp.highs import LinearObjective, SolverOptions, objective_of
from archipelago.planner.milp.variables import THETA, Program
from archipelago.planner.plan import PricedBound
from archipelago.planner.problem import Objective, PlanningProblem
from archipelago.planner.search.prices import Relaxation, relax
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.templates.catalogue import build_catalogue

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = tuple(sorted(path.stem for path in EXAMPLES.glob("0*.yaml")))
OPTIONS = SolverOptions(0.0, 60.0)


@cache
def built(name: str) -> tuple[PlanningProblem, Program, LinearObjective]:
    resource = load_resource((EXAMPLES / f"{name}.yaml").read_text())
    problem = to_problem(resource.metadata.name, resource.spec)
    program = build_program(problem, build_catalogue(problem).templates)
    return problem, program, objective_of(program, problem)


@cache
def duals_of(name: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    _, program, objective = built(name)
    relaxed = relax(program, objective, OPTIONS.time_limit)
    assert isinstance(relaxed, Relaxation)
    return relaxed.duals


@cache
def relaxation(name: str) -> float:
    """The solver's own optimum of the relaxation, to be minimised."""
    _, program, objective = built(name)
    solution = highs.solve(program, replace(objective, integer=False), OPTIONS)
    assert solution is not None
    return solution.objective


def written(name: str) -> PricedBound:
    problem, program, objective = built(name)
    priced = priced_bound(program, problem, objective, duals_of(name))
    assert priced is not None
    return priced


@pytest.mark.parametrize("name", NAMES)
def test_prices_of_the_solver_prove_its_optimum(name: str) -> None:
    _, program, objective = built(name)
    bound, optimum = bound_of(program, objective, duals_of(name)), relaxation(name)
    assert bound == pytest.approx(optimum, rel=1e-7)
    assert bound <= optimum + 1e-9 * abs(optimum)


@pytest.mark.parametrize("name", NAMES)
def test_nine_digits_of_the_prices_prove_the_same(name: str) -> None:
    problem, program, _ = built(name)
    bound, optimum = written(name).bound, relaxation(name)
    if problem.objective is Objective.COST:
        assert optimum * (1 - 1e-6) <= bound <= optimum * (1 + 1e-9)
    else:
        most = -optimum * program.scale
        assert most * (1 - 1e-9) <= bound <= most * (1 + 1e-6)


@pytest.mark.parametrize("name", ["02-minimal", "06-two-zones", "07-least-cost", "04-collocated"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_prices_give_a_bound_that_holds(name: str, data: st.DataObject) -> None:
    """Prices are scaled, dropped, turned and shifted at random: none bounds off the optimum."""
    _, program, objective = built(name)
    seed = data.draw(st.integers(0, 2**32 - 1))
    size = data.draw(st.sampled_from([1e-9, 1e-4, 0.1, 1.0, 10.0]))
    random = np.random.default_rng(seed)
    duals = duals_of(name).copy()
    some = random.random(len(duals)) < data.draw(st.sampled_from([0.02, 0.3, 1.0]))
    duals[some] *= 1 + size * random.standard_normal(int(some.sum()))
    duals[random.random(len(duals)) < data.draw(st.sampled_from([0.0, 0.1]))] = 0.0
    duals += (
        data.draw(st.sampled_from([0.0, 1e-9, 1e-3])) * random.standard_normal(len(duals)) * some
    )
    optimum = relaxation(name)
    assert bound_of(program, objective, duals) <= optimum + 1e-9 * abs(optimum)


def test_slightly_wrong_prices_still_prove_almost_everything() -> None:
    """A millionth of error in every price: what is mended costs no more than a few of them."""
    for name in NAMES:
        _, program, objective = built(name)
        noise = 1 + 1e-6 * np.random.default_rng(7).standard_normal(len(program.lower))
        optimum = relaxation(name)
        bound = bound_of(program, objective, duals_of(name) * noise)
        assert optimum - 1e-3 * abs(optimum) <= bound <= optimum + 1e-9 * abs(optimum)


def test_prices_that_prove_nothing_say_so() -> None:
    problem, program, objective = built("02-minimal")
    assert bound_of(program, objective, np.zeros(len(program.lower))) == -math.inf
    assert proven_bound(program, problem, objective, {}) == math.inf
    assert priced_bound(program, problem, objective, np.zeros(len(program.lower))) is None
    problem, program, objective = built("07-least-cost")
    assert proven_bound(program, problem, objective, {}) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_names_say_which_columns_a_row_has(name: str) -> None:
    """The names come from an order; here each is compared with the entries of its row."""
    problem, program, _ = built(name)
    names = row_names(program, problem)
    assert len({*names}) == len(names)
    starts = {m.name: [span.min for span in m.ranges] for m in problem.models}
    for row, label in enumerate(names):
        kind, *words = label.split("/")
        columns = program.matrix[[row]].indices
        counts = [c - 1 for c in columns if 1 <= c < program.first_pair]
        pairs = [c - program.first_pair for c in columns if program.first_pair <= c]
        pairs = [pair for pair in pairs if pair < len(program.pair_template)]
        templates = {program.templates[program.pair_template[pair]] for pair in pairs}
        begins = {
            starts[program.templates[program.pair_template[p]].model][program.pair_range[p]]
            for p in pairs
        }
        assert (THETA in columns) == (kind == "demand"), label
        if kind in {"demand", "flow"}:
            assert {t.model for t in templates} <= {words[0]}, label
            assert all(words[1] in t.phase.stages for t in templates), label
            assert begins <= {int(words[-1])}, label
            if kind == "flow":
                assert {t.domain_class for t in templates} <= {words[2]}, label
        elif kind == "capacity":
            (count,) = counts
            template = program.templates[count]
            assert label == f"capacity/{template.key}/{words[-1]}"
            load = template.rows[template.row_names.index(words[-1])]
            entries = dict(zip(columns.tolist(), program.matrix[[row]].data.tolist(), strict=True))
            rate = program.pair_rate()
            for pair in pairs:
                value = load[program.pair_range[pair]] * rate[pair]
                assert entries[program.first_pair + pair] == pytest.approx(value), label
        elif kind == "packing":
            pool, place, size = words[0], words[1], int(words[2])
            assert counts == [
                c
                for c, t in enumerate(program.templates)
                if t.domain_class == place and t.gpus_of(pool) >= size
            ], label
        elif kind == "cover":
            model, stage, start = words[0], words[1], int(words[2])
            j = starts[model].index(start)
            assert counts == [
                c
                for c, t in enumerate(program.templates)
                if t.model == model and stage in t.phase.stages and t.servable[j]
            ], label
        elif kind == "link":
            flows = [program.flows[c - program.first_flow] for c in columns]
            assert {flow.classes for flow in flows} == {(words[0], words[1])}, label
        elif kind == "nodes":
            (node,) = (c for c in columns if c >= program.first_node)
            column = program.nodes[node - program.first_node]
            assert (column.pool, column.domain_class) == (words[0], words[1])
        else:
            assert label == "budget"
            assert program.upper[row] == float(problem.budget_per_hour or 0)


def test_a_price_is_what_one_more_of_the_limit_is_worth() -> None:
    """Two more GPUs of the pool raise the relaxation by twice the price of its row."""
    problem, program, objective = built("02-minimal")
    prices = dict(written("02-minimal").prices)
    name = max((n for n in prices if n.startswith("packing/")), key=lambda n: prices[n])
    upper = program.upper.copy()
    upper[row_names(program, problem).index(name)] += 1e-3
    solution = highs.solve(
        replace(program, upper=upper), replace(objective, integer=False), OPTIONS
    )
    assert solution is not None
    gained = (relaxation("02-minimal") - solution.objective) * program.scale
    assert gained == pytest.approx(prices[name] * 1e-3, rel=1e-3)


def test_other_rows_than_those_with_a_name_are_refused() -> None:
    problem, program, _ = built("02-minimal")
    with pytest.raises(Exception, match="of which"):
        row_names(program.with_limit(program.price, 1.0), problem)
