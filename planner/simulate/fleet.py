"""The groups of a plan at work: requests follow the routes, islands serve them (``islands.py``).

Groups run one after the other, those that hand caches over first: nothing flows back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from archipelago.perfmodel.operating import fixed_point
from archipelago.planner.islands import Batched, BatchedIsland, Prompts, StepTable, prefill_queue
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.islands import Window
    from archipelago.planner.plan import Group
    from archipelago.planner.strategy import Progress
    from archipelago.planner.traffic import Integers, Requests

NOWHERE: Final = -1
"""Index of the group of a request that is longer than every route."""


@dataclass(frozen=True)
class GroupResult:
    """How busy the islands of a group are: simulated, and expected by the planner's formulas.

    ``wait``: mean seconds before a prompt is begun, on decode islands before a request joins the
    batch [s]. ``busy``: share of time on prompts, 0 on decode islands. ``sequences``, ``kv_tokens``
    and ``step_time`` [s] (prompts in between included) are means of one island, 0 for prefill.
    ``preempted``: how often memory ran out and a request had to wait again.
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


class Fleet:
    """All islands of a plan, and what became of every request.

    Arrays over all requests: ``prefill`` and ``decode`` group (index into the plan's groups, or
    ``NOWHERE``), ``first`` and ``last`` token [s], ``wait`` for the prompt and to ``join`` the
    batch [s]. ``measured``: arrived within the window, and had a route.
    """

    def __init__(
        self, facts: Facts, requests: Requests, window: Window, random: np.random.Generator
    ) -> None:
        self.facts, self.requests, self.window = facts, requests, window
        self.groups = facts.plan.groups
        self._random = random
        self._index = {group.name: i for i, group in enumerate(self.groups)}
        self._performance = [facts.performance(group) for group in self.groups]
        self.prefill, self.decode = self._routed()
        self.first, self.last = requests.arrivals.copy(), requests.arrivals.copy()
        self.wait, self.join = np.zeros(len(requests)), np.zeros(len(requests))
        self.offered = (requests.arrivals >= window.start) & (requests.arrivals < window.end)
        self.measured = self.offered & (self.prefill != NOWHERE)

    def run(self, progress: Progress) -> tuple[GroupResult, ...]:
        """Serve everybody; results in the order of the plan's groups."""
        order = sorted(self.groups, key=lambda group: group.phase is not Phase.PREFILL)
        found = {}
        for done, group in enumerate(order):
            progress(f"simulating {group.name}", done / len(order))
            work = self._prefill if group.phase is Phase.PREFILL else self._batched
            found[group.name] = work(group, self._performance[self._index[group.name]])
        return tuple(found[group.name] for group in self.groups)

    # --- where requests go ---

    def _routed(self) -> tuple[Integers, Integers]:
        """Prefill and decode group of every request, by its length and its route's weights."""
        count = len(self.requests)
        sides = np.full((2, count), NOWHERE, dtype=np.int64)
        draw = self._random.random(count) * MILLION
        place = {model.name: i for i, model in enumerate(self.facts.problem.models)}
        inputs = self.requests.inputs
        for route in self.facts.plan.routes:
            inside = (inputs >= route.range.min) & (inputs < route.range.max)
            mine = np.flatnonzero(inside & (self.requests.model == place[route.model]))
            ends = np.cumsum([pair.weight for pair in route.pairs])
            chosen = np.searchsorted(ends, draw[mine], side="right").clip(max=len(ends) - 1)
            names = [(self._index[pair.prefill], self._index[pair.decode]) for pair in route.pairs]
            sides[:, mine] = np.array(names)[chosen].T
        return sides[0], sides[1]

    def _by_island(self, side: Integers, group: Group) -> Iterator[Integers]:
        """Requests of a group, island by island: all islands of a group get equal shares."""
        mine = np.flatnonzero(side == self._index[group.name])
        island = self._random.integers(0, group.islands, len(mine))
        return (mine[island == i] for i in range(group.islands))

    def of(self, group: Group) -> Integers:
        """Measured requests that a group serves."""
        side = self.prefill if group.phase is Phase.PREFILL else self.decode
        return np.flatnonzero(self.measured & (side == self._index[group.name]))

    # --- what islands make of them ---

    def _prefill(self, group: Group, own: PerformanceModel) -> GroupResult:
        busy, copies = 0.0, group.parallelism.dp
        for mine in self._by_island(self.prefill, group):
            arrivals, inputs = self.requests.arrivals[mine], self.requests.inputs[mine]
            seconds, occupied = own.prefill_time(inputs), own.prefill_occupancy(inputs) * copies
            self.first[mine] = prefill_queue(arrivals, seconds, occupied, copies)
            begun = self.first[mine] - seconds
            self.wait[mine] = begun - arrivals
            busy += self._inside(begun, occupied) / copies
        at = self.of(group)
        share = busy / group.islands / self.window.length
        expected = self.expected_busy(group)
        waited = mean(self.wait[at])
        return GroupResult(group.name, group.phase, group.islands, len(at), waited, share, expected)

    def _inside(self, begun: FloatArray, seconds: FloatArray) -> float:
        """How much of the intervals lies within the window [s]."""
        limits = self.window.start, self.window.end
        return float((np.clip(begun + seconds, *limits) - np.clip(begun, *limits)).sum())

    def _batched(self, group: Group, own: PerformanceModel) -> GroupResult:
        """A decode or a mixed group."""
        table = StepTable(own)
        runs = [
            self._run_batch(group, own, table, mine) for mine in self._by_island(self.decode, group)
        ]
        at = self.of(group)
        busy = self.expected_busy(group)
        rates, demand = self.rates(group), self.facts.models[group.model]
        point = fixed_point(own, rates, demand.lengths.moments(demand.ranges), busy)
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
            kv_capacity=own.kv_capacity(),
            step_time=steps / (1 - prompts) if prompts < 1 else 0.0,
            expected_step_time=point.step_time,
            preempted=sum(run.preempted for run in runs),
        )

    def _run_batch(
        self, group: Group, own: PerformanceModel, table: StepTable, mine: Integers
    ) -> Batched:
        """One island; its requests come in the order in which their caches arrive."""
        ready = self._ready(group, own, mine)
        order = np.argsort(ready, kind="stable")
        mine, ready = mine[order], ready[order]
        inputs, outputs = self.requests.inputs[mine], self.requests.outputs[mine]
        prompts = None
        if group.phase is Phase.MIXED:
            prompts = Prompts(own.prefill_time(inputs), own.prefill_occupancy(inputs))
        limits = group.max_batch, float(own.kv_capacity())
        done = BatchedIsland(ready, inputs, outputs, table, *limits, self.window, prompts).run()
        self.last[mine], self.join[mine] = done.last, done.joined - ready
        if prompts is not None:
            self.first[mine] = done.first
            self.wait[mine] = done.first - ready - prompts.seconds
        return done

    def _ready(self, group: Group, own: PerformanceModel, mine: Integers) -> FloatArray:
        """When requests reach their island: with their cache, over the slower of both adapters."""
        if group.phase is Phase.MIXED:
            return self.requests.arrivals[mine]
        senders = np.array([self._bandwidth(sender) for sender in self.groups])
        speed = np.minimum(senders[self.prefill[mine]], self._bandwidth(group))
        return np.asarray(self.first[mine] + own.kv_bytes(self.requests.inputs[mine]) / speed)

    def _bandwidth(self, group: Group) -> float:
        """What an island's adapters move [B/s]; each part of several sends its own layers."""
        layers = sum(part.layers for part in group.parts)
        speeds = [
            part.gpus * nic * (layers / part.layers if group.parts else 1.0)
            for part in group.sections
            if (nic := self.facts.pools[part.pool].nic_per_gpu) is not None
        ]
        return min(speeds, default=np.inf)

    # --- what the planner's formulas expect of them ---

    def rates(self, group: Group) -> FloatArray:
        """Measured requests of one island by range [req/s], shape (ranges,)."""
        ranges = self.facts.models[group.model].ranges
        inputs = self.requests.inputs[self.of(group)]
        place = np.searchsorted([span.min for span in ranges], inputs, side="right") - 1
        counts = np.bincount(place.clip(min=0), minlength=len(ranges))
        return np.asarray(counts / (group.islands * self.window.length))

    def expected_busy(self, group: Group) -> float:
        """Share of an island's time that the measured prompts take; 0 on decode islands."""
        if group.phase is Phase.DECODE:
            return 0.0
        own = self._performance[self._index[group.name]]
        seconds = float(own.prefill_occupancy(self.requests.inputs[self.of(group)]).sum())
        return seconds / (group.islands * self.window.length)

    def expected_ttft(self, group: Group, result: GroupResult) -> float:
        """Mean time to first token of a group's requests, every copy an M/G/1 queue [s].

        Pollaczek and Khinchine: the wait is lambda E[S^2] / (2 (1 - rho)); on a mixed island half
        a step is added, see ``perfmodel.capacity.prefill_utilisation``. Infinite where the queue
        only grows.
        """
        own, at = self._performance[self._index[group.name]], self.of(group)
        if not len(at):
            return 0.0
        copies, inputs = group.parallelism.dp, self.requests.inputs[at]
        occupied = own.prefill_occupancy(inputs) * copies
        rate = len(at) / (group.islands * copies * self.window.length)
        idle = 1 - rate * mean(occupied)
        if idle <= 0:
            return float(np.inf)
        queue = rate * mean(occupied**2) / (2 * idle)
        step = result.expected_step_time * (1 - result.expected_busy)
        return mean(own.prefill_time(inputs)) + queue + step / 2


def mean(values: FloatArray | list[float]) -> float:
    """Mean, 0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
