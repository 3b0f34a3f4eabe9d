"""Planning strategies: ways from a problem to a plan.

Import: ``strategy(name)`` for one of ``NAMES``.
Never: import a strategy by its class; its extras load with it.
"""

from ..errors import InputError
from ..strategy import Strategy
from .exact import ExactStrategy

NAMES = ("exact", "bayesian-divider")


def strategy(name: str) -> Strategy:
    """Return the strategy of a name; its extra libraries load with it.

    Raises:
        InputError: there is none; the message lists all names.
    """
    if name == "exact":
        return ExactStrategy()
    if name == "bayesian-divider":
        from .bayesian import BayesianDivider  # noqa: PLC0415

        return BayesianDivider()
    raise InputError(f"planner.strategy: {name!r} is unknown; choose one of {', '.join(NAMES)}")
