"""Requests longer than the stated workload: one more route per model, as far as islands reach.

A trace ends at its longest request; the model goes on. Such requests have no share in the plan and
no capacity is set aside for them, but they get a route, as far as any island holds one within the
latency targets and to the fastest that do, so that a router need not refuse what could be served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.lengths import Range
from archipelago.planner.plan import MILLION, Pair, Route
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import ModelDemand
    from archipelago.planner.templates import Template

GRID = 256
"""Lengths tried at once while the longest is searched."""


def overflow_route(
    demand: ModelDemand, groups: Sequence[tuple[str, Template]]
) -> tuple[Route, ...]:
    """The route from the last planned range to the longest input that the groups can serve.

    Args:
        demand: the model; its last range must be served.
        groups: names and templates of the model's groups.

    Returns:
        One route of share 0, none where nothing longer can be held.
    """
    start = demand.ranges[-1].max
    reach = {name: longest_input(template, demand) for name, template in groups}
    sides = [[(name, t) for name, t in groups if t.phase is phase] for phase in Phase]
    end = min(max(reach[name] for name, _ in side) for side in sides) + 1
    if end <= start:
        return ()
    able = [[(name, t) for name, t in side if reach[name] + 1 >= end] for side in sides]
    prefill, decode = (
        min(side, key=lambda item: float(_seconds(item[1], demand, np.array([end - 1.0]))[0]))[0]
        for side in able
    )
    return (Route(demand.name, Range(start, end), 0.0, (Pair(prefill, decode, MILLION),)),)


def longest_input(template: Template, demand: ModelDemand) -> int:
    """Longest input that one idle island holds within the model's targets [tokens]."""
    low, high = 0, template.performance.max_length
    while high - low > 1:
        lengths = np.unique(np.linspace(low, high, GRID).astype(np.int64))
        fits = _fits(template, demand, lengths)
        count = int(fits.sum())  # what fits comes first: memory and times grow with the length
        low = int(lengths[count - 1]) if count else 0
        if count in {0, len(lengths)}:
            break
        high = int(lengths[count])
    return low


def _fits(template: Template, demand: ModelDemand, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    performance = template.performance
    inputs = lengths.astype(np.float64)
    fits = _held(template, demand, inputs) <= performance.kv_capacity() / template.parallelism.dp
    fits &= inputs + _output(demand) <= performance.max_length
    targets = demand.targets
    limit = targets.ttft if template.phase is Phase.PREFILL else targets.tpot
    return fits if limit is None else fits & (_seconds(template, demand, inputs) <= limit)


def _output(demand: ModelDemand) -> float:
    """Tokens that a long request generates: as those of the last range do."""
    return float(demand.lengths.moments(demand.ranges).output[-1])


def _held(template: Template, demand: ModelDemand, inputs: FloatArray) -> FloatArray:
    """KV tokens that one copy keeps of a request."""
    return inputs + (_output(demand) if template.phase is Phase.DECODE else 1.0)


def _seconds(template: Template, demand: ModelDemand, inputs: FloatArray) -> FloatArray:
    """TTFT, or TPOT with one such request on every copy, of an otherwise idle island [s]."""
    performance, copies = template.performance, float(template.parallelism.dp)
    if template.phase is Phase.PREFILL:
        return performance.prefill_time(inputs)
    held = _held(template, demand, inputs)
    return performance.decode_step_time(np.full_like(held, copies), copies * held)
