"""The ring of scrapes of a window, and what is said of a source. By hand."""

import tracemalloc
from dataclasses import dataclass

import pytest

from archipelago.operator.conditions import Reason, Truth
from archipelago.operator.metricsreport import GRADES, NOTED, metrics_finding, unknown_source
from archipelago.operator.samples import Sample, Scrape, failed
from archipelago.operator.scraped import Scraped
from archipelago.operator.series import Source
from archipelago.operator.signals import adapters
from archipelago.operator.windows import MOST, WindowKey, Windows, shared
from archipelago.planner.livedemand.faults import EFFECTS, Effect, Fault
from archipelago.planner.livedemand.faults import Reason as Wrong
from archipelago.planner.livedemand.window import Flow, Window
from archipelago.planner.problem import Phase

KEY = WindowKey("ns", "plan", "m")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def scrape(at: float, done: float = 0.0) -> Scrape:
    labels = (("archipelago_dev_island", "a"), ("pod", "a-0"))
    names = ("vllm:request_success_total", "vllm:num_requests_running")
    return Scrape(at, tuple(Sample(name, labels, done) for name in names))


def test_a_window_begins_at_the_last_usable_scrape_before_it() -> None:
    """Asked every 15 s; at 100 s the window of 60 s begins at 40: the scrape of 30 s is kept."""
    clock = Clock()
    windows = Windows(clock)
    for clock.now in (0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0):
        windows.add(KEY, scrape(1000 + clock.now))
    clock.now = 100.0
    assert [s.at for s in windows.scrapes(KEY, 60)] == [1030, 1045, 1060, 1075, 1090]


def test_failed_scrapes_do_not_shorten_a_window_nor_lengthen_it_beyond_two() -> None:
    """The scrape of 30 s failed: the window of 60 s begins at 15. After a long outage it is new."""
    clock = Clock()
    windows = Windows(clock)
    for clock.now in (0.0, 15.0, 30.0, 45.0, 60.0):
        windows.add(KEY, failed(1030, "slow") if clock.now == 30 else scrape(1000 + clock.now))
    clock.now = 100.0
    assert [s.at for s in windows.scrapes(KEY, 60)] == [1015, 1030, 1045, 1060]
    clock.now = 500.0
    windows.add(KEY, scrape(1500))
    assert [s.at for s in windows.scrapes(KEY, 60)] == [1500]


def test_rings_are_bounded_and_forgotten_with_their_plan() -> None:
    clock = Clock()
    windows = Windows(clock)
    for clock.now in range(100):
        windows.add(KEY, scrape(clock.now))
        windows.add(KEY._replace(model="n"), scrape(clock.now))
        windows.add(KEY._replace(plan="other"), scrape(clock.now))
    assert len(windows.scrapes(KEY, 1000)) == MOST
    windows.forget("ns", "plan")
    assert len(windows) == 1
    assert windows.scrapes(KEY, 1000) == ()
    seen = windows.counted(KEY, 60, Source(adapters()["vllm"], {"a": Phase.MIXED}))
    assert [f.reason for f in seen.window.faults] == [Wrong.TOO_FEW_SCRAPES]


def test_labels_are_kept_once_for_all_scrapes_of_a_window() -> None:
    """20,000 series of 8 labels: a further scrape costs less than 100 bytes a series."""

    def page(at: float) -> Scrape:
        samples = [
            Sample(
                f"name_{i % 7}",
                tuple((f"label{k}", f"a rather long value {i} {k}") for k in range(8)),
                at,
            )
            for i in range(20_000)
        ]
        return Scrape(at, tuple(samples))

    windows = Windows(Clock())
    windows.add(KEY, page(0.0))
    tracemalloc.start()
    try:
        for at in range(1, 4):
            windows.add(KEY, page(float(at)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 3 / 20_000 < 100
    assert windows.scrapes(KEY, 60)[-1] == page(3.0)


def seen(*faults: Fault, requests: float = 60.0) -> Scraped:
    return Scraped(Window(Flow(30.0, requests, 0.0, 0.0, 0.0), (), (), faults))


def test_a_good_window_is_told_without_a_figure_that_changes() -> None:
    """Two windows with other traffic say the same: the status is written once."""
    finding = metrics_finding("cluster", {"m": seen(), "n": seen(requests=3.4)})
    assert finding.status is Truth.TRUE
    assert finding.reason is Reason.OBSERVED
    assert finding.message == "the traffic of 2 models is read from source cluster"
    assert metrics_finding("cluster", {"m": seen(), "n": seen()}) == finding
    noted = metrics_finding("cluster", {"m": seen(Fault(Wrong.UNKNOWN_ISLAND, "a"))})
    assert noted.message.endswith("1 models is read from source cluster; noted: UnknownIsland")
    assert noted.status is Truth.TRUE


NO_FAULT_OF_A_SOURCE = {Wrong.QUEUES_GROW, Wrong.NO_TRAFFIC, Wrong.SUM_OUTSIDE_BUCKETS}
LEFT = {
    Effect.UNUSABLE: "; what was last believed stays in use",
    Effect.ONLY_RAISES: "; the window may raise what is believed and not lower it",
    Effect.NOTED: "; of two series for one count the larger is taken",
}


@pytest.mark.parametrize("reason", Wrong)
def test_every_fault_has_a_place_in_the_condition(reason: Wrong) -> None:
    """Every fault of a source makes it False, and the message says what the window is used for."""
    finding = metrics_finding("cluster", {"m": seen(Fault(reason, "a", "3"))})
    graded = [grade for grade in GRADES if reason in grade.faults]
    assert len(graded) == (reason not in NOTED | NO_FAULT_OF_A_SOURCE)
    assert finding.status is (Truth.FALSE if graded else Truth.TRUE)
    assert (reason.value in finding.message) == (reason not in NO_FAULT_OF_A_SOURCE)
    assert finding.message.endswith(LEFT[EFFECTS[reason]]) == bool(graded)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Wrong.COUNTER_RESET, Reason.SIGNAL_MISSING),
        (Wrong.MISSING_ISLAND, Reason.SIGNAL_MISSING),
        (Wrong.DUPLICATE_SERIES, Reason.ANSWER_UNUSABLE),
    ],
)
def test_faults_of_single_islands_have_their_reasons(wrong: Wrong, reason: Reason) -> None:
    """Which series of an island are hit is chance: six of two islands say two names."""
    hit = [Fault(wrong, f"{island}: name_{i}") for island in "ba" for i in range(3)]
    finding = metrics_finding("cluster", {"m": seen(*hit)})
    assert finding.reason is reason
    assert finding.message.startswith(f"source cluster: m: {wrong} (a, b); ")
    assert metrics_finding("cluster", {"m": seen(*hit[1:])}) == finding


