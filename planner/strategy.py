"""The interface of a planning strategy: one problem in, one outcome out."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from .plan import PlanningOutcome
from .problem import PlanningProblem

Progress: TypeAlias = Callable[[str, float], None]
"""Called with the current step and the completed share in [0, 1]."""


def quiet(_what: str, _share: float) -> None:
    """Report nothing."""


class Strategy(Protocol):
    """Finds plans; the same problem and seed give the same content."""

    @property
    def name(self) -> str:
        """The name that a ServingPlan chooses it by."""

    def plan(self, problem: PlanningProblem, progress: Progress = quiet) -> PlanningOutcome:
        """Find a plan, or the reason why there is none."""
