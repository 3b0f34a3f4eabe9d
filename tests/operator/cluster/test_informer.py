"""When the watches count as dead, and what is told about them."""

from archipelago.operator.cluster.handlers import WatchHealth
from archipelago.operator.cluster.informer import EndlessBackoff, recent_failures
from archipelago.operator.metrics import Metrics

NEVER = float("-inf")


def test_only_failures_without_an_answer_in_ten_minutes_count() -> None:
    assert recent_failures([], 0.0, NEVER) == [0.0]
    assert recent_failures([0.0, 300.0], 590.0, NEVER) == [0.0, 300.0, 590.0]
    assert recent_failures([0.0, 300.0], 601.0, NEVER) == [300.0, 601.0]
    assert recent_failures([0.0, 300.0], 310.0, 305.0) == [310.0]


def test_a_watch_has_an_age_and_a_time_of_failure() -> None:
    clock = 0.0
    streams = WatchHealth(Metrics(), lambda: clock)
    streams.answered("configmaps")
    clock = 40.0
    streams.failed("configmaps", "503")
    clock = 50.0
    streams.failed("configmaps", "503")

    assert streams.age("configmaps") == 50.0
    assert streams.failing_for("configmaps") == 10.0
    streams.answered("configmaps")
    assert (streams.age("configmaps"), streams.failing_for("configmaps")) == (0.0, 0.0)


def test_delays_of_kopf_have_no_end_and_a_limit() -> None:
    delays = [delay for delay, _ in zip(EndlessBackoff(), range(1000), strict=False)]

    assert len(delays) == 1000
    assert max(delays) <= 12.0
    assert not hasattr(EndlessBackoff(), "__len__")