def test_a_restart_changes_nothing_of_what_lasts() -> None:
    """Two monitors scrape a; b says nothing; c restarts in one window and in the next does not."""
    restart = [Fault(Wrong.COUNTER_RESET, "c: x"), Fault(Wrong.SERIES_APPEARED, "c: y")]
    silent, twice = Fault(Wrong.MISSING_ISLAND, "b"), Fault(Wrong.DUPLICATE_SERIES, "a: x")
    for lasting in ([silent], [twice], [silent, twice]):
        calm = metrics_finding("cluster", {"m": seen(*lasting)})
        assert metrics_finding("cluster", {"m": seen(*lasting, *restart)}) == calm
    assert metrics_finding("cluster", {"m": seen(*restart)}).message == (
        "source cluster: m: CounterReset (c), SeriesAppeared (c); "
        "the window may raise what is believed and not lower it"
    )


def test_the_fault_that_explains_the_others_comes_first_and_names_are_few() -> None:
    models = {
        f"m{i}": seen(Fault(Wrong.SOURCE_FAILED, "", "no answer within 8 s")) for i in range(9)
    }
    models["a"] = seen(Fault(Wrong.MISSING_SIGNAL, "inputs", "vllm:request_prompt_tokens"))
    finding = metrics_finding("cluster", models)
    assert finding.reason is Reason.SOURCE_FAILED
    assert finding.message.startswith(
        "source cluster: m0: SourceFailed (no answer within 8 s), m1:"
    )
    assert "and 4 more; what was last believed stays in use" in finding.message


def test_text_of_a_series_is_escaped_cut_and_names_no_address() -> None:
    faults = [
        Fault(Wrong.NOT_A_NUMBER, "\x1b[2Jred\n"),
        Fault(Wrong.NOT_A_NUMBER, "http://inner.example/token"),
        *(Fault(Wrong.NOT_A_NUMBER, "x" * 10_000 + str(i)) for i in range(9)),
    ]
    message = metrics_finding("cluster", {"m": seen(*faults)}).message
    assert "\\x1b[2Jred\\n" in message
    assert "inner.example" not in message
    assert len(message.encode()) <= 1024
    assert message.isprintable()


def test_a_source_that_is_not_configured_is_answered_with_those_that_are() -> None:
    finding = unknown_source("x", ["b", "a"])
    assert (finding.status, finding.reason) == (Truth.FALSE, Reason.SOURCE_UNKNOWN)
    assert finding.message == "the operator has no metric source x: there are a, b"
    assert "no source is configured" in unknown_source("x", []).message


def test_a_window_that_ends_is_counted_in_all_and_by_island() -> None:
    """From 10 to 70 requests in 60 s, at the one island that there is; two scrapes, one failed."""
    clock = Clock()
    windows = Windows(clock)
    source = Source(adapters()["vllm"], {"a": Phase.DECODE})
    for clock.now, done in ((0.0, 10.0), (60.0, 70.0)):
        windows.keep(KEY, shared(scrape(1000 + clock.now, done), windows.last(KEY)))
    windows.add(KEY, failed(1061, "slow"))
    found = windows.ended(KEY, 60, source)
    assert found.counted == windows.counted(KEY, 60, source)
    assert found.islands["a"].requests == 60
    assert found.islands["a"].running == 40
    assert windows.ended(WindowKey("ns", "other", "m"), 60, source).islands == {}
