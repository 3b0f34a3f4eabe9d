"""A log line is one line of JSON, whatever a name or a message contains."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.logs import JsonFormatter, is_news

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
def test_what_could_forge_a_line_or_a_colour_is_escaped(text: str) -> None:
    written = line(text, plan=text)

    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written)["message"] == text
    assert json.loads(written)["plan"] == text


@given(st.text())
def test_every_text_stays_on_its_line(text: str) -> None:
    assert line(text).isprintable()


@pytest.mark.parametrize(
    ("name", "message", "news"),
    [
        ("kopf._cogs.clients.watching", "Request attempt #3 failed; will retry: GET ...", False),
        ("kopf._core.reactor.orchestration", "Watcher for x has failed: 404 not found", False),
        ("kopf.x", "OS signals are ignored: running not in the main thread.", False),
        ("kopf._core.engines.posting", "Cannot post events", True),
        ("archipelago.operator.planning", "Request attempt #3 failed", True),
    ],
)
def test_what_is_told_elsewhere_is_not_told_by_kopf(name: str, message: str, news: bool) -> None:
    record = logging.makeLogRecord({"name": name, "msg": message})

    assert is_news(record) is news
