"""Who asks when: phases of traffic, each with a rate and with the lengths of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.workload.lengths import LengthDistribution, from_samples

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.workload.traces import Trace


ROWS: Final = 20_000
"""Requests that stand for a log-normal mix: enough for a mean context within 1 %."""


@dataclass(frozen=True, eq=False)
class Mix:
    """Requests to draw from, with replacement: inputs and outputs of single requests [tokens]."""

    inputs: FloatArray
    outputs: FloatArray

    @cached_property
    def lengths(self) -> LengthDistribution:
        """What an operator with full knowledge would plan for."""
        return from_samples(self.inputs, self.outputs)


def of_trace(trace: Trace) -> Mix:
    """Return the requests of a trace; its arrival times are not used."""
    return Mix(trace.inputs, trace.outputs)


def log_normal(  # noqa: PLR0917  # the order in which a workload states them
    median: float, sigma: float, most: float, output: float, output_sigma: float, seed: int = 0
) -> Mix:
    """Log-normal inputs up to ``most``, and independent log-normal outputs of a mean [tokens]."""
    random = np.random.default_rng(seed)
    inputs = np.clip(np.rint(median * random.lognormal(0.0, sigma, ROWS)), 1, most)
    outputs = random.lognormal(np.log(output) - output_sigma**2 / 2, output_sigma, ROWS)
    return Mix(inputs, np.maximum(1.0, np.rint(outputs)))


@dataclass(frozen=True, eq=False)
class Spell:
    """Traffic of one model over a time: Poisson arrivals at ``rate`` [req/s] from ``start`` [s]."""

    model: str
    start: float
    end: float
    rate: float
    mix: Mix


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Requests of one model in the order of their arrival; times [s], lengths [tokens]."""

    model: str
    times: FloatArray
    inputs: FloatArray
    outputs: FloatArray


@dataclass(eq=False)
class Traffic:
    """All spells. Every spell has random numbers of its own, so that one of them can be changed."""

    spells: tuple[Spell, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        """Seed every spell."""
        self._random = [np.random.default_rng((self.seed, i)) for i in range(len(self.spells))]

    @property
    def end(self) -> float:
        """When the last spell ends [s]."""
        return max(spell.end for spell in self.spells)

    def between(self, start: float, end: float) -> list[Arrivals]:
        """Who comes in [start, end); to be asked for without gaps and never twice."""
        arrivals = []
        for spell, random in zip(self.spells, self._random, strict=True):
            begin, stop = max(start, spell.start), min(end, spell.end)
            if stop > begin:
                count = int(random.poisson(spell.rate * (stop - begin)))
                times = np.sort(random.uniform(begin, stop, count))
                rows = random.integers(0, len(spell.mix.inputs), count)
                inputs, outputs = spell.mix.inputs[rows], spell.mix.outputs[rows]
                arrivals.append(Arrivals(spell.model, times, inputs, outputs))
        return arrivals

    def offered(self, at: float) -> dict[str, list[Spell]]:
        """Spells that are on at a time, by model."""
        spells: dict[str, list[Spell]] = {}
        for spell in self.spells:
            if spell.start <= at < spell.end:
                spells.setdefault(spell.model, []).append(spell)
        return spells
