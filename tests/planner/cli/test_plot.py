"""The picture of a plan: everything is named, nothing overlaps, equal plans give equal files."""

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

from archipelago.perfmodel.lengths import Range
from archipelago.planner import plot
from archipelago.planner.errors import InputError
from archipelago.planner.plan import Certificate, Pair, Plan, Route
from archipelago.planner.plotmarks import BASE, group_marks
from archipelago.planner.problem import STAGES, Objective, Phase, PlanningProblem
from tests.planner.handmade import GROUPS, PLAN, POOLS, problem
from tests.planner.manykinds import KINDS, PROBLEM
from tests.planner.small import demand


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
        mine = [g for g in groups if g.model == model]
        prefill = [g.name for g in mine if g.phase is Phase.PREFILL]
        decode = [g.name for g in mine if g.phase is Phase.DECODE]
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
    asked = replace(problem(), models=(demand("m"), demand("n")), pools=pools)
    return asked, replace(PLAN, groups=groups, routes=tuple(routes))


CASES = {
    "paper": (problem(), PLAN),
    "12 groups": many_groups(12),
    "60 groups": many_groups(60),
    "kinds": (PROBLEM, KINDS),
}


@pytest.mark.parametrize(("asked", "plan"), CASES.values(), ids=CASES.keys())
def test_png_is_not_blank(asked: PlanningProblem, plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    plot.draw(asked, plan, str(path))
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


@pytest.mark.parametrize(("asked", "plan"), CASES.values(), ids=CASES.keys())
def test_labels_neither_overlap_nor_leave_the_picture(asked: PlanningProblem, plan: Plan) -> None:
    with mpl.rc_context(plot.STYLE):
        figure = plot.figure(asked, plan)
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
        (one, other)
        for (one, a), (other, b) in combinations(labels, 2)
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


def test_headroom_and_an_early_end_are_said() -> None:
    proof = Certificate(2.5, 0.2, complete=False, reason="time limit")
    plan = replace(PLAN, objective=Objective.HEADROOM, theta=2.0, certificate=proof)
    assert plot.headline(plan) == "paper: 8.0 req/s (2 times the stated rates)"
    assert "within 20.000% of the best possible (not final: time limit)" in plot.subline(plan)


def test_says_so_where_matplotlib_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty finder is what an environment without the extra has."""
    monkeypatch.setattr(plot, "find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"pip install 'archipelago\[plot\]'"):
        plot.require("x.png")
