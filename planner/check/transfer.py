"""Transfers: how long a cache takes from the island that prefills a request to the other one.

Latency plus bytes over the slowest of three: the adapters of one copy of either island, and the
link between their classes if these differ. On a mixed island nothing moves.
"""

from __future__ import annotations

import math

import numpy as np

from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.roofline.kv_transfer import adapter_share, latency
from archipelago.perfmodel.workload.lengths import Range

from ..plan import Group
from ..problem import Phase
from .index import PlanIndex


def adapters(index: PlanIndex, group: Group) -> float:
    """Return the bytes per second of whole caches through an island's adapters [B/s].

    A part holds the KV cache of its layers only, so its adapters carry more of the whole. Infinite
    without a limit.
    """
    layers = index.models[group.model].architecture.layers
    speeds = [
        part.gpus * speed * (layers / part.layers if group.parts else 1.0)
        for part in group.sections
        if (speed := index.pools[part.pool].nic_per_gpu) is not None
    ]
    return min(speeds, default=math.inf)


def way(index: PlanIndex, source: Group, target: Group) -> tuple[float, float]:
    """Return the latency [s] and the bandwidth [B/s] between copies of two groups' islands."""
    alpha, beta = latency(), math.inf
    for link in index.problem.links:
        if {*link.classes} == {source.domain_class, target.domain_class}:
            alpha, beta = link.latency if link.latency is not None else alpha, link.bytes_per_second
    return alpha, min(beta, *(_of_copy(index, group) for group in (source, target)))


def _of_copy(index: PlanIndex, group: Group) -> float:
    """Return the bytes per second that one transfer reaches over the adapters of a copy [B/s]."""
    return adapter_share() * (adapters(index, group) / group.parallelism.dp)


def transfer_time(
    index: PlanIndex,
    source: Group,
    target: Group,
    performance: PerformanceModel,
    length: FloatArray,
) -> FloatArray:
    """Return the seconds [s] that caches of prompts of ``length`` [tokens] take; same shape.

    0 on a mixed island. ``performance``: of either group, whose model has the cache.
    """
    if Phase.MIXED in (source.phase, target.phase):
        return np.zeros(len(length))
    alpha, beta = way(index, source, target)
    return alpha + index.models[source.model].sent_bytes(performance)(length) / beta


def slowest_transfer(
    index: PlanIndex, source: Group, performance: PerformanceModel, span: Range, length: FloatArray
) -> FloatArray:
    """Return the seconds [s] on the slowest way that the routes of a range lead from a group.

    Without such a route those that its own adapters take, without latency.
    """
    valid = {group.name: group for group in index.valid_groups}
    longest = [
        transfer_time(index, source, valid[pair.decode], performance, length)
        for route in index.plan.routes
        if (route.model, route.range) == (source.model, span)
        for pair in route.pairs
        if pair.prefill == source.name and pair.decode in valid
    ]
    if longest:
        return np.asarray(np.max(longest, axis=0))
    sent = index.models[source.model].sent_bytes(performance)(length)
    return np.asarray(sent / _of_copy(index, source))


def mean_transfer(index: PlanIndex, source: Group, performance: PerformanceModel) -> float:
    """Return E[X] [s] of a prefill group over its model's mix, each range on its slowest way."""
    model = index.models[source.model]
    lengths, total = model.lengths, 0.0
    for j, span in enumerate(model.ranges):
        low = span.min if j else -math.inf
        high = span.max if j + 1 < len(model.ranges) else math.inf
        inside = (lengths.length >= low) & (lengths.length < high)
        if inside.any():
            times = slowest_transfer(index, source, performance, span, lengths.length[inside])
            total += sum(
                float(p) * float(t) for p, t in zip(lengths.probability[inside], times, strict=True)
            )
    return total
