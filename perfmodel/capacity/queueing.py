"""The mean wait of a queue with one server: Pollaczek and Khinchine's formula, and its inverse.

Prompts arrive at random moments (a Poisson process), wait in one queue, and are computed one at a
time. The time S of one prompt has any distribution. Such a queue is called M/G/1.

The checker (``planner/check``) has a formula of its own, because it shares no code with what it
checks.
"""

from __future__ import annotations


def mg1_wait(utilisation: float, mean: float, square: float) -> float:
    """Return the mean wait before service W = rho / (1 - rho) E[S^2] / (2 E[S]) [s].

    The formula needs Poisson arrivals, one server, first come first served, and a steady state.
    With an arrival rate lambda [1/s] it is the same as lambda E[S^2] / (2 (1 - rho)), because
    rho = lambda E[S]. At rho >= 1 the queue grows without end and the wait is infinite.

    Source: Pollaczek and Khinchine,
    docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        utilisation: rho, share of time in which the server is busy [1], not negative.
        mean: E[S], mean service time [s], above 0.
        square: E[S^2], mean square of the service time [s^2].
    """
    if utilisation >= 1:
        return float("inf")
    return utilisation / (1 - utilisation) * (square / (2 * mean))


def mg1_utilisation(wait: float, mean: float, square: float) -> float:
    """Return the largest utilisation rho = W / (W + E[S^2] / (2 E[S])) [1] for a mean wait.

    This is ``mg1_wait`` solved for rho. A wait of 0 s or less allows no load: rho = 0.

    Source: Pollaczek and Khinchine,
    docs/explanation/performance-model.md#from-times-to-capacity-rows.

    Args:
        wait: W, largest mean wait before service [s].
        mean: E[S], mean service time [s], above 0.
        square: E[S^2], mean square of the service time [s^2].
    """
    if wait <= 0:
        return 0.0
    return wait / (wait + square / (2 * mean))
