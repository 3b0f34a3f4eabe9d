"""The graph of a plan file: the plot's data as text, and the plot itself."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.planner.bars import bar, text_graph
from archipelago.planner.canonical import to_json
from archipelago.planner.document import plan_document
from tests.planner.handmade import PLAN, PLANNED, problem, resource
from tests.planner.test_cli import Runner


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan_document(resource(), PLANNED)))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


def test_the_text_says_what_stands_where_and_who_serves_what() -> None:
    """Pool a: two islands of 4 and one of 8 of its 16 GPUs. A quarter of the short decode on d."""
    half = "A" * 24 + "C" * 24
    assert list(text_graph(problem(), PLAN))[3:] == [
        f"a  {half}  16 of 16 GPUs",
        f"b  {'B' * 24 + 'D' * 24}  4 of 4 GPUs",
        "",
        "A  short-prefill: 2 x 4 GPUs prefill tp4, 4.00 req/s, 10.0% of time",
        "B  long-prefill: 1 x 2 GPUs prefill pp2, 4.00 req/s, 60.0% of time",
        "C  main-decode: 1 x 8 GPUs decode tp8, 7.00 req/s, 8.9% of batch",
        "D  spare-decode: 1 x 2 GPUs decode tp2, 1.00 req/s, 1.2% of batch",
        "",
        "input tokens of m",
        f"   0 - 99  requests  {'#' * 24 + '.' * 24}  50.0%",
        f"           prefill   {'A' * 48}  A 100%",
        f"           decode    {'C' * 36 + 'D' * 12}  C 75%, D 25%",
        f"100 - 199  requests  {'#' * 24 + '.' * 24}  50.0%",
        f"           prefill   {'B' * 48}  B 100%",
        f"           decode    {'C' * 48}  C 100%",
    ]


@pytest.mark.parametrize("parts", [3, 7, 29])
def test_a_full_bar_is_exactly_full(parts: int) -> None:
    assert len(bar(("x", 1 / parts) for _ in range(parts))) == 48
    assert "." not in bar(("x", 1 / parts) for _ in range(parts))


def test_without_a_file_it_is_text(run: Runner, plan_file: Path) -> None:
    result = run("graph", plan_file)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("paper: 8.0 req/s\n")
    assert "A  short-prefill: 2 x 4 GPUs" in result.out


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_with_a_file_it_is_the_plot(run: Runner, plan_file: Path, name: str, start: bytes) -> None:
    picture = plan_file.parent / name
    result = run("graph", plan_file, "-o", picture)
    assert (result.status, result.out, result.err) == (0, "", "")
    assert picture.read_bytes().startswith(start)


def test_a_file_that_cannot_be_drawn_is_said_under_its_option(run: Runner, plan_file: Path) -> None:
    result = run("graph", plan_file, "-o", "plan.pdf")
    assert result.status == 2
    assert result.err == "error: -o plan.pdf: the name must end in .png or .svg\n"


def test_names_that_could_forge_a_line_are_escaped(run: Runner, plan_file: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["groups"][0]["binding"] = "time\x1b[2J\nno"
    plan_file.write_text(json.dumps(document))
    result = run("graph", plan_file)
    assert "\x1b" not in result.out
    assert "time\\x1b[2J\\nno" in result.out


def test_a_pool_without_islands_is_free() -> None:
    lines = list(text_graph(problem(), replace(PLAN, groups=PLAN.groups[:1], routes=())))
    assert f"b  {'.' * 48}  0 of 4 GPUs" in lines


def test_the_same_as_data(run: Runner, plan_file: Path) -> None:
    result = run("graph", plan_file, "-o", "json")
    data = json.loads(result.out)
    assert result.status == 0
    assert [pool["gpus"] for pool in data["pools"]] == [{"A": 8, "C": 8}, {"B": 2, "D": 2}]
    assert data["lengths"][0] == {
        "model": "m", "min": 0, "max": 100, "share": 0.5,
        "prefill": {"A": 1.0}, "decode": {"C": 0.75, "D": 0.25},
    }  # fmt: skip
