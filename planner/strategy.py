"""The interface of a planning strategy: one problem in, one outcome out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from .plan import PlanningOutcome
from .problem import PlanningProblem

Progress: TypeAlias = Callable[[str, float], None]
"""Called with the current step and the completed share in [0, 1]."""


@dataclass(frozen=True)
class Found:
    """What a search has found so far.

    ``trials`` of at most ``of`` were made; where no number is set, both are the plans that were
    found, each better than the one before. ``best``: theta of the best plan, 0 while there is none.
    ``bound``: on theta of any plan.
    """

    trials: int
    of: int
    best: float
    bound: float


Finds: TypeAlias = Callable[[Found], None]
"""Called by a search after each trial."""


def unheard(_found: Found) -> None:
    """Report nothing."""


def quiet(_what: str, _share: float) -> None:
    """Report nothing."""


class Strategy(Protocol):
    """Finds plans; the same problem and seed give the same content."""

    @property
    def name(self) -> str:
        """The name that a ServingPlan chooses it by."""

    def plan(
        self, problem: PlanningProblem, progress: Progress = quiet, on_found: Finds = unheard
    ) -> PlanningOutcome:
        """Find a plan, or the reason why there is none."""
