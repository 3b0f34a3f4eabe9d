"""What changes between two plans, on the plan that can be computed on paper."""

import json
import time
from dataclasses import astuple, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.documents import to_json, to_yaml
from archipelago.planner.explain.diff import (
    Figure,
    IslandChange,
    MovedShare,
    PlanDiff,
    PoolChange,
    compare,
)
from archipelago.planner.formats.plan_file import plan_document, read_stored
from archipelago.planner.plan import Island, Pair, Plan, Planned, Route
from tests.support.planner.command import Runner
from tests.support.planner.handmade import LONG, PLAN, SHORT, resource


def document(plan: Plan = PLAN) -> dict[str, Any]:
    return plan_document(resource(), Planned(plan, 0.1))


def between(old: Plan, new: Plan) -> PlanDiff:
    return compare(read_stored(document(old)), read_stored(document(new)))


def changed(difference: PlanDiff) -> dict[str, IslandChange]:
    return {str(item.kind): item for item in difference.islands if item.word != "same"}


def routes(*pairs: tuple[Pair, ...]) -> tuple[Route, ...]:
    return tuple(Route("m", r, 0.5, p) for r, p in zip((SHORT, LONG), pairs, strict=True))


def renamed(plan: Plan) -> Plan:
    """The same plan with every group and island under another name."""
    new = {group.name: f"other-{i}" for i, group in enumerate(plan.groups)}
    return replace(
        plan,
        groups=tuple(replace(g, name=new[g.name]) for g in plan.groups),
        islands=tuple(
            replace(island, name=f"i{i}", group=new[island.group])
            for i, island in enumerate(plan.islands)
        ),
        routes=tuple(
            replace(
                route,
                pairs=tuple(Pair(new[p.prefill], new[p.decode], p.weight) for p in route.pairs),
            )
            for route in plan.routes
        ),
    )


def test_a_plan_is_the_same_as_itself() -> None:
    difference = between(PLAN, PLAN)
    assert difference.same
    assert difference.total == MovedShare("all", 0.0, 0.0, 0.0)


def test_names_of_groups_do_not_count() -> None:
    assert between(PLAN, renamed(PLAN)).same


def test_requests_that_move_are_counted_by_template() -> None:
    """Of the short half, 75 % decode on main and 25 % on spare; now all do on spare: 37.5 % move.

    The long half keeps its decode group and changes its prefill: 50 %.
    """
    new = routes(
        (Pair("short-prefill", "spare-decode", 1_000_000),),
        (Pair("short-prefill", "main-decode", 1_000_000),),
    )
    difference = between(PLAN, replace(PLAN, routes=new))
    assert [astuple(item) for item in difference.moved] == [("m", 0.5, 0.375, 0.875)]
    assert not difference.same


def test_ranges_that_are_cut_differently_are_compared_where_both_are_whole() -> None:
    """One route for all lengths, as the short ones had it: only the long half moves."""
    whole = replace(PLAN.routes[0], range=replace(SHORT, max=LONG.max), share=1.0)
    difference = between(PLAN, replace(PLAN, routes=(whole,)))
    # the long ones: prefill elsewhere, and a quarter of them decodes on spare
    assert astuple(difference.total) == ("all", 0.5, 0.125, 0.5)


def test_islands_are_added_removed_changed_and_relocated() -> None:
    short, long, main, spare = PLAN.groups
    grown = replace(short, islands=1)
    bigger = replace(spare, max_batch=128)
    islands = tuple(
        replace(island, nodes=("a-rack-0-0",)) if island.group == "main-decode" else island
        for island in PLAN.islands
        if island.name != "short-prefill-1"
    )
    changes = changed(
        between(PLAN, replace(PLAN, groups=(grown, long, main, bigger), islands=islands))
    )
    assert {
        key: (item.word, item.old, item.new, item.relocated) for key, item in changes.items()
    } == {
        "m/a/x4/prefill/tp4": ("changed", 2, 1, 0),
        "m/b/x2/decode/tp2/b64": ("removed", 1, 0, 0),
        "m/b/x2/decode/tp2/b128": ("added", 0, 1, 0),
        "m/a/x8/decode/tp8/b64": ("relocated", 1, 1, 1),
    }


