"""Planning strategies by the name that a ServingPlan chooses them by; one per file."""

from archipelago.planner.errors import InputError
from archipelago.planner.strategies.exact import ExactStrategy
from archipelago.planner.strategy import Strategy

NAMES = ("exact",)


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    if name == "exact":
        return ExactStrategy()
    raise InputError(f"planner.strategy: {name!r} is unknown; choose one of {', '.join(NAMES)}")
