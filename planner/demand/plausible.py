"""Whether the counts of a window can be true: no more than the plan's chips could do at their peak.

One principle: a window is believed as a whole or dropped as a whole, for one named reason. What is
believed lies within bounds that the planner and the status can hold. They come from the plan:

* tokens: each token takes two floating point operations per active parameter (J. Kaplan et al.,
  Scaling laws for neural language models, 2020, arXiv:2001.08361, section 2.1), so the islands make
  at most ``GPUs * peak / (2 * parameters)`` tokens a second, whatever engine and batch. Engines
  reach a tenth of that: what is beyond was not served;
* requests: each takes a token, so no more of them than tokens;
* lengths: no mean beyond the context of the model.

All else is bounded by what a counter is: whole numbers up to 2^53, from which on a double does not
count by one. Cached prompts take no operations, so prompt tokens are bounded by lengths alone.

Pure, without arrays: the operator asks for its condition, and the planner asks again for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isnan
from typing import TYPE_CHECKING, Final

from .counters import BUCKETS, COUNT, GRIDS, Buckets
from .faults import Fault, FaultReason, unusable

if TYPE_CHECKING:
    from archipelago.perfmodel.catalogue.accelerators import Accelerator
    from archipelago.perfmodel.catalogue.architectures import ModelArchitecture

    from .window import Flow, IslandTimes, Latency, ModelWindow

SLACK: Final = 2.0
"""On the peak: structured sparsity doubles it, and the catalogue states dense peaks."""
BEFORE: Final = 60.0
"""Seconds before the window whose tokens may be counted in it: lengths are counted at the end."""
SHORTEST, LONGEST = 0.5, 86_400.0
"""Seconds of a window: the spec allows 5 to 3600, of which some scrapes may be missing."""
LEAST: Final = 1e-3
"""Least number of requests that is not none: requests are counted in whole numbers."""
MISMATCH: Final = 10.0
"""Factor between the requests of a counter and of a histogram of the same ended requests."""
FEW: Final = 100.0
"""Requests by which they may differ besides: some engines count refused requests once."""
SLOWEST: Final = 3600.0
"""Longest mean time of a prompt or token, and longest wait in a queue [s]."""
SEQUENCES: Final = float(1 << 20)
"""Most requests in the batches of one island."""
FULL: Final = 100.0
"""Largest use of a cache: a share, or per cent in some versions of an engine."""
OUTMOST: Final = float(1 << 31)
"""Largest finite edge of a bucket of lengths [tokens]: engines count tokens in 32 bits."""


@dataclass(frozen=True)
class Ceilings:
    """The most that the islands of one model can do: tokens per second, tokens of a sequence.

    The defaults hold for every plan: 40,000 of the fastest GPUs, a context of 16 million tokens.
    """

    tokens_per_second: float = 1e13
    context: float = float(1 << 24)


ANY_PLAN: Final = Ceilings()
"""Where nothing is known of the plan."""


def ceilings(
    architecture: ModelArchitecture, accelerators: Iterable[Accelerator], gpus: float
) -> Ceilings:
    """Return the ceilings of ``gpus`` GPUs, of whichever of the accelerators is the fastest."""
    peak = max(max(a.half, a.fp8 or 0.0, a.fp4 or 0.0) for a in accelerators)
    tokens = SLACK * max(1.0, gpus) * peak / (2 * architecture.active_parameters)
    return Ceilings(tokens, float(architecture.max_length))


def implausible(entry: ModelWindow, most: Ceilings) -> Fault | None:
    """Return why a window cannot be true: the first quantity that is out of bounds, if any.

    None for a window that is unusable already.
    """
    window = entry.metrics.window
    if unusable((*window.faults, *window.flow.faults)):
        return None
    wrong = next(_out_of_bounds(entry, most), None)
    return None if wrong is None else Fault(FaultReason.IMPLAUSIBLE, wrong)


def _out_of_bounds(entry: ModelWindow, most: Ceilings) -> Iterator[str]:
    window = entry.metrics.window
    flow = window.flow
    if not SHORTEST <= flow.seconds <= LONGEST:
        yield "length of the window"
        return
    requests = most.tokens_per_second * flow.seconds
    yield from _of_flow(flow, most, requests)
    for name, parts in (("inputs", window.inputs), ("outputs", window.outputs)):
        if len(parts) > GRIDS or not all(_is_histogram(part) for part in parts):
            yield f"buckets of {name}"
            return
        counted = sum(part.requests for part in parts)
        if not counted <= requests or not _agree(counted, flow.completed):
            yield f"number of {name}"
        least = sum(_least_sum(part) for part in parts)
        tokens = sum(_least_sum(p) if p.total is None else p.total for p in parts)
        if counted and not max(least, tokens) / counted <= most.context:
            yield f"mean of {name}"
        made = most.tokens_per_second * (flow.seconds + BEFORE)
        if name == "outputs" and not max(least, tokens) <= made:
            yield "tokens of outputs"
    metrics = entry.metrics
    if not (metrics.kv_use is None or 0 <= metrics.kv_use <= FULL):
        yield "use of the caches"
    if not all(_is_latency(times) for times in (metrics.ttft, metrics.tpot) if times):
        yield "latencies"
    for island in entry.islands.values():
        if not _is_possible(island, requests):
            yield "times of islands"
            return


def _of_flow(flow: Flow, most: Ceilings, requests: float) -> Iterator[str]:
    if not _is_count(flow.completed, requests):
        yield "completed requests"
    if not _is_count(flow.arrivals, requests):
        yield "arrived requests"
    if not max(abs(flow.inside_change), abs(flow.queue_change)) <= requests:
        yield "change of requests inside"
    if not 0 <= flow.queue <= most.tokens_per_second * SLOWEST:
        yield "waiting requests"


def _is_count(number: float, most: float) -> bool:
    return number == 0 or LEAST <= number <= min(most, COUNT)


def _agree(one: float, other: float) -> bool:
    """Return whether two counters can have counted the same requests."""
    return one <= MISMATCH * other + FEW and other <= MISMATCH * one + FEW


def _is_histogram(part: Buckets) -> bool:
    edges, counts = part.edges, part.counts
    return (
        len(counts) == len(edges) - 1 <= BUCKETS
        and edges[0] == 0
        and edges[-1] == inf
        and all(low < high for low, high in pairwise(edges))
        and edges[-2] <= OUTMOST
        and all(_is_count(count, COUNT) for count in counts)
        and (part.total is None or 0 <= part.total <= COUNT)
    )


def _least_sum(part: Buckets) -> float:
    """Return the least sum of lengths that the buckets allow [tokens]."""
    return sum(n * low for n, low in zip(part.counts, part.edges, strict=False) if n)


def _is_latency(times: Latency) -> bool:
    return (
        len(times.counts) == len(times.bounds) <= BUCKETS
        and not any(map(isnan, times.bounds))
        and all(0 <= number <= COUNT for number in (*times.counts, times.total))
    )


def _is_possible(island: IslandTimes, requests: float) -> bool:
    times = (island.prefill, island.decode)
    return (
        _is_count(island.requests, requests)
        and 0 <= island.running <= SEQUENCES
        and all(time is None or 0 <= time <= SLOWEST for time in times)
        and (island.kv_use is None or 0 <= island.kv_use <= FULL)
    )
