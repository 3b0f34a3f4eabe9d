"""From rates to integer weights: how many of a million requests each pair of groups serves.

The requests of a range are first divided among its ways: KV flows between two domain classes, or a
mixed group. On each way, the prefill and the decode groups share its requests. Shares are rounded
by largest remainder, both sides to the same sum; the north-west corner rule then joins the two
sides with the fewest pairs, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from ..errors import SolverError
from ..milp.variables import THETA, Program
from ..plan import MILLION
from ..problem import STAGES, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


Name = TypeVar("Name")


def apportion(shares: FloatArray, whole: int = MILLION) -> NDArray[np.int64]:
    """Round ``shares`` to integers that sum to ``whole`` (largest remainder, Hamilton).

    Ties go to the earlier share, so that equal input gives equal output. Not all shares may be 0.
    """
    exact = shares / shares.sum() * whole
    weights: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    remainder = whole - int(weights.sum())
    order = np.argsort(-(exact - weights), kind="stable")
    weights[order[:remainder]] += 1
    return weights


def join(
    givers: Iterable[tuple[Name, int]], takers: Iterable[tuple[Name, int]]
) -> list[tuple[Name, Name, int]]:
    """Return (giver, taker, weight) whose weights have exactly the given sums on both sides.

    Both sides must have equal sums; names of weight 0 get no pair.
    """
    pairs: list[tuple[Name, Name, int]] = []
    rest = [item for item in takers if item[1] > 0][::-1]
    for giver, weight in givers:
        unmatched = weight
        while unmatched > 0:
            taker, need = rest.pop()
            part = min(unmatched, need)
            pairs.append((giver, taker, part))
            unmatched -= part
            if need > part:
                rest.append((taker, need - part))
    return pairs


NEGLIGIBLE = 1e-9
"""Share of theta below which a flow is the solver's rounding."""

Pairs: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""(prefill template, decode template, requests per million) of one model and range."""


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """``pairs`` of every (demand, range), and each template's ``weights``, shape (ranges,)."""

    pairs: dict[tuple[int, int], Pairs]
    weights: dict[int, NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class _Side:
    """Templates of one phase and class, and the rate of a range that each serves [theta]."""

    templates: NDArray[np.int64]
    parts: FloatArray

    def split(self, whole: int) -> list[tuple[int, int]]:
        weights = apportion(self.parts, whole)
        return list(zip(self.templates.tolist(), weights.tolist(), strict=True))


def integer_weights(program: Program, values: FloatArray) -> IntegerWeights:
    """Round the rates of a solution ``values``, shape (columns,), to integer weights."""
    columns = _columns_by_range(program)
    pairs = {
        (d, j): tuple(_pairs(program, values, (d, j), columns[d, j]))
        for d, demand in enumerate(program.demands)
        for j in np.flatnonzero(demand.served).tolist()
    }
    weights = {
        c: np.zeros(len(program.demands[program.demand_of[c]].served), dtype=np.int64)
        for c in range(len(program.templates))
    }
    for (_, j), entries in pairs.items():
        for prefill, decode, weight in entries:
            for c in {prefill, decode}:
                weights[c][j] += weight
    return IntegerWeights(pairs, weights)


def _columns_by_range(program: Program) -> dict[tuple[int, int], NDArray[np.int64]]:
    """Return the indices of the y columns of every (demand, range), ascending."""
    demand = program.demand_of[program.pair_template]
    order = np.lexsort((program.pair_range, demand))  # stable: equal keys keep their order
    keys = np.stack([demand[order], program.pair_range[order]])
    starts = np.flatnonzero(np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0)))
    parts = np.split(order, starts[1:])
    return {(int(d), int(j)): part for (d, j), part in zip(keys[:, starts].T, parts, strict=True)}


def _pairs(
    program: Program, values: FloatArray, at: tuple[int, int], columns: NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    """Yield the pairs of one (demand, range), from its ways and its mixed groups."""
    demand = program.demands[at[0]]
    templates = program.pair_template[columns]
    parts = np.maximum(values[program.first_pair + columns], 0.0)

    def side(phase: Phase, domain_class: str | None = None) -> _Side:
        members = [
            program.templates[c].phase is phase
            and domain_class in (None, program.templates[c].domain_class)
            for c in templates
        ]
        return _Side(templates[members], parts[members])

    mixed = side(Phase.MIXED)
    ways: list[tuple[float, _Side, _Side]] = []  # rate, prefill, decode
    if demand.spans_classes:
        for column, flow in program.flows_of.get(at, []):
            if values[column] > NEGLIGIBLE * values[THETA]:
                prefill, decode = map(side, STAGES, flow.classes)
                ways.append((float(values[column]), prefill, decode))
    else:
        prefill, decode = side(Phase.PREFILL), side(Phase.DECODE)
        ways.append((float(prefill.parts.sum()), prefill, decode))
    ways = [way for way in ways if way[1].parts.any() and way[2].parts.any()]
    rates = np.array([*(rate for rate, *_ in ways), *mixed.parts])
    if rates.sum() <= 0:
        raise SolverError(
            f"what {demand.model} asks for is too little beside the rest to be seen by the solver: "
            "bring the rates of the models and the shares of their ranges closer together, or give "
            "the planner a longer timeLimitSeconds"
        )
    weights = apportion(rates).tolist()
    for (_, prefill, decode), weight in zip(ways, weights[: len(ways)], strict=True):
        if weight:
            yield from join(prefill.split(weight), decode.split(weight))
    for c, weight in zip(mixed.templates.tolist(), weights[len(ways) :], strict=True):
        if weight:
            yield c, c, weight
