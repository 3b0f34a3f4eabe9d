"""Expectations over a model's request lengths, written as the sums that the formulas are."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import ModelDemand


@dataclass(frozen=True)
class Atom:
    """Requests of one input length: their probability, E[o] [tokens] and E[o^2] [tokens^2]."""

    length: float
    probability: float
    output: float
    output_square: float


@dataclass(frozen=True)
class Decoding:
    """What one request of a range asks of decode: o_j tokens at the mean context k_j [tokens]."""

    output: float
    context: float


def atoms_by_range(model: ModelDemand) -> list[list[Atom]]:
    """Atoms in every range ``[min, max)``; atoms outside all ranges are unservable."""
    starts = [span.min for span in model.ranges]
    found: list[list[Atom]] = [[] for _ in model.ranges]
    for atom in _atoms(model):
        j = bisect_right(starts, atom.length) - 1
        if j >= 0 and atom.length < model.ranges[j].max:
            found[j].append(atom)
    return found


def _atoms(model: ModelDemand) -> list[Atom]:
    d = model.lengths
    columns = (d.length, d.probability, d.output, d.output_square)
    return [Atom(*map(float, row)) for row in zip(*columns, strict=True)]


def mean_by_range(model: ModelDemand, cost: Callable[[FloatArray], FloatArray]) -> list[float]:
    """E[cost(l) | range j] (seconds, bytes); a range without requests counts at its middle."""
    found = []
    for atoms in _with_stand_ins(model):
        lengths = np.array([atom.length for atom in atoms])
        times = [float(value) for value in np.broadcast_to(cost(lengths), lengths.shape)]
        total = sum(atom.probability for atom in atoms)
        found.append(
            sum(atom.probability * t for atom, t in zip(atoms, times, strict=True)) / total
        )
    return found


def decoding(model: ModelDemand) -> list[Decoding]:
    """o_j = E[o | j] and k_j = E[o l + o^2/2 | j] / E[o | j] of every range."""
    found = []
    for atoms in _with_stand_ins(model):
        total = sum(a.probability for a in atoms)
        output = sum(a.probability * a.output for a in atoms) / total
        area = sum(a.probability * (a.output * a.length + a.output_square / 2) for a in atoms)
        found.append(Decoding(output, area / total / output if output > 0 else 0.0))
    return found


def _with_stand_ins(model: ModelDemand) -> list[list[Atom]]:
    """Atoms by range; one of the range's middle and the whole mix's outputs where there is none."""
    every = _atoms(model)
    output = sum(a.probability * a.output for a in every)
    square = sum(a.probability * a.output_square for a in every)
    return [
        atoms
        if sum(atom.probability for atom in atoms) > 0
        else [Atom((span.min + span.max - 1) / 2, 1.0, output, square)]
        for span, atoms in zip(model.ranges, atoms_by_range(model), strict=True)
    ]
