"""The closed loop on the scenarios of ``live/*.yaml``, each against what was expected beforehand.

The default plays a part of each (``tested.scale`` in the file); ``LIVE_SCALE=1`` plays them whole.
Figures of whole scenarios stand in docs/evidence/live.md.
"""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.closedloop.live import Live
from benchmarks.closedloop.results import Result, play_all
from benchmarks.closedloop.scenario import AbsentError, files, load

pytestmark = pytest.mark.slow

WHOLE = os.environ.get("LIVE_SCALE")
REPAIR_SECONDS = 2.0
CPU_SECONDS = 0.6
"""Of the median window, with room for a busy machine; benchmarks/replan.py has the bar."""


def played(file: Path) -> tuple[Result, Live, dict[str, float]]:
    """A scenario, a part of it or whole."""
    try:
        scenario = load(file, float(WHOLE or 1.0))
        bars = scenario.document["tested"]
        if WHOLE is None:
            scenario = load(file, bars["scale"])
    except AbsentError as absent:
        pytest.skip(str(absent))
    result, pilot = play_all(scenario)
    losses = [event.at for event in scenario.course.events if event.lose]
    return result, pilot, {**bars, "lost": min(losses, default=0.0)}


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_a_scenario_comes_to_what_was_expected(file: Path) -> None:
    """All of a scenario in one test: it is played once, whichever process gets it."""
    case = played(file)
    for holds in (
        requests_served_beside_full_knowledge_and_no_change,
        every_question_is_answered,
        changes_stay_within_what_was_expected,
        lost_islands_leave_the_table_within_two_seconds,
        demand_does_not_fall_in_an_overload,
        dollars_are_saved_where_that_is_asked,
    ):
        holds(case)


def requests_served_beside_full_knowledge_and_no_change(
    case: tuple[Result, Live, dict[str, float]],
) -> None:
    result, _, bars = case
    assert result.ratio >= bars["ratio"]
    assert result.ours.served >= bars.get("gain", 1.0) * result.still.served * 0.99


def every_question_is_answered(case: tuple[Result, Live, dict[str, float]]) -> None:
    result, pilot, _ = case
    assert pilot.failures == []
    assert len(pilot.log) > 3
    assert result.cpu_median < CPU_SECONDS


def changes_stay_within_what_was_expected(case: tuple[Result, Live, dict[str, float]]) -> None:
    """Flips and reshapes at most as often as the file says, and pauses between them."""
    result, pilot, bars = case
    acts = [d for d in result.decided if d.level in {"Flip", "Reshape"}]
    assert len(acts) <= bars["changes"]
    dwell = pilot.resource["spec"]["replanning"].get("dwellSeconds", 900)
    flips = [d.at for d in acts if d.level == "Flip"]
    pause = pilot.resource["spec"]["replanning"].get("coolDownSeconds", 300)
    assert all(b - a >= min(pause, dwell) for a, b in pairwise(flips))


def lost_islands_leave_the_table_within_two_seconds(
    case: tuple[Result, Live, dict[str, float]],
) -> None:
    result, pilot, bars = case
    repairs = [d for d in result.decided if d.trigger == "Repair"]
    lost = [told for told in pilot.log if told.cause == "nodes"]
    if not lost:
        assert repairs == []
        return
    assert 0 <= repairs[0].at - bars["lost"] <= REPAIR_SECONDS


def demand_does_not_fall_in_an_overload(case: tuple[Result, Live, dict[str, float]]) -> None:
    """Long prompts that nobody finishes are still there."""
    result, _, bars = case
    assert result.demand >= bars.get("demand", 0.0)


def dollars_are_saved_where_that_is_asked(case: tuple[Result, Live, dict[str, float]]) -> None:
    """Of what a plan that never changes pays from the first change of prices on."""
    result, _, bars = case
    assert result.ours.dollars <= bars.get("dollars", 10.0) * result.still.dollars
