"""Where an island that makes tokens settles, found by halving an interval of the time per token.

By Little's law it runs B = L tau sequences with K = M tau cached tokens, where
L = sum_j lambda_j o_j and M = sum_j lambda_j o_j k_j. A step of that batch takes step(B, K). On a
mixed island prompts take the share u of the time and steps have the rest, so a token comes every
tau = step(L tau, M tau) / (1 - u).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.checks.lengths import decoding

if TYPE_CHECKING:
    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.plan import Group
    from archipelago.planner.problem import ModelDemand

HALVINGS = 100
"""Bisection steps: the interval shrinks below the spacing of floats."""


@dataclass(frozen=True)
class Load:
    """What the rates ask of an island, and what it may hold.

    ``sequences`` L [1/s] and ``kv_tokens`` M [tokens/s]: what is running and cached per second of
    time per token. ``prompts``: u [1]. ``batch`` [sequences], ``memory`` [tokens] and ``tpot`` [s]
    are the limits.
    """

    sequences: float
    kv_tokens: float
    prompts: float
    batch: int
    memory: int
    tpot: float | None

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The longest time per token that each limit allows [s]."""
        found = [
            (f"batch of {self.batch}", self.batch / self.sequences),
            (f"KV memory of {self.memory} tokens", self.memory / self.kv_tokens),
        ]
        if self.tpot is not None:
            found.append((f"TPOT of {self.tpot * 1e3:.0f} ms", self.tpot))
        return found

    def filled(self, utilisation: float) -> Load:
        """The load grown until the share that it may use would be the whole."""
        return Load(
            self.sequences / utilisation,
            self.kv_tokens / utilisation,
            self.prompts / utilisation,
            self.batch,
            self.memory,
            self.tpot,
        )


@dataclass(frozen=True)
class Point:
    """A steady state: time per token and step alone [s], batch, cached tokens.

    ``use``: what is in use of batch and memory, each with its limit.
    """

    tau: float
    step: float
    sequences: float
    kv_tokens: float
    use: tuple[tuple[float, float], ...]


def load(
    group: Group,
    rates: list[float],
    model: ModelDemand,
    performance: PerformanceModel,
    prompts: float,
) -> Load:
    """The load of one island at its rates [req/s]; ``prompts``: the share of its time for them."""
    asked = decoding(model)
    sequences = sum(r * d.output for r, d in zip(rates, asked, strict=True))
    kv = sum(r * d.output * d.context for r, d in zip(rates, asked, strict=True))
    memory, tpot = performance.kv_capacity(), model.targets.tpot
    return Load(sequences, kv, prompts, group.max_batch, memory, tpot)


def shortfall(asked: Load, performance: PerformanceModel, utilisation: float) -> str:
    """Why an island does not settle within its limits; empty where it does.

    ``utilisation``: share of its capacity that may be used; 1 / utilisation times the load is to
    fit.
    """
    if asked.sequences <= 0 or asked.kv_tokens <= 0:
        return "serves no requests; leave its islands out"
    full = asked.filled(utilisation)
    reserve = "" if utilisation == 1 else f", with {1 - utilisation:g} of its capacity unused,"
    if full.prompts >= 1:
        return f"at theta{reserve} prompts take all of the time, {full.prompts:.6f}"
    name, most = min(full.limits, key=lambda limit: limit[1])
    token = _token(performance, full, most)
    if token > most * (1 + TOLERANCE):
        what = "a step" if not full.prompts else "a token, with prompts in between,"
        return (
            f"at theta{reserve} {what} would have to take at most {most * 1e3:.4f} ms ({name}), "
            f"but takes {token * 1e3:.4f} ms there"
        )
    return ""


def point(asked: Load, performance: PerformanceModel) -> Point:
    """The steady state of a load that has no shortfall.

    The time per token that reproduces itself: 0 lies below it, what the limits allow above.
    """
    low, high = 0.0, min(limit for _, limit in asked.limits) * (1 + TOLERANCE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        settles = _token(performance, asked, middle) <= middle
        low, high = (low, middle) if settles else (middle, high)
    sequences, tokens = asked.sequences * high, asked.kv_tokens * high
    use = ((sequences, float(asked.batch)), (tokens, float(asked.memory)))
    return Point(high, high * (1 - asked.prompts), sequences, tokens, use)


def _token(performance: PerformanceModel, asked: Load, tau: float) -> float:
    """Seconds from token to token, were ``tau`` what they are."""
    batch, cached = np.array([asked.sequences * tau]), np.array([asked.kv_tokens * tau])
    return float(performance.decode_step_time(batch, cached)[0]) / (1 - asked.prompts)
