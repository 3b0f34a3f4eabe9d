"""Errors of the operator, by what the caller can do.

ArchipelagoError
└── OperatorError
    ├── SettingsError         the environment is not usable: say what of it, end the process
    └── ClusterError          the API server's answer, translated in ``cluster.py``
        ├── Retryable             ask again after ``delay`` seconds (429, 5xx, no answer)
        ├── Conflict              somebody was faster: look again, then decide again (409)
        ├── NotFound              it is gone: forget it (404)
        └── Refused               asking again changes nothing by itself; say so in the status
            ├── Forbidden             a missing grant or a quota (401, 403)
            └── Invalid               the server does not accept the object (400, 413, 422)

What the planner cannot do is not an error here but a ``Failed`` verdict with a reason.
"""

from archipelago.perfmodel.errors import ArchipelagoError


class OperatorError(ArchipelagoError):
    """Root of the operator's own errors."""


class SettingsError(OperatorError):
    """What the operator was started with cannot be used: a variable, or the credentials."""


class ClusterError(OperatorError):
    """The API server did not do what was asked."""


class Retryable(ClusterError):  # noqa: N818  # a consequence, not a suffix
    """The same request may succeed later; ``delay`` [s] is the server's own wish, or None."""

    def __init__(self, message: str, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


class Conflict(ClusterError):  # noqa: N818
    """The object exists already, or it changed since it was read."""


class NotFound(ClusterError):  # noqa: N818
    """The object, or its namespace, does not exist."""


class Refused(ClusterError):  # noqa: N818
    """The server understood and said no."""


class Forbidden(Refused):
    """The operator may not do this, or a quota is used up."""


class Invalid(Refused):
    """The server does not accept the object as it is."""
