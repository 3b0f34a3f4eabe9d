"""Errors of the performance model, by what the caller can do.

ArchipelagoError
└── PerfModelError        the question cannot be answered; the message names value and remedy
    ├── UnknownName           no such accelerator or model; lists what is known
    ├── DoesNotFit            the weights do not fit on the island
    ├── OutOfRange            a length or batch outside what the model is valid for
    ├── MeasurementError      measurements cannot be read or used; names the place and the remedy
    └── TraceError            a trace file cannot be read; names the line and the remedy
"""


class ArchipelagoError(Exception):
    """Root of every error that Archipelago raises on purpose."""


class PerfModelError(ArchipelagoError):
    """The performance model cannot answer; the message names the value and what would be valid."""


class UnknownName(PerfModelError):  # noqa: N818  # a consequence, not a suffix
    """No accelerator, model or efficiency of that name."""


class DoesNotFit(PerfModelError):  # noqa: N818
    """The model's weights need more memory than the island has."""


class OutOfRange(PerfModelError):  # noqa: N818
    """A value lies outside the range the model is valid for."""


class MeasurementError(PerfModelError):
    """Measurements, or a calibration made from them, are not in a form that is understood."""


class TraceError(PerfModelError):
    """A trace file is not in a form that is understood."""
