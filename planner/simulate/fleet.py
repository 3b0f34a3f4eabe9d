"""Simulate all groups of a plan: requests follow the routes to islands (``islands.py``).

Prefill groups run first, because nothing flows back to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.capacity.operating import fixed_point
from archipelago.perfmodel.capacity.queueing import mg1_wait

from ..check.transfer import transfer_time
from ..plan import MILLION, Group
from ..problem import Phase
from .islands import Batched, BatchedIsland, Prompts, StepTable, Window, prefill_queue

if TYPE_CHECKING:
    from archipelago.perfmodel.model import FloatArray

    from ..check.index import PlanIndex
    from ..strategy import Progress
    from .traffic import Integers, Requests


NOWHERE: Final = -1
"""Group index of a request that is longer than every route."""


@dataclass(frozen=True)
class GroupResult:
    """Load of the islands of a group, simulated and expected by the planner's formulas.

    ``wait``: mean time until a prompt begins, on decode islands until a request joins the batch
    [s]. ``busy``: share of time on prompts, 0 on decode islands. ``sequences``, ``kv_tokens``
    and ``step_time`` [s] (prompts in between included) are means of one island, 0 for prefill.
    ``preempted``: requests that had to wait again because memory ran out.
    """

    group: str
    phase: Phase
    islands: int
    requests: int
    wait: float
    busy: float
    expected_busy: float
    sequences: float = 0.0
    expected_sequences: float = 0.0
    kv_tokens: float = 0.0
    kv_capacity: int = 0
    step_time: float = 0.0
    expected_step_time: float = 0.0
    preempted: int = 0


class PlanSimulation:
    """All islands of a plan, and the times of every request.

    Arrays over all requests: ``prefill`` and ``decode`` group (index into the plan's groups, or
    ``NOWHERE``), ``first`` and ``last`` token [s], ``wait`` for the prompt and to ``join`` the
    batch [s], ``transfer`` of the cache in between [s]. ``measured``: arrived within the window,
    and had a route.
    """

    def __init__(
        self, index: PlanIndex, requests: Requests, window: Window, random: np.random.Generator
    ) -> None:
        self.index, self.requests, self.window = index, requests, window
        self.groups = index.plan.groups
        self._random = random
        self._positions = {group.name: i for i, group in enumerate(self.groups)}
        self._performance = {group.name: index.performance(group) for group in self.groups}
        self.prefill, self.decode = self._routed()
        self.first, self.last = requests.arrivals.copy(), requests.arrivals.copy()
        self.wait, self.join, self.transfer = np.zeros((3, len(requests)))
        self.offered = (requests.arrivals >= window.start) & (requests.arrivals < window.end)
        self.measured = self.offered & (self.prefill != NOWHERE)

    def run(self, progress: Progress) -> tuple[GroupResult, ...]:
        """Serve all requests; return results in the order of the plan's groups."""
        order = sorted(self.groups, key=lambda group: group.phase is not Phase.PREFILL)
        results = {}
        for done, group in enumerate(order):
            progress(f"simulating {group.name}", done / len(order))
            simulate = self._prefill if group.phase is Phase.PREFILL else self._batched
            results[group.name] = simulate(group)
        return tuple(results[group.name] for group in self.groups)

    # --- routing ---

    def _routed(self) -> tuple[Integers, Integers]:
        """Draw the prefill and decode group of every request, by the weights of its route."""
        count = len(self.requests)
        sides = np.full((2, count), NOWHERE, dtype=np.int64)
        draw = self._random.random(count) * MILLION
        place = {model.name: i for i, model in enumerate(self.index.problem.models)}
        inputs = self.requests.inputs
        for route in self.index.plan.routes:
            inside = (inputs >= route.range.min) & (inputs < route.range.max)
            requests = np.flatnonzero(inside & (self.requests.model == place[route.model]))
            ends = np.cumsum([pair.weight for pair in route.pairs])
            chosen = np.searchsorted(ends, draw[requests], side="right").clip(max=len(ends) - 1)
            names = [
                (self._positions[pair.prefill], self._positions[pair.decode])
                for pair in route.pairs
            ]
            sides[:, requests] = np.array(names)[chosen].T
        return sides[0], sides[1]

    def _by_island(self, side: Integers, group: Group) -> Iterator[Integers]:
        """Draw the island of every request of a group; all islands get equal shares."""
        requests = np.flatnonzero(side == self._positions[group.name])
        island = self._random.integers(0, group.islands, len(requests))
        return (requests[island == i] for i in range(group.islands))

    def of(self, group: Group) -> Integers:
        """Return the measured requests of a group."""
        side = self.prefill if group.phase is Phase.PREFILL else self.decode
        return np.flatnonzero(self.measured & (side == self._positions[group.name]))

    # --- islands ---

    def _prefill(self, group: Group) -> GroupResult:
        model, busy, copies = self._performance[group.name], 0.0, group.parallelism.dp
        limits = self.window.start, self.window.end
        for requests in self._by_island(self.prefill, group):
            arrivals, inputs = self.requests.arrivals[requests], self.requests.inputs[requests]
            seconds, occupied = model.prefill_time(inputs), model.prefill_occupancy(inputs) * copies
            self.first[requests] = prefill_queue(arrivals, seconds, occupied, copies)
            starts = self.first[requests] - seconds
            self.wait[requests] = starts - arrivals
            inside = np.clip(starts + occupied, *limits) - np.clip(starts, *limits)
            busy += float(inside.sum()) / copies
        at = self.of(group)
        share = busy / group.islands / self.window.length
        expected, wait = self.expected_busy(group), mean(self.wait[at])
        return GroupResult(group.name, group.phase, group.islands, len(at), wait, share, expected)

    def _batched(self, group: Group) -> GroupResult:
        """Simulate a decode or a mixed group."""
        model = self._performance[group.name]
        table = StepTable(model)
        runs = [
            self._run_batch(group, table, requests)
            for requests in self._by_island(self.decode, group)
        ]
        at = self.of(group)
        busy = self.expected_busy(group)
        rates, demand = self.rates(group), self.index.models[group.model]
        point = fixed_point(model, rates, demand.lengths.moments(demand.ranges), busy)
        prompts = mean([run.prompts for run in runs])
        steps = mean([run.step_time for run in runs if run.step_time])
        mixed = group.phase is Phase.MIXED
        return GroupResult(
            group=group.name,
            phase=group.phase,
            islands=group.islands,
            requests=len(at),
            wait=mean(self.wait[at] if mixed else self.join[at]),
            busy=prompts,
            expected_busy=busy,
            sequences=mean([run.sequences for run in runs]),
            expected_sequences=point.sequences,
            kv_tokens=mean([run.kv_tokens for run in runs]),
            kv_capacity=model.kv_capacity(),
            step_time=steps / (1 - prompts) if prompts < 1 else 0.0,
            expected_step_time=point.step_time,
            preempted=sum(run.preempted for run in runs),
        )

    def _run_batch(self, group: Group, table: StepTable, requests: Integers) -> Batched:
        """Simulate one island; requests are in the order in which their KV caches arrive."""
        model, mixed = self._performance[group.name], group.phase is Phase.MIXED
        ready = self.requests.arrivals[requests]
        if not mixed:  # users see the first token once its cache is here
            for sender in np.unique(self.prefill[requests]):
                sent = requests[self.prefill[requests] == sender]
                self.transfer[sent] = transfer_time(
                    self.index, self.groups[sender], group, model, self.requests.inputs[sent]
                )
            ready = self.first[requests] + self.transfer[requests]
            self.first[requests] = ready
        order = np.argsort(ready, kind="stable")
        requests, ready = requests[order], ready[order]
        inputs, outputs = self.requests.inputs[requests], self.requests.outputs[requests]
        prompts = None
        if mixed:
            prompts = Prompts(model.prefill_time(inputs), model.prefill_occupancy(inputs))
        limits = group.max_batch, float(model.kv_capacity())
        done = BatchedIsland(ready, inputs, outputs, table, *limits, self.window, prompts).run()
        self.last[requests], self.join[requests] = done.last, done.joined - ready
        if prompts is not None:
            self.first[requests] = done.first
            self.wait[requests] = done.first - ready - prompts.seconds
        return done

    # --- expectations by the planner's formulas ---

    def rates(self, group: Group) -> FloatArray:
        """Return the measured rate of one island by range [req/s], shape (ranges,)."""
        ranges = self.index.models[group.model].ranges
        inputs = self.requests.inputs[self.of(group)]
        place = np.searchsorted([span.min for span in ranges], inputs, side="right") - 1
        counts = np.bincount(place.clip(min=0), minlength=len(ranges))
        return np.asarray(counts / (group.islands * self.window.length))

    def expected_busy(self, group: Group) -> float:
        """Return the share of an island's time for the measured prompts; 0 on decode islands."""
        if group.phase is Phase.DECODE:
            return 0.0
        model = self._performance[group.name]
        seconds = float(model.prefill_occupancy(self.requests.inputs[self.of(group)]).sum())
        return seconds / (group.islands * self.window.length)

    def expected_ttft(self, group: Group, result: GroupResult) -> float:
        """Return the mean time to first token of a group, every copy an M/G/1 queue [s].

        On a mixed island half a step is added, see ``perfmodel.capacity.rows.prefill_utilisation``.
        Infinite if the queue only grows.
        """
        model, at = self._performance[group.name], self.of(group)
        if not len(at):
            return 0.0
        copies, inputs = group.parallelism.dp, self.requests.inputs[at]
        occupied = model.prefill_occupancy(inputs) * copies
        rate = len(at) / (group.islands * copies * self.window.length)
        queue = mg1_wait(rate * mean(occupied), mean(occupied), mean(occupied**2))
        step = result.expected_step_time * (1 - result.expected_busy)
        return mean(model.prefill_time(inputs) + self.transfer[at]) + queue + step / 2


def mean(values: FloatArray | list[float]) -> float:
    """Return the mean, 0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
