"""Errors by what the caller can do.

ArchipelagoError
├── InputError            the user can mend it: names the value, the place and the remedy
│   ├── SpecError             a ServingPlan breaks a rule (offline; the API server says the same)
│   └── PlanFileError         a plan file cannot be read
├── SolverError           the solver gave no usable answer; retry with a longer limit or report
│   └── OutOfTimeError        the time limit ended before there was a plan; retry with a longer one
└── CheckError            the independent checker refuses a plan: a defect of ours, never publish

An infeasible problem is not an error: it is the outcome ``Infeasible``.
The performance model has its own tree in ``archipelago.perfmodel.errors``; its errors derive from
``ArchipelagoError`` by way of ``PerfModelError``, which is an ``InputError`` in meaning.
"""

from archipelago.perfmodel.errors import ArchipelagoError


class InputError(ArchipelagoError):
    """What the user gave cannot be used; the message says what to change."""


class SpecError(InputError):
    """A ServingPlan breaks a rule; ``problems`` lists every (field path, remedy)."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("\n".join(f"{path}: {remedy}" for path, remedy in problems))


class PlanFileError(InputError):
    """A plan file is not readable or not a plan."""


class SolverError(ArchipelagoError):
    """The solver ended without a solution for a reason other than infeasibility."""


class OutOfTimeError(SolverError):
    """The time limit ended before there was a plan; says what was under way and the remedy."""


class CheckError(ArchipelagoError):
    """The checker refuses a plan; ``findings`` lists what it found."""

    def __init__(self, findings: list[str]) -> None:
        self.findings = findings
        super().__init__("\n".join(findings))
