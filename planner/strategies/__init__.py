"""Planning strategies by the name that a ServingPlan chooses them by; one per file."""

from archipelago.planner.errors import InputError
from archipelago.planner.strategies.exact import ExactStrategy
from archipelago.planner.strategy import Strategy

NAMES = ("exact", "bayesian-divider")


def strategy(name: str) -> Strategy:
    """The strategy of that name; what only one of them needs is imported with it.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    if name == "exact":
        return ExactStrategy()
    if name == "bayesian-divider":
        from archipelago.planner.strategies.bayesian_divider import (  # noqa: PLC0415
            BayesianDivider,
        )

        return BayesianDivider()
    raise InputError(f"planner.strategy: {name!r} is unknown; choose one of {', '.join(NAMES)}")
