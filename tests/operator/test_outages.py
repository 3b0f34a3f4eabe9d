"""What fails for long is told once, and so is its end."""

import logging

import pytest

from archipelago.operator.outages import LONGEST, Outages


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="archipelago")
    return caplog


def lines(told: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in told.records]


def test_one_line_per_outage_and_one_when_it_is_over(told: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    for second in range(1000):
        clock.now = float(second)
        outages.failed("the watch of x", "refused")
        outages.failed("the watch of y", "refused")
    outages.works("the watch of x")
    outages.works("the watch of x")

    assert lines(told) == [
        ("WARNING", "the watch of x: fails, and is tried until it works"),
        ("WARNING", "the watch of y: fails, and is tried until it works"),
        ("INFO", "the watch of x: works again"),
    ]
    assert vars(told.records[-1])["after_s"] == 999.0


def test_what_comes_and_goes_is_told_once_a_minute(told: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    for second in range(120):
        clock.now = float(second)
        outages.failed("x", "refused")
        outages.works("x")

    levels = [level for level, _ in lines(told)]
    assert levels == ["WARNING", "INFO", "WARNING", "INFO"]


def test_an_outage_that_began_in_a_quiet_minute_is_told_when_it_lasts(
    told: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    outages = Outages(clock)
    outages.failed("x", "first")
    outages.works("x")
    clock.now = 30.0
    outages.failed("x", "second")
    clock.now = 61.0
    outages.failed("x", "second")

    assert [vars(record).get("why") for record in told.records] == ["first", None, "second"]


def test_a_long_error_is_cut(told: pytest.LogCaptureFixture) -> None:
    Outages().failed("x", "y" * 10_000)

    assert vars(told.records[0])["why"] == "y" * LONGEST
