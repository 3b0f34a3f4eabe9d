"""Whatever a source answers, a window is dropped for a named reason or lies within the bounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipelago.operator.resources.status import ConditionStatus, Finding, Reason
from archipelago.operator.traffic.report import metrics_report
from archipelago.operator.traffic.samples import SeriesSelector
from archipelago.operator.traffic.signals import Scope, adapters
from archipelago.operator.traffic.trust import CALM, MOST, STEADY, Report, Trust
from archipelago.operator.traffic.window import WindowCounts, counted_window
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.planner.demand.faults import FaultReason
from archipelago.planner.demand.plausible import ceilings, implausible
from archipelago.planner.demand.window import ModelWindow, ObservedWindow
from archipelago.planner.problem import Phase
from archipelago.planner.service.messages import ReplanRequest, decode_request, encode_request
from tests.support.operator.hostile import FORMS, NUMBERS, TIMES, Hostile

MOST_OF_TWO = ceilings(architecture("Llama-3.1-8B"), [accelerator("H100")], 2)
ENGINES = sorted(adapters())
FALSE = (Reason.ANSWER_UNUSABLE, Reason.SIGNAL_MISSING, Reason.SOURCE_FAILED)


def window(source: Hostile) -> WindowCounts:
    """A minute of the source, in five scrapes."""
    islands = dict.fromkeys(("a", "b"), Phase.MIXED)
    timed = [(at, source.scrape(at)) for at in (0.0, 15.0, 30.0, 45.0, 60.0)]
    return counted_window(timed, SeriesSelector(source.adapter, islands, most=MOST_OF_TWO))


def as_asked(counts: WindowCounts) -> ReplanRequest:
    """The request that a planner process reads."""
    observed = ObservedWindow(60.0, {"m": ModelWindow(*counts)})
    request = ReplanRequest(resource={}, content="", inputs="", seed=0, window=observed)
    read = decode_request(encode_request(request))
    assert isinstance(read, ReplanRequest)
    return read


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 10**9), st.sampled_from(ENGINES))
def test_a_window_is_dropped_whole_or_within_the_bounds(seed: int, engine: str) -> None:
    counts = window(Hostile(seed, engine=engine))
    report = metrics_report("cluster", {"m": counts.counted})
    assert implausible(ModelWindow(*counts), MOST_OF_TWO) is None
    assert as_asked(counts).window is not None
    if report.usable:
        assert counts.counted.window.flow.arrivals <= MOST_OF_TWO.tokens_per_second * 60
    else:
        assert report.finding.status is ConditionStatus.FALSE
        assert report.finding.reason in FALSE
        assert counts.islands == {}
        assert counts.counted.window.inputs == counts.counted.window.outputs == ()


@pytest.mark.parametrize("habits", [frozenset[str](), frozenset({"old names"})], ids=["new", "old"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_honest_source_is_believed(engine: str, habits: frozenset[str]) -> None:
    source = Hostile(1, habits=habits, engine=engine)
    counts = window(source)
    assert counts.counted.window.faults == ()
    assert counts.counted.window.flow.completed == pytest.approx(2 * 3 * 60)
    of_islands = source.adapter.scope is Scope.ISLAND
    assert set(counts.islands) == ({"a", "b"} if of_islands else set())


LIES = {
    "twice and other": FaultReason.IMPLAUSIBLE,
    "other model": FaultReason.SEVERAL_MODELS,
    "bad bounds": FaultReason.BROKEN_HISTOGRAM,
    "no last bucket": FaultReason.BROKEN_HISTOGRAM,
    "other count": FaultReason.BROKEN_HISTOGRAM,
    "falling": FaultReason.BROKEN_HISTOGRAM,
    "many buckets": FaultReason.IMPLAUSIBLE,
    "huge bounds": FaultReason.IMPLAUSIBLE,
    "restarts": FaultReason.IMPLAUSIBLE,
    "far ahead": FaultReason.IMPLAUSIBLE,
    "backwards": FaultReason.TIME_WENT_BACK,
    "constant": FaultReason.NOT_A_NUMBER,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("habit", LIES)
def test_each_lie_has_its_name(habit: str, engine: str) -> None:
    source = Hostile(2, habits=frozenset({habit}), engine=engine)
    source.extreme = "1e308"
    found = {fault.reason for fault in window(source).counted.window.faults}
    assert LIES[habit] in found
    assert habit in {*NUMBERS, *TIMES, *FORMS}


GOOD = Report(Finding(ConditionStatus.TRUE, Reason.OBSERVED, "read"), usable=True)
RAISES = Report(Finding(ConditionStatus.FALSE, Reason.SIGNAL_MISSING, "restart"), usable=True)


def bad(message: str) -> Report:
    finding = Finding(ConditionStatus.FALSE, Reason.ANSWER_UNUSABLE, message)
    return Report(finding, usable=False)


def test_an_outage_and_its_end_are_reported_at_once() -> None:
    trust = Trust().after(GOOD)
    assert trust.is_believed
    trust = trust.after(bad("down"))
    assert (trust.finding, trust.is_believed) == (bad("down").finding, False)
    trust = trust.after(GOOD)
    assert (trust.finding, trust.is_believed) == (GOOD.finding, True)


def test_a_message_that_changes_in_every_window_is_written_once() -> None:
    trust = Trust().after(bad("0"))
    for turn in range(1, 100):
        trust = trust.after(bad(f"{turn}"))
    assert trust.finding == bad("0").finding
    for _ in range(STEADY):
        trust = trust.after(bad("label missing"))
    assert trust.finding == bad("label missing").finding


@given(st.lists(st.sampled_from([GOOD, RAISES, bad("a"), bad("b")]), max_size=400))
@settings(max_examples=200, derandomize=True)
def test_no_window_is_believed_that_the_condition_calls_unusable(reports: list[Report]) -> None:
    trust, changes, rows = Trust(), 0, 0
    before: Report | None = None
    for report in reports:
        after = trust.after(report)
        changes += after.reported != trust.reported
        rows += report == before and after.run == CALM
        before, trust = report, after
        if trust.is_believed:
            assert report.usable
            assert trust.reported is not None
            assert trust.reported.usable
    assert changes <= 12 + len(reports) // MOST + 3 * rows
    assert replace(trust, run=0) != trust or not reports


def test_a_source_that_changes_its_mind_is_believed_ever_later() -> None:
    trust, changes = Trust(), 0
    for turn in range(200):
        after = trust.after(GOOD if turn % 2 else bad("every other"))
        changes += after.reported != trust.reported
        trust = after
    assert changes <= 4
    for _ in range(MOST):
        trust = trust.after(GOOD)
    assert trust.is_believed