def test_figures_and_gpus_before_and_after() -> None:
    without = replace(
        PLAN,
        theta=6.0,
        throughput=6.0,
        cost_per_hour=Decimal(20),
        groups=(replace(PLAN.groups[0], islands=1), *PLAN.groups[1:]),
        islands=PLAN.islands[1:],
    )
    difference = between(PLAN, without)
    assert difference.figures[:2] == (
        Figure("theta", "req/s", 8.0, 6.0),
        Figure("throughput", "req/s", 8.0, 6.0),
    )
    assert (difference.figures[0].change, difference.figures[3].change) == (-2.0, -4.0)
    assert difference.pools == (
        PoolChange("a", (16, 16), (16, 12)),
        PoolChange("b", (4, 4), (4, 4)),
    )


def test_what_was_asked_differently_is_named_by_path() -> None:
    old, new = document(), document()
    new["problem"]["budgetPerHour"] = "30"
    new["problem"]["pools"][0]["domains"] = [{"name": "rack-0", "nodes": 2}]
    difference = compare(read_stored(old), read_stored(new))
    assert [(item.path, item.old, item.new) for item in difference.fields] == [
        ("budgetPerHour", "24", "30"),
        ("pools[a].domains[rack-0].nodes", 1, 2),
        ("pools[a].domains[rack-1]", {"name": "rack-1", "nodes": 1}, None),
    ]
    assert not difference.same


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The plan as JSON and as YAML, and another plan."""
    old, same, new = tmp_path / "old.json", tmp_path / "same.yaml", tmp_path / "new.json"
    moved = (*PLAN.islands[:3], Island("main-decode-0", "main-decode", ("x",)), PLAN.islands[4])
    old.write_text(to_json(document()))
    same.write_text(to_yaml(document()))
    new.write_text(to_json(document(replace(PLAN, theta=7.0, throughput=7.0, islands=moved))))
    return old, same, new


def test_an_empty_diff_exits_0_and_says_so(run: Runner, files: tuple[Path, Path, Path]) -> None:
    result = run("diff", files[0], files[1])
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("no difference:")


def test_a_difference_exits_1(run: Runner, files: tuple[Path, Path, Path]) -> None:
    result = run("diff", files[0], files[2])
    assert (result.status, result.err) == (1, "")
    assert "-1 (-12.50%)" in result.out
    assert "relocated" in result.out
    data = json.loads(run("diff", files[0], files[2], "-o", "json").out)
    assert (data["same"], data["movedTotal"]["either"]) == (False, 0.0)


def test_what_is_no_plan_exits_2_and_names_the_file(
    run: Runner, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"kind": "Infeasible", "apiVersion": "archipelago.dev/v1alpha1"}')
    result = run("diff", files[0], path)
    assert result.status == 2
    assert result.err.startswith(f"error: {path}: kind: 'Infeasible': write 'Plan'")


def test_names_that_could_forge_a_line_are_escaped(run: Runner, tmp_path: Path) -> None:
    """A plan file is anybody's: what it says is shown, never obeyed."""
    evil = json.loads(to_json(document()).replace('"m"', json.dumps("m\x1b[2J\nno difference")))
    evil["problem"] = document()["problem"]
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(to_json(document()))
    new.write_text(json.dumps(evil))
    result = run("diff", old, new)
    assert result.status == 1
    assert "\x1b" not in result.out
    assert "m\\x1b[2J\\nno difference" in result.out


def test_it_takes_less_than_a_second(run: Runner, tmp_path: Path) -> None:
    """Two plans of a thesis inventory, 58 ranges each."""
    planned = run("plan", "-f", "examples/thesis-c-code.yaml", "-o", "json", "-q").out
    path = tmp_path / "plan.json"
    path.write_text(planned)
    started = time.perf_counter()
    assert run("diff", path, path).status == 0
    assert time.perf_counter() - started <= 1
