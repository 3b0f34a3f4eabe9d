"""What a planning strategy is: one problem in, one outcome out."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from archipelago.planner.plan import PlanningOutcome
from archipelago.planner.problem import PlanningProblem

Progress: TypeAlias = Callable[[str, float], None]
"""Called with what is being done and the share done so far in [0, 1]."""


def quiet(_what: str, _share: float) -> None:
    """Report nothing."""


class Strategy(Protocol):
    """A way to find a plan. Same problem and seed, same content."""

    @property
    def name(self) -> str:
        """The name that a ServingPlan chooses it by."""

    def plan(self, problem: PlanningProblem, progress: Progress = quiet) -> PlanningOutcome:
        """Find a plan, or say why there is none."""
