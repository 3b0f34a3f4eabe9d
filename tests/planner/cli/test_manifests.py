"""What people see of plans with every kind of island: text, plot, picture, difference."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.planner.cli import plot
from archipelago.planner.cli.plot_text import text_plot
from archipelago.planner.cli.show_plan import show_plan
from archipelago.planner.cli.terminal import console
from archipelago.planner.explain.diff import Figure, compare, template_key
from archipelago.planner.formats.plan_file import Stored
from archipelago.planner.plan import Plan
from archipelago.planner.problem import Billing, PlanningProblem
from tests.support.planner.handmade import PLAN, problem
from tests.support.planner.manykinds import KINDS, PROBLEM


def shown(case: PlanningProblem = PROBLEM, plan: Plan = KINDS) -> str:
    out = io.StringIO()
    show_plan(console(out), case, plan, {"bound": 0.0, "planSeconds": 0.1})
    return out.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        "  least cost  $26.00 per hour for 1.5 times the stated rates",
        "  proof       at least $25.00 per hour is needed, gap 3.846%",
        "  headroom    1.5 times the stated rates",
        "  rented      8 GPUs of a",
        "  islands     1 prefill, 1 decode, 2 mixed",
    ],
)
def test_the_header_says_what_was_asked_for_and_what_is_rented(line: str) -> None:
    assert line in shown().splitlines()


def test_pools_count_the_gpus_of_every_island_and_what_is_paid() -> None:
    """18 GPUs of a stand on three nodes of 8: $24; the same billed by the GPU is $18."""
    islands = "1 prefill of 2 GPUs with 1 of b, 1 decode of 8 GPUs, 2 mixed of 4 GPUs"
    rows = re.findall(r"^(a|b) +(\S+) +(.*?)  +(\S+)   (.*?) *$", shown(), re.MULTILINE)
    assert rows == [
        ("a", "H20", "18 of 16 + 8", "24.00", islands),
        ("b", "L40S", "1 of 4", "2.00", "1 prefill of 1 GPU with 2 of a"),
    ]
    pools = (replace(PROBLEM.pools[0], billing=Billing.PER_GPU), PROBLEM.pools[1])
    assert re.search(r"18 of 16 \+ 8 +18\.00", shown(replace(PROBLEM, pools=pools)))


def test_groups_show_class_parts_and_the_batch_of_mixed_islands() -> None:
    lines = {line.split()[0]: line.split() for line in shown().splitlines() if "fast" in line}
    assert lines["a-4g"][:6] == ["a-4g", "fast", "mixed", "2", "4", "tp4"]
    assert lines["a-4g"][6:] == ["32", "4.00", "50.0%", "time", "20.00"]
    assert lines["a-2g-b-1g"][:6] == ["a-2g-b-1g", "fast", "prefill", "1", "2+1", "pp3"]


def test_a_request_of_a_mixed_island_stands_on_both_sides() -> None:
    text = re.sub(" +", " ", shown())
    assert "0 - 99 50.0% a-4g-mixed a-4g-mixed" in text
    assert "100 - 199 50.0% a-2g-b-1g 67%, a-4g-mixed 33% a-8g 67%, a-4g-mixed 33%" in text


def test_what_changes_is_said_and_escaped() -> None:
    lines = shown().partition("against the running plan\n")[2].splitlines()
    assert lines[:5] == [
        "  kept     2 islands",
        "  moved    1 island: m-a-2g-b-1g-prefill-0",
        "  started  1 island: m-a-8g-decode-0",
        "  stopped  1 island: old\\x1b[2J-0",
        "  restart  11 GPUs of the islands that start or move",
    ]


def test_an_ordinary_plan_shows_none_of_this() -> None:
    text = shown(problem(), PLAN)
    assert not re.search(r"mixed|rented|running|CLASS|least", text)
    assert "  islands     3 prefill, 2 decode\n" in text


def test_the_text_plot_shows_parts_and_what_could_be_rented() -> None:
    """2 columns per GPU of a: 16 of mixed, 4 of the pipeline, 16 of decode, the rest of 24."""
    lines = list(text_plot(PROBLEM, KINDS))
    assert lines[0] == "kinds: 6.0 req/s (1.5 times the stated rates)"
    assert lines[1].startswith("within 3.846% of the least possible cost, $26.00 per hour")
    a = "A" * 16 + "B" * 4 + "C" * 16 + "-" * 12
    assert lines[3] == f"a  {a}  18 of 16 GPUs, 8 of 8 rented"
    assert lines[4] == f"b  {'B' * 12 + '.' * 36}  1 of 4 GPUs"
    assert "B  m-a-2g-b-1g-prefill: 1 x 2+1 GPUs prefill pp3, 2.00 req/s" in lines[7]


def test_the_picture_names_mixed_islands_and_what_is_not_rented(tmp_path: Path) -> None:
    path = tmp_path / "kinds.svg"
    plot.draw(PROBLEM, KINDS, str(path))
    texts = set(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))
    assert {"mixed", "A  2 x 4 GPUs", "B", "not rented", "a in fast, m"} <= texts


def test_kinds_differ_by_class_and_parts() -> None:
    kinds = {str(template_key(group)) for group in KINDS.groups}
    assert kinds == {
        "m/a@fast/x4/mixed/tp4/b32",
        "m/a+b@fast/x2+1/prefill/pp3",
        "m/a@fast/x8/decode/tp8/b64",
    }


def test_a_difference_between_objectives_compares_only_what_has_one_unit() -> None:
    """A bound on cost and one on requests have no difference; the headrooms have."""
    difference = compare(
        Stored({"problem": {}}, PLAN, problem()), Stored({"problem": {}}, KINDS, PROBLEM)
    )
    figures = {
        (figure.name, figure.unit): (figure.old, figure.new) for figure in difference.figures
    }
    assert figures["bound", "req/s"] == (8.004, None)
    assert figures["bound", "$/h"] == (None, 25.0)
    assert Figure("rented of a", "GPUs", 0, 8) in difference.figures
    assert [round(value or 0, 3) for value in figures["tpot of m", "ms"]] == [10.844, 20.0]
    assert [(pool.pool, pool.used) for pool in difference.pools] == [("a", (16, 18)), ("b", (4, 1))]
