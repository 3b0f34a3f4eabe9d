"""Does every island sustain what the plan promises? Each one is run at the published theta.

Rates come from theta, the workload and the integer weights of the routes. An island that prefills
must stay below its utilisation cap; one that decodes is followed to its own steady state
(``steady.py``). All limits hold with ``maxUtilisation`` of the capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.checks import steady
from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.checks.lengths import decoding, mean_by_range
from archipelago.planner.checks.measured import stated_name
from archipelago.planner.checks.network import adapter_share
from archipelago.planner.checks.queueing import utilisation_cap
from archipelago.planner.checks.routing import span_text
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group
    from archipelago.planner.problem import ModelDemand

ROWS = {
    Phase.PREFILL: ("time", "network"),
    Phase.DECODE: ("tpot", "memory", "batch", "network"),
    Phase.MIXED: ("time", "tpot", "memory", "batch"),
}
"""Names of the limits that can bind an island."""


def check(facts: Facts) -> Iterator[str]:
    """Rates, targets at zero load, and the steady state of every group."""
    for group in facts.known_groups:
        model = facts.models[group.model]
        if len(group.rates) != len(model.ranges):
            continue  # ``structure`` says so
        try:
            performance = facts.performance(group)
        except PerfModelError as error:
            yield f"groups[{group.name}]: such an island cannot exist: {error}"
            continue
        name = stated_name(performance.name, facts.problem.calibrations)
        if name != facts.plan.performance_model:
            yield f"performanceModel: {facts.plan.performance_model!r} stated, judged by {name!r}"
        network = adapter_share(facts, group, performance) or 0.0
        yield from _Island(group, facts.island_rates(group), model, performance, network).findings()


def _differ(one: float, other: float) -> bool:
    """Whether two figures are not the same up to rounding."""
    return not math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)


@dataclass(frozen=True, eq=False)
class _Island:
    """One island of a group at its rates [req/s]; ``network``: used share of its adapters."""

    group: Group
    rates: list[float]
    model: ModelDemand
    performance: PerformanceModel
    network: float

    @property
    def place(self) -> str:
        return f"groups[{self.group.name}]"

    def findings(self) -> Iterator[str]:
        """Everything that the island does not keep, or that is stated otherwise than it is."""
        phase = self.group.phase
        yield from self._binding()
        yield from self._stated_rates()
        yield from self._held()
        if Phase.PREFILL in phase.stages:
            yield from self._ttft_alone()
        if phase is Phase.PREFILL:
            yield from self._prefill()
        else:
            yield from self._tpot_alone()
            yield from self._tokens()

    def _binding(self) -> Iterator[str]:
        rows = ROWS[self.group.phase]
        if self.group.binding not in rows:
            yield (
                f"{self.place}.binding: {self.group.binding!r} is no row of a {self.group.phase} "
                f"island ({', '.join(rows)})"
            )

    def _stated_rates(self) -> Iterator[str]:
        islands = self.group.islands
        for stated, rate, span in zip(self.group.rates, self.rates, self.model.ranges, strict=True):
            if _differ(stated, rate * islands):
                yield (
                    f"{self.place}.rates {span_text(span)}: {stated:.9g} req/s stated, theta and "
                    f"the weights give {rate * islands:.9g}"
                )

    def _held(self) -> Iterator[str]:
        """The longest request of every served range fits into the memory of one copy."""
        memory = self.performance.kv_capacity() / self.group.parallelism.dp
        prefill = self.group.phase is Phase.PREFILL
        asked = decoding(self.model)
        for rate, span, decode in zip(self.rates, self.model.ranges, asked, strict=True):
            tokens = span.max - 1 + (1.0 if prefill else decode.output)
            if rate > 0 and tokens > memory * (1 + TOLERANCE):
                yield (
                    f"{self.place} {span_text(span)}: a request of {tokens:.0f} tokens does not "
                    f"fit into the {memory:.0f} tokens of KV memory of one copy"
                )

    def _ttft_alone(self) -> Iterator[str]:
        """The longest prompt of a range keeps the target on an idle island."""
        ttft = self.model.targets.ttft
        if ttft is None:
            return
        for rate, span in zip(self.rates, self.model.ranges, strict=True):
            alone = float(self.performance.prefill_time(np.array([span.max - 1.0]))[0])
            if rate > 0 and alone > ttft * (1 + TOLERANCE):
                yield (
                    f"{self.place} {span_text(span)}: TTFT without load is {alone * 1e3:.1f} ms, "
                    f"the target {ttft * 1e3:.0f} ms"
                )

    def _tpot_alone(self) -> Iterator[str]:
        """The longest request of a range alone on every copy keeps the target."""
        tpot, copies = self.model.targets.tpot, float(self.group.parallelism.dp)
        if tpot is None:
            return
        asked = decoding(self.model)
        for rate, span, decode in zip(self.rates, self.model.ranges, asked, strict=True):
            tokens = np.array([copies * (span.max - 1 + decode.output)])
            alone = float(self.performance.decode_step_time(np.array([copies]), tokens)[0])
            if rate > 0 and alone > tpot * (1 + TOLERANCE):
                yield (
                    f"{self.place} {span_text(span)}: TPOT of one sequence alone is "
                    f"{alone * 1e3:.2f} ms, the target {tpot * 1e3:.0f} ms"
                )

    def _prompts(self) -> float:
        """Share of the time in which the island computes prompts."""
        seconds = mean_by_range(self.model, self.performance.prefill_occupancy)
        return sum(rate * time for rate, time in zip(self.rates, seconds, strict=True))

    def _cap(self, step: float = 0.0) -> float:
        """Most of the time that prompts may take; ``step`` [s] may be under way when one comes."""
        return min(utilisation_cap(self.model, self.performance, step), self.model.max_utilisation)

    def _busy(self, load: float, cap: float) -> Iterator[str]:
        if load > cap * (1 + TOLERANCE):
            yield (
                f"{self.place}: each island is busy {load:.6f} of the time, at most "
                f"{cap:.6f} is allowed"
            )

    def _prefill(self) -> Iterator[str]:
        group = self.group
        if any((group.step_time, group.sequences, group.kv_tokens, group.kv_capacity)):
            yield (
                f"{self.place}: tpotMilliseconds, sequences, kvTokens and kvCapacity are 0 for "
                "prefill"
            )
        load, cap = self._prompts(), self._cap()
        yield from self._busy(load, cap)
        if cap > 0:
            used = max(load / cap, self.network / self.model.max_utilisation)
            if _differ(group.utilisation, used):
                yield f"{self.place}.utilisation: {group.utilisation:.9g} stated, it is {used:.9g}"

    def _tokens(self) -> Iterator[str]:
        """Decode and mixed islands: the steady state, and what the plan states of it."""
        group, performance = self.group, self.performance
        if group.max_batch > performance.max_sequences():
            yield (
                f"{self.place}.maxBatch: {group.max_batch} exceeds the engine's limit of "
                f"{performance.max_sequences()} on the island"
            )
        prompts = self._prompts() if group.phase is Phase.MIXED else 0.0
        load = steady.load(group, self.rates, self.model, performance, prompts)
        shortfall = steady.shortfall(load, performance, self.model.max_utilisation)
        if shortfall:
            yield f"{self.place}: {shortfall}"
            return
        point = steady.point(load, performance)
        yield from self._stated_point(point)
        used = [self.network, *(value / limit for value, limit in point.use)]
        if group.phase is Phase.MIXED:
            cap = self._cap(point.step)
            yield from self._busy(prompts, cap)
            used.append(prompts / cap * self.model.max_utilisation if cap > 0 else 0.0)
        yield from self._stated_use(max(used) / self.model.max_utilisation)

    def _stated_point(self, point: steady.Point) -> Iterator[str]:
        """The evaluation that the plan shows is the one found here."""
        group, capacity = self.group, self.performance.kv_capacity()
        for field, stated, found in (
            ("tpotMilliseconds", group.step_time * 1e3, point.tau * 1e3),
            ("sequences", group.sequences, point.sequences),
            ("kvTokens", group.kv_tokens, point.kv_tokens),
        ):
            if _differ(stated, found):
                yield f"{self.place}.{field}: {stated:.9g} stated, it is {found:.9g}"
        if group.kv_capacity != capacity:
            yield f"{self.place}.kvCapacity: {group.kv_capacity} stated, it is {capacity}"

    def _stated_use(self, used: float) -> Iterator[str]:
        """The rows of the rate model are conservative: they state at least what is in use."""
        stated = self.group.utilisation
        if stated < used * (1 - TOLERANCE):
            yield f"{self.place}.utilisation: {stated:.9g} stated, {used:.9g} is in use"
        if stated > 1 + TOLERANCE:
            yield f"{self.place}.utilisation: {stated:.9g} exceeds 1"
