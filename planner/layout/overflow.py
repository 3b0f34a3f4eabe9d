"""Routes for requests that are longer than the stated workload.

A trace ends at its longest request, but models accept longer ones. Such requests have no share in
the plan and no reserved capacity. They get one route per model, up to the longest input that any
island holds within the latency targets, the transfer of its cache included, and to the fastest such
islands, so that a router need not refuse what could be served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.roofline.kv_transfer import Way
from archipelago.perfmodel.workload.lengths import Range

from ..plan import MILLION, Pair, Route
from ..problem import STAGES, Link, ModelDemand, Phase
from ..templates.transfer import ways_of

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..templates.template import Template


GRID = 256
"""Lengths evaluated at once in the search for the longest one."""
ROUNDING = 1e-6
"""Tokens by which the mean of an output may be off: a sum of products of probabilities."""


@dataclass(frozen=True, eq=False)
class _Host:
    """One group as the host of a stage of a long request."""

    name: str
    template: Template


def overflow_route(
    demand: ModelDemand, groups: Sequence[tuple[str, Template]], links: Sequence[Link] = ()
) -> tuple[Route, ...]:
    """Return the route from the last planned range to the longest input that the groups can serve.

    Args:
        demand: the model; its last range must be served.
        groups: names and templates of the model's groups.
        links: between the domain classes that the groups stand in.

    Returns:
        One route of share 0, or none if no island holds a longer request.
    """
    linked = ways_of(links, {template.domain_class for _, template in groups})
    prefill_hosts, decode_hosts = (
        [_Host(name, template) for name, template in groups if stage in template.phase.stages]
        for stage in STAGES
    )

    @cache
    def held(host: _Host, stage: Phase, way: Way | None) -> int:
        return _longest_input(host.template, demand, stage, way)

    pairs = {
        (prefill, decode): way
        for prefill in prefill_hosts
        for decode in decode_hosts
        for way in _between(prefill, decode, linked)
    }
    longest = {
        (prefill, decode): min(held(prefill, Phase.PREFILL, way), held(decode, Phase.DECODE, None))
        for (prefill, decode), way in pairs.items()
    }
    start, end = demand.ranges[-1].max, max(longest.values(), default=0) + 1
    if end <= start:
        return ()

    @cache
    def alone(host: _Host, stage: Phase, way: Way | None) -> float:
        return float(_seconds(host.template, demand, np.array([end - 1.0]), stage, way)[0])

    prefill, decode = min(
        (pair for pair, most in longest.items() if most + 1 >= end),
        key=lambda pair: (
            alone(pair[0], Phase.PREFILL, pairs[pair]),
            alone(pair[1], Phase.DECODE, None),
        ),
    )
    pair = Pair(prefill.name, decode.name, MILLION)
    return (Route(demand.name, Range(start, end), 0.0, (pair,)),)


def _between(
    prefill: _Host, decode: _Host, linked: Mapping[tuple[str, str], Way]
) -> Iterator[Way | None]:
    """Yield the way of a request prefilled in one group to the other, if it may be decoded there.

    None if it stays where it is.
    """
    one, other = prefill.template, decode.template
    if Phase.MIXED in (one.phase, other.phase):
        yield from [None] if prefill.name == decode.name else []
    elif (way := linked.get((one.domain_class, other.domain_class))) is not None:
        yield Way(way.alpha, min(way.beta, one.speed, other.speed))


def _longest_input(
    template: Template, demand: ModelDemand, stage: Phase, way: Way | None = None
) -> int:
    """Return the longest input of a stage on one idle island within the targets [tokens].

    ``way``: that its cache takes after the prompt.
    """
    performance, targets = template.performance, demand.targets
    limit = targets.ttft if stage is Phase.PREFILL else targets.tpot
    low, high = 0, performance.max_length
    while high - low > 1:
        lengths = np.unique(np.linspace(low, high, GRID).astype(np.int64))
        inputs = lengths.astype(np.float64)
        tokens = _kv_tokens(demand, inputs, stage)
        fits = np.asarray(tokens <= performance.kv_capacity() / template.parallelism.dp + ROUNDING)
        fits &= inputs + _output(demand) <= performance.max_length + ROUNDING
        if limit is not None:
            fits &= _seconds(template, demand, inputs, stage, way) <= limit
        count = int(fits.sum())  # short ones fit first: memory and times grow with the length
        low = int(lengths[count - 1]) if count else 0
        if count in {0, len(lengths)}:
            break
        high = int(lengths[count])
    return low


def _output(demand: ModelDemand) -> float:
    """Return the tokens that a long request generates: those of the last range."""
    return float(demand.lengths.moments(demand.ranges).output[-1])


def _kv_tokens(demand: ModelDemand, inputs: FloatArray, stage: Phase) -> FloatArray:
    """Return the KV tokens of one request in a stage."""
    return inputs + (_output(demand) if stage is Phase.DECODE else 1.0)


def _seconds(
    template: Template, demand: ModelDemand, inputs: FloatArray, stage: Phase, way: Way | None
) -> FloatArray:
    """Return TTFT, or TPOT with one such request on every copy, of an idle island [s]."""
    performance, copies = template.performance, float(template.parallelism.dp)
    if stage is Phase.PREFILL:
        seconds = performance.prefill_time(inputs)
        return (
            seconds
            if way is None
            else seconds + way.seconds(demand.sent_bytes(performance)(inputs))
        )
    tokens = _kv_tokens(demand, inputs, stage)
    return performance.decode_step_time(np.full_like(tokens, copies), copies * tokens)
