"""Errors by what the caller can do.

ArchipelagoError
├── InputError            the user can fix it: names the value, the place and the remedy
│   ├── SpecError             a ServingPlan breaks a rule (the API server refuses it, too)
│   ├── PlanFileError         a plan file cannot be read
│   └── CalibrationError      the calibration that a ServingPlan names cannot be used
├── SolverError           the solver has no usable result; retry with a longer limit or report
│   └── OutOfTimeError        the time limit ended without a plan; retry with a longer one
└── CheckError            the independent checker refuses a plan: a defect, never publish it

An infeasible problem is not an error but the outcome ``Infeasible``.
The performance model has its own tree in ``archipelago.perfmodel.errors``; its errors derive from
``ArchipelagoError`` through ``PerfModelError``, which means the same as ``InputError``.
"""

from archipelago.perfmodel.errors import ArchipelagoError


class InputError(ArchipelagoError):
    """The input is unusable; the message states what to change."""


class SpecError(InputError):
    """A ServingPlan breaks rules; ``problems`` lists every (field path, remedy)."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {remedy}" for path, remedy in problems))


class PlanFileError(InputError):
    """A file cannot be read, or is of another kind."""


class CalibrationError(InputError):
    """The calibration file that a ServingPlan names is none, or is not of this plan."""


class SolverError(ArchipelagoError):
    """The solver ended without a solution for a reason other than infeasibility."""


class OutOfTimeError(SolverError):
    """The time limit ended without a plan; the message names the step and the remedy."""


class CheckError(ArchipelagoError):
    """The checker refuses a plan; ``findings`` lists the reasons."""

    def __init__(self, findings: list[str]) -> None:
        self.findings = findings
        super().__init__("\n".join(findings))
