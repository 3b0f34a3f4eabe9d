"""Set aside the one object whose handling fails; the process and all other objects go on.

Readers of foreign bytes return a value or a named refusal. What still escapes is a defect of this
operator, and must cost the object that it was met with, nothing else. It is counted by kind, logged
with the object's name, and met again with the object's next change or the next full list. Answers
of the API server (``ClusterError``) are about no object: they pass, as does cancellation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from .errors import ClusterError, OperatorError, Unreadable

OnCase: TypeAlias = Callable[[str, str, Exception], None]

LONGEST: Final = 300  # characters of an error
REMEMBERED: Final = 10_000

log = logging.getLogger(__name__)


class Quarantine:
    """``on_case`` is called with kind, name and error of each case, from any thread."""

    def __init__(self, on_case: OnCase = lambda _kind, _name, _error: None) -> None:
        self._on_case = on_case
        self._logged: set[tuple[str, str, str]] = set()

    @contextmanager
    def of(self, kind: str, name: object) -> Iterator[None]:
        """Handle one object; whatever escapes stays here."""
        try:
            yield
        except Unreadable as refusal:
            self.add(kind, str(name), refusal)
        except ClusterError:
            raise
        except Exception as error:  # noqa: BLE001  # any error: it is this object's alone
            self.add(kind, str(name), error)

    def add(self, kind: str, name: str, error: Exception) -> None:
        """Note a case; a traceback is logged once for an object and an error."""
        form = type(error).__name__
        again = (kind, name, form) in self._logged
        if len(self._logged) >= REMEMBERED:
            self._logged.clear()
        self._logged.add((kind, name, form))
        log.error(
            "this object is set aside, all others go on",
            extra={"kind": kind, "object": name, "error": f"{form}: {error}"[:LONGEST]},
            exc_info=None if again or isinstance(error, OperatorError) else error,
        )
        self._on_case(kind, name, error)
