"""A log line is one line of JSON; what fails for long has one line, and so has its end."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.logs import LONGEST, JsonFormatter, Outages, is_news

ATTACKS = [
    'a\r\n{"level":"INFO","message":"forged"}',
    "\x1b[31mred\x1b[0m",
    "../../etc/passwd",
    "naïve ☃ \u2028 \u202e",
    "x" * 300,
    '"}',
]


def line(message: str, **extra: str) -> str:
    record = logging.makeLogRecord({"name": "t", "levelname": "INFO", "msg": "%s", **extra})
    record.args = (message,)
    return JsonFormatter().format(record)


@pytest.mark.parametrize("text", ATTACKS)
def test_control_characters_and_non_ascii_are_escaped(text: str) -> None:
    written = line(text, plan=text)

    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written)["message"] == text
    assert json.loads(written)["plan"] == text


@given(st.text())
def test_every_message_is_one_line(text: str) -> None:
    assert line(text).isprintable()


@pytest.mark.parametrize(
    ("name", "message", "news"),
    [
        ("kopf._cogs.clients.watching", "Request attempt #3 failed; will retry: GET ...", False),
        ("kopf._core.reactor.orchestration", "Watcher for x has failed: 404 not found", False),
        ("kopf.x", "OS signals are ignored: running not in the main thread.", False),
        ("kopf._core.engines.posting", "Cannot post events", True),
        ("archipelago.operator.planning.pool", "Request attempt #3 failed", True),
    ],
)
def test_kopf_does_not_log_what_is_logged_elsewhere(name: str, message: str, news: bool) -> None:
    record = logging.makeLogRecord({"name": name, "msg": message})

    assert is_news(record) is news


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="archipelago")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in log.records]


def test_one_line_per_outage_and_one_when_it_is_over(log: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    for second in range(1000):
        clock.now = float(second)
        outages.failed("the watch of x", "refused")
        outages.failed("the watch of y", "refused")
    outages.works("the watch of x")
    outages.works("the watch of x")

    assert lines(log) == [
        ("WARNING", "the watch of x fails and is tried until it works"),
        ("WARNING", "the watch of y fails and is tried until it works"),
        ("INFO", "the watch of x works again"),
    ]
    assert vars(log.records[-1])["after_s"] == 999.0


def test_short_outages_are_logged_once_a_minute(log: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    for second in range(120):
        clock.now = float(second)
        outages.failed("x", "refused")
        outages.works("x")

    levels = [level for level, _ in lines(log)]
    assert levels == ["WARNING", "INFO", "WARNING", "INFO"]


def test_an_outage_that_began_in_a_quiet_minute_is_logged_if_it_lasts(
    log: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    outages = Outages(clock)
    outages.failed("x", "first")
    outages.works("x")
    clock.now = 30.0
    outages.failed("x", "second")
    clock.now = 61.0
    outages.failed("x", "second")

    assert [vars(record).get("why") for record in log.records] == ["first", None, "second"]


def test_a_long_error_is_cut(log: pytest.LogCaptureFixture) -> None:
    Outages().failed("x", "y" * 10_000)

    assert vars(log.records[0])["why"] == "y" * LONGEST
