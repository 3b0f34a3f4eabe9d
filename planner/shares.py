"""From the rates of the program to integer shares: who serves how many of a million requests.

Of every range first the ways are weighed: through the KV flows between two domain classes, or
whole on a mixed group. Then, on each way, the groups of both sides share its requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from archipelago.planner.columns import THETA
from archipelago.planner.errors import SolverError
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import STAGES, Phase
from archipelago.planner.routes import apportion, join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.columns import Program

NOTHING = 1e-9
"""Part of theta below which a flow is the solver's rounding."""

Pairs: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""(prefill template, decode template, requests per million) of one model and range."""


@dataclass(frozen=True, eq=False)
class Shares:
    """``pairs`` of every (demand, range), and each template's ``weights``, shape (ranges,)."""

    pairs: dict[tuple[int, int], Pairs]
    weights: dict[int, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class _Side:
    """Templates of one phase and class, and the part of theta that each serves of a range."""

    templates: NDArray[np.int64]
    parts: FloatArray

    def split(self, whole: int) -> list[tuple[int, int]]:
        weights = apportion(self.parts, whole)
        return list(zip(self.templates.tolist(), weights.tolist(), strict=True))


def integer_shares(program: Program, values: FloatArray) -> Shares:
    """Integer shares of the rates that ``values``, shape (columns,), describe."""
    chosen = _pairs_of_ranges(program)
    pairs = {
        (d, int(j)): tuple(_pairs(program, values, (d, int(j)), chosen[d, int(j)]))
        for d, demand in enumerate(program.demands)
        for j in np.flatnonzero(demand.served)
    }
    weights = {
        c: np.zeros(len(program.demands[program.demand_of[c]].served), dtype=np.int64)
        for c in range(len(program.templates))
    }
    for (_, j), entries in pairs.items():
        for prefill, decode, weight in entries:
            for c in {prefill, decode}:
                weights[c][j] += weight
    return Shares(pairs, weights)


def _pairs_of_ranges(program: Program) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Indices of the y columns of every (demand, range), ascending."""
    demand = program.demand_of[program.pair_template]
    order = np.lexsort((program.pair_range, demand))  # stable: equal keys keep their order
    keys = np.stack([demand[order], program.pair_range[order]])
    starts = np.flatnonzero(np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0)))
    parts = np.split(order, starts[1:])
    return {(int(d), int(j)): part for (d, j), part in zip(keys[:, starts].T, parts, strict=True)}


def _pairs(
    program: Program, values: FloatArray, at: tuple[int, int], chosen: NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    mixed, ways = _ways(program, values, at, chosen)
    parts = np.array([*(part for part, _, _ in ways), *mixed.parts])
    if parts.sum() <= 0:
        demand = program.demands[at[0]]
        raise SolverError(
            f"what {demand.model} asks for is too little beside the rest to be seen by the solver: "
            "bring the rates of the models and the shares of their ranges closer together, or give "
            "the planner a longer timeLimitSeconds"
        )
    weights = apportion(parts, MILLION).tolist()
    for (_, prefill, decode), weight in zip(ways, weights[: len(ways)], strict=True):
        if weight:
            yield from join(prefill.split(weight), decode.split(weight))
    for c, weight in zip(mixed.templates.tolist(), weights[len(ways) :], strict=True):
        if weight:
            yield c, c, weight


def _ways(
    program: Program, values: FloatArray, at: tuple[int, int], chosen: NDArray[np.int64]
) -> tuple[_Side, list[tuple[float, _Side, _Side]]]:
    """The mixed groups of a range, and the ways from prefill to decode with the part of each."""
    templates = program.pair_template[chosen]
    parts = np.maximum(values[program.first_pair + chosen], 0.0)

    def side(phase: Phase, domain_class: str | None = None) -> _Side:
        able = [
            program.templates[c].phase is phase
            and domain_class in (None, program.templates[c].domain_class)
            for c in templates
        ]
        return _Side(templates[able], parts[able])

    mixed, ways = side(Phase.MIXED), []
    if not program.demands[at[0]].apart:
        prefill, decode = side(Phase.PREFILL), side(Phase.DECODE)
        if prefill.parts.any() and decode.parts.any():
            ways.append((float(prefill.parts.sum()), prefill, decode))
        return mixed, ways
    for column, flow in program.flows_of.get(at, []):
        if values[column] <= NOTHING * values[THETA]:
            continue
        prefill, decode = (
            side(stage, place) for stage, place in zip(STAGES, flow.classes, strict=True)
        )
        if prefill.parts.any() and decode.parts.any():
            ways.append((float(values[column]), prefill, decode))
    return mixed, ways
