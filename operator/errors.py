"""Errors of the operator, by what the caller can do.

ArchipelagoError
└── OperatorError
    ├── SettingsError         the environment cannot be used: name the variable, end the process
    └── ClusterError          the API server's answer, translated in ``cluster/client.py``
        ├── Retryable             repeat the request after ``delay`` seconds (429, 5xx, no answer)
        │   ├── Unreadable            an object that no API server sends: skip it
        │   └── NotLeading            not sent: another replica leads, or may
        ├── Conflict              another writer was faster: read and decide again (409)
        ├── NotFound              the object was deleted: forget it (404)
        └── Refused               a retry alone does not help: show it in the status
            ├── Forbidden             a missing grant or a quota (401, 403)
            └── Invalid               the server does not accept the object (400, 413, 422)

A failure of the planner is not an error here but a result with a reason.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from archipelago.perfmodel.errors import ArchipelagoError

JITTER: Final = 0.2
"""A delay is drawn from +-20 %: what failed together does not return together."""


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off: ``first`` [s], doubled up to ``longest`` [s]."""

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Return the delay after that many failures in a row [s]; 0 without failures."""
        if failures < 1:
            return 0.0
        return min(self.first * 2.0 ** min(failures - 1, 32), self.longest)

    def jittered(self, failures: int, random: Random) -> float:
        """Return that delay with jitter [s]; never more than ``longest``."""
        factor = random.uniform(1 - JITTER, 1 + JITTER)
        return min(self.delay(failures) * factor, self.longest)


class OperatorError(ArchipelagoError):
    """Root of the operator's own errors."""


class SettingsError(OperatorError):
    """A setting or the credentials cannot be used."""


class ClusterError(OperatorError):
    """The API server did not carry out a request."""


class Retryable(ClusterError):  # noqa: N818  # named after what the caller does
    """The same request may succeed later; ``delay`` [s]: as the server demands, or None."""

    def __init__(self, message: str, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class Unreadable(Retryable):
    """An object or an answer is not what its kind is; the next one may be.

    What reads many objects leaves this one out and goes on.
    """


class NotLeading(Retryable):
    """A write that was not sent: this replica does not lead."""


class Conflict(ClusterError):  # noqa: N818
    """The object exists already, or has changed since it was read."""


class NotFound(ClusterError):  # noqa: N818
    """The object, or its namespace, does not exist."""


class Refused(ClusterError):  # noqa: N818
    """The server understood the request and refused it."""


class Forbidden(Refused):
    """The operator may not do this, or a quota is used up."""


class Invalid(Refused):
    """The server does not accept the object as it is."""
