"""One JSON object per log line: nothing in a name or a message can forge a line or a colour.

``json.dumps`` escapes control characters (CR, LF, ESC) and everything outside ASCII.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# kopf says this at every start; it runs in a thread of its own on purpose (watch.py).
_EXPECTED = "OS signals are ignored: running not in the main thread."
# And this at each try of a request; outages.py tells of the first and of the end.
_TRY = "Request attempt #"
# With a traceback, up to three times for one error, which watch.py tells of when it gets it.
_FAILED = " has failed: "


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and what was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII."""
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
    """Log to standard error. The libraries speak only when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("archipelago").setLevel(level)


def is_news(record: logging.LogRecord) -> bool:
    """Whether a record is worth a line."""
    if not record.name.startswith("kopf"):
        return True
    message = record.getMessage()
    return not (message == _EXPECTED or message.startswith(_TRY) or _FAILED in message)
