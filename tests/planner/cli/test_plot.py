"""The picture of a plan: everything is named, nothing overlaps, equal plans give equal files."""

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from archipelago.perfmodel.workload.lengths import Range
from archipelago.planner.cli import plot, plot_marks
from archipelago.planner.cli.plot_marks import BASE, group_marks, require
from archipelago.planner.cli.plot_text import bar, text_plot
from archipelago.planner.documents import to_json
from archipelago.planner.errors import InputError
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.plan import Certificate, Pair, Plan, Route
from archipelago.planner.problem import STAGES, Objective, Phase, PlanningProblem
from tests.support.planner.command import Runner
from tests.support.planner.handmade import GROUPS, PLAN, PLANNED, POOLS, problem, resource
from tests.support.planner.manykinds import KINDS, PROBLEM
from tests.support.planner.small import demand


def many_groups(count: int) -> tuple[PlanningProblem, Plan]:
    """``count`` groups of one island in two pools and two models, and routes over 40 ranges."""
    groups = tuple(
        replace(
            GROUPS[2 if i % 2 else 0], name=f"g{i}", model=("m", "n")[i % 4 // 2],
            pool=("a", "b")[i % 3 % 2], islands=1 + i % 3, gpus=4,
        )
        for i in range(count)
    )  # fmt: skip
    routes = []
    for model in ("m", "n"):
        own = [g for g in groups if g.model == model]
        prefill = [g.name for g in own if g.phase is Phase.PREFILL]
        decode = [g.name for g in own if g.phase is Phase.DECODE]
        routes += [
            Route(
                model, Range(int(50 * 1.15**i) if i else 0, int(50 * 1.15 ** (i + 1))), 1 / 40,
                (
                    Pair(prefill[i * len(prefill) // 40], decode[i % len(decode)], 600_000),
                    Pair(prefill[-1], decode[0], 400_000),
                ),
            )
            for i in range(40)
        ]  # fmt: skip
    used = {p: sum(g.gpus * g.islands for g in groups if g.pool == p) for p in ("a", "b")}
    pools = tuple(replace(pool, count=used[pool.name] + 8) for pool in POOLS)
    case = replace(problem(), models=(demand("m"), demand("n")), pools=pools)
    return case, replace(PLAN, groups=groups, routes=tuple(routes))


CASES = {
    "paper": (problem(), PLAN),
    "12 groups": many_groups(12),
    "60 groups": many_groups(60),
    "kinds": (PROBLEM, KINDS),
}


@pytest.mark.parametrize(("case", "plan"), CASES.values(), ids=CASES.keys())
@pytest.mark.slow
def test_png_is_not_blank(case: PlanningProblem, plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    plot.draw(case, plan, str(path))
    pixels = imread(path)[..., :3]
    blank = np.all(pixels > 0.99, axis=-1).mean()
    assert 0.2 < blank < 0.95
    for phase in {group.phase for group in plan.groups}:  # its darkest shade covers a visible part
        close = np.abs(pixels - np.array(BASE[phase])).max(axis=-1) < 0.02
        assert close.mean() > 0.002, phase


def test_svg_names_everything(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    plot.draw(problem(), PLAN, str(path))
    texts = set(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))
    expected = {
        "paper: 8.0 req/s", "within 0.050% of the best possible, $24.00 per hour, 5 islands",
        "a", "H20", "b", "L40S", "GPUs", "A  2 x 4 GPUs", "C  1 x 8 GPUs", "prefill", "decode",
        "a, m", "b, m", "tp8", "60% time", "requests", "prefilled by", "decoded by",
        "m: who serves which input length", "100 %",
    }  # fmt: skip
    assert expected - texts == set()
    assert {"A", "B", "C", "D"} <= texts


def test_equal_plans_give_equal_files(tmp_path: Path) -> None:
    for ending in ("svg", "png"):
        files = [tmp_path / f"{name}.{ending}" for name in ("one", "two")]
        for file in files:
            plot.draw(problem(), PLAN, str(file))
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(("case", "plan"), CASES.values(), ids=CASES.keys())
def test_labels_neither_overlap_nor_leave_the_picture(case: PlanningProblem, plan: Plan) -> None:
    with mpl.rc_context(plot.STYLE):
        figure = plot.figure(case, plan)
        figure.draw_without_rendering()
        seen = set(figure.findobj(Text)) - _not_drawn(figure)
        labels = [
            (text.get_text(), text.get_window_extent())
            for text in seen
            if isinstance(text, Text) and text.get_visible() and text.get_text().strip()
        ]
    assert len(labels) > 20
    for name, box in labels:
        assert box.x0 >= 0, name
        assert box.y0 >= 0, name
        assert box.x1 <= figure.bbox.x1, name
        assert box.y1 <= figure.bbox.y1, name
    overlapping = [
        (first, second)
        for (first, a), (second, b) in combinations(labels, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert overlapping == []


def _not_drawn(figure: Figure) -> set[Text]:
    """Labels of hidden axes and tick labels outside of an axis: they exist but nobody sees them."""
    unseen: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.majorTicks, *axis.minorTicks):
                inside = low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9)
                if not (axes.axison and inside):
                    unseen |= {tick.label1, tick.label2}
    return unseen


def test_colours_tell_phases_apart_without_red_and_green() -> None:
    """Seen with deuteranopia (Vienot 1999), phases still differ clearly, if only in lightness."""
    sight = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
    seen = {phase: sight @ np.array(BASE[phase]) for phase in Phase}
    assert np.abs(seen[Phase.PREFILL] - seen[Phase.DECODE]).max() > 0.4
    for stage in STAGES:
        assert np.abs(seen[Phase.MIXED] - seen[stage]).max() > 0.2, stage


def test_shades_of_one_phase_are_all_different() -> None:
    marks = group_marks(many_groups(60)[1])
    assert len({mark.letter for mark in marks.values()}) == 60
    assert len({mark.colour for mark in marks.values()}) == 60
    assert [marks[f"g{i}"].letter for i in (0, 25, 26, 59)] == ["A", "Z", "AA", "BH"]


def test_many_islands_become_one_box_per_group(tmp_path: Path) -> None:
    group = replace(GROUPS[0], islands=101, gpus=1)
    islands = tuple(replace(PLAN.islands[0], name=f"i{n}") for n in range(101))
    plan = replace(PLAN, groups=(group, *GROUPS[1:]), islands=islands)
    pools = (replace(POOLS[0], count=120), POOLS[1])
    path = tmp_path / "plan.svg"
    plot.draw(replace(problem(), pools=pools), plan, str(path))
    assert "One box for each group of islands" in path.read_text()
    assert "A  101 x 1 GPU<" in path.read_text()


def test_headroom_and_an_early_end_are_shown() -> None:
    proof = Certificate(2.5, 0.2, complete=False, reason="time limit")
    plan = replace(PLAN, objective=Objective.HEADROOM, theta=2.0, certificate=proof)
    assert plot_marks.headline(plan) == "paper: 8.0 req/s (2 times the stated rates)"
    assert "within 20.000% of the best possible (not final: time limit)" in plot_marks.subline(plan)


def test_says_so_where_matplotlib_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty finder is what an environment without the extra has."""
    monkeypatch.setattr(plot_marks, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'archipelago-serving\[plot\]'"):
        require("x.png")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(to_json(plan_document(resource(), PLANNED)))
    return path


def test_the_text_says_what_stands_where_and_who_serves_what() -> None:
    """Pool a: two islands of 4 and one of 8 of its 16 GPUs. A quarter of the short decode on d."""
    half = "A" * 24 + "C" * 24
    assert list(text_plot(problem(), PLAN))[3:] == [
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
    result = run("plot", plan_file)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("paper: 8.0 req/s\n")
    assert "A  short-prefill: 2 x 4 GPUs" in result.out


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_with_a_file_it_is_the_plot(run: Runner, plan_file: Path, name: str, start: bytes) -> None:
    picture = plan_file.parent / name
    result = run("plot", plan_file, "-o", picture)
    assert (result.status, result.out, result.err) == (0, "", "")
    assert picture.read_bytes().startswith(start)


def test_a_file_that_cannot_be_drawn_is_an_error_of_its_option(
    run: Runner, plan_file: Path
) -> None:
    result = run("plot", plan_file, "-o", "plan.pdf")
    assert result.status == 2
    assert result.err == "error: -o plan.pdf: the name must end in .png or .svg\n"


def test_names_that_could_forge_a_line_are_escaped(run: Runner, plan_file: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["groups"][0]["binding"] = "time\x1b[2J\nno"
    plan_file.write_text(json.dumps(document))
    result = run("plot", plan_file)
    assert "\x1b" not in result.out
    assert "time\\x1b[2J\\nno" in result.out


def test_a_pool_without_islands_is_free() -> None:
    lines = list(text_plot(problem(), replace(PLAN, groups=PLAN.groups[:1], routes=())))
    assert f"b  {'.' * 48}  0 of 4 GPUs" in lines


def test_the_same_as_data(run: Runner, plan_file: Path) -> None:
    result = run("plot", plan_file, "-o", "json")
    data = json.loads(result.out)
    assert (result.status, data["kind"]) == (0, "Plot")
    assert [pool["gpus"] for pool in data["pools"]] == [{"A": 8, "C": 8}, {"B": 2, "D": 2}]
    assert data["lengths"][0] == {
        "model": "m", "min": 0, "max": 100, "share": 0.5,
        "prefill": {"A": 1.0}, "decode": {"C": 0.75, "D": 0.25},
    }  # fmt: skip
