"""Logs as one JSON object per line, and one line per outage.

``json.dumps`` escapes control characters (CR, LF, ESC) and everything outside ASCII, so no name and
no message can forge a line or a colour. ``Outages`` logs a failure that is retried once, and its
end once: an API server that is down for ten minutes is one line, not a hundred.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

QUIET: Final = 60.0
"""Shortest time between two log lines about one failing thing [s]."""
LONGEST: Final = 300  # characters of an error

log = logging.getLogger(__name__)


class Outages:
    """Logs one line when a thing begins to fail, and one when it works again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._logged: set[str] = set()
        self._last_logged: dict[str, float] = {}

    def failed(self, what: str, why: str) -> None:
        """Note a failure."""
        now = self._clock()
        self._began.setdefault(what, now)
        quiet = now - self._last_logged.get(what, float("-inf")) < QUIET
        if what not in self._logged and not quiet:
            self._logged.add(what)
            self._last_logged[what] = now
            log.warning("%s fails and is tried until it works", what, extra={"why": why[:LONGEST]})

    def works(self, what: str) -> None:
        """Note a success; log it if the failure was logged."""
        began = self._began.pop(what, 0.0)
        if what in self._logged:
            self._logged.remove(what)
            log.info("%s works again", what, extra={"after_s": round(self._clock() - began, 1)})


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# kopf logs this at every start; it runs in a thread on purpose (cluster/informer.py).
_EXPECTED = "OS signals are ignored: running not in the main thread."
# kopf logs each try of a request; ``Outages`` logs the first and the end.
_TRY = "Request attempt #"
# With a traceback, up to three times for one error, which cluster/informer.py logs.
_FAILED = " has failed: "


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message and ``extra`` as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of ASCII."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Log to standard error; libraries log warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("archipelago").setLevel(level)


def is_news(record: logging.LogRecord) -> bool:
    """Return whether a record is logged."""
    if not record.name.startswith("kopf"):
        return True
    message = record.getMessage()
    return not (message == _EXPECTED or message.startswith(_TRY) or _FAILED in message)
