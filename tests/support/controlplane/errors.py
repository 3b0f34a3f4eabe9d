"""Errors of the test control plane, by what the reader can do.

ControlPlaneError
├── BinariesMissing       run ``python -m tests.support.controlplane ensure`` first
├── CannotObtain          no way is left to get a binary; the message says what each way answered
└── StartFailed           a component ended or never became ready; ends with the tail of its log
"""


class ControlPlaneError(Exception):
    """Root of the errors that the test control plane raises on purpose."""


class BinariesMissing(ControlPlaneError):  # noqa: N818  # a consequence, not a suffix
    """A binary is in no place that is looked at without building."""


class CannotObtain(ControlPlaneError):  # noqa: N818
    """A binary can neither be downloaded nor built here."""


class StartFailed(ControlPlaneError):  # noqa: N818
    """A component of the control plane did not come up."""
