"""Checks of the promise: every island sustains its rates at the published theta.

Rates come from theta, the workload and the integer weights of the routes. An island that prefills
must stay below its utilisation cap. For one that decodes, the steady state is found by bisection of
the time per token. By Little's law the island runs B = L tau sequences with K = M tau cached
tokens, with L = sum_j lambda_j o_j and M = sum_j lambda_j o_j k_j. A step of that batch takes
step(B, K). On a mixed island prompts take the share u of the time and steps the rest, so a token
comes every tau = step(L tau, M tau) / (1 - u). All limits hold with ``maxUtilisation`` of the
capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import PerformanceModel

from ..plan import Group
from ..problem import ModelDemand, Phase
from .index import TOLERANCE, PlanIndex, decoding, mean_by_range, stated_name
from .routing import adapter_share, span_text


def utilisation_cap(model: ModelDemand, performance: PerformanceModel, step: float = 0.0) -> float:
    """Return the busy share rho at which the mean TTFT is the target; 1 without a target.

    An M/G/1 queue over the model's whole mix waits W = rho / (1 - rho) * E[S^2] / (2 E[S]) on
    average (Pollaczek-Khinchine), and the target is met while W + E[S] <= T. On a mixed island a
    prompt also waits for the rest of the token step that is under way, half of ``step`` [s] on
    average.
    """
    target = model.targets.ttft
    if target is None:
        return 1.0
    lengths = model.lengths
    times = [float(t) for t in performance.prefill_time(np.asarray(lengths.length))]
    mix = [float(p) for p in lengths.probability]
    mean = sum(p * t for p, t in zip(mix, times, strict=True))
    square = sum(p * t * t for p, t in zip(mix, times, strict=True))
    spare = target - mean - step / 2
    if spare <= 0:
        return 0.0
    odds = spare * 2 * mean / square  # rho / (1 - rho)
    return odds / (1 + odds)


HALVINGS = 100
"""Bisection steps: the interval shrinks below the spacing of floats."""


@dataclass(frozen=True)
class Load:
    """The load of an island, and its limits.

    ``sequences`` L [1/s] and ``kv_tokens`` M [tokens/s]: running sequences and cached tokens per
    second of time per token. ``prompts``: u [1]. Limits: ``batch`` [sequences], ``memory``
    [tokens] and ``tpot`` [s].
    """

    sequences: float
    kv_tokens: float
    prompts: float
    batch: int
    memory: int
    tpot: float | None

    @property
    def limits(self) -> list[tuple[str, float]]:
        """Name and longest time per token of each limit [s]."""
        limits = [
            (f"batch of {self.batch}", self.batch / self.sequences),
            (f"KV memory of {self.memory} tokens", self.memory / self.kv_tokens),
        ]
        if self.tpot is not None:
            limits.append((f"TPOT of {self.tpot * 1e3:.0f} ms", self.tpot))
        return limits

    def scaled(self, utilisation: float) -> Load:
        """Return the load divided by the allowed utilisation."""
        return Load(
            self.sequences / utilisation,
            self.kv_tokens / utilisation,
            self.prompts / utilisation,
            self.batch,
            self.memory,
            self.tpot,
        )


@dataclass(frozen=True)
class SteadyState:
    """A steady state: time per token and step alone [s], batch, cached tokens.

    ``use``: (use, limit) of batch and memory.
    """

    tau: float
    step: float
    sequences: float
    kv_tokens: float
    use: tuple[tuple[float, float], ...]


def island_load(
    group: Group,
    rates: list[float],
    model: ModelDemand,
    performance: PerformanceModel,
    prompts: float,
) -> Load:
    """Return the load of one island at its rates [req/s]; ``prompts``: their share of the time."""
    demands = decoding(model)
    sequences = sum(r * d.output for r, d in zip(rates, demands, strict=True))
    kv = sum(r * d.output * d.context for r, d in zip(rates, demands, strict=True))
    memory, tpot = performance.kv_capacity(), model.targets.tpot
    return Load(sequences, kv, prompts, group.max_batch, memory, tpot)


def load_shortfall(load: Load, performance: PerformanceModel, utilisation: float) -> str:
    """Return why an island has no steady state within its limits; empty if it has one.

    ``utilisation``: allowed share of its capacity; 1 / utilisation times the load must fit.
    """
    if load.sequences <= 0 or load.kv_tokens <= 0:
        return "serves no requests; leave its islands out"
    full = load.scaled(utilisation)
    reserve = "" if utilisation == 1 else f", with {1 - utilisation:g} of its capacity unused,"
    if full.prompts >= 1:
        return f"at theta{reserve} prompts take all of the time, {full.prompts:.6f}"
    name, most = min(full.limits, key=lambda limit: limit[1])
    token = _token_time(performance, full, most)
    if token > most * (1 + TOLERANCE):
        what = "a step" if not full.prompts else "a token, with prompts in between,"
        return (
            f"at theta{reserve} {what} would have to take at most {most * 1e3:.4f} ms ({name}), "
            f"but takes {token * 1e3:.4f} ms there"
        )
    return ""


def steady_state(load: Load, performance: PerformanceModel) -> SteadyState:
    """Return the steady state of a load without a shortfall, by bisection of the time per token."""
    low, high = 0.0, min(limit for _, limit in load.limits) * (1 + TOLERANCE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _token_time(performance, load, middle) <= middle
        low, high = (low, middle) if above else (middle, high)
    sequences, tokens = load.sequences * high, load.kv_tokens * high
    use = ((sequences, float(load.batch)), (tokens, float(load.memory)))
    return SteadyState(high, high * (1 - load.prompts), sequences, tokens, use)


def _token_time(performance: PerformanceModel, load: Load, tau: float) -> float:
    """Return step(L tau, M tau) / (1 - u), the time per token of the batch at ``tau`` [s]."""
    batch, cached = np.array([load.sequences * tau]), np.array([load.kv_tokens * tau])
    return float(performance.decode_step_time(batch, cached)[0]) / (1 - load.prompts)


ROWS = {
    Phase.PREFILL: ("time", "network"),
    Phase.DECODE: ("tpot", "memory", "batch", "network"),
    Phase.MIXED: ("time", "tpot", "memory", "batch"),
}
"""Capacity rows that can bind an island, by phase."""


def check_promise(index: PlanIndex) -> Iterator[str]:
    """Check rates, targets at zero load, and the steady state of every group."""
    for group in index.valid_groups:
        model = index.models[group.model]
        if len(group.rates) != len(model.ranges):
            continue  # ``structure`` reports it
        try:
            performance = index.performance(group)
        except PerfModelError as error:
            yield f"groups[{group.name}]: such an island cannot exist: {error}"
            continue
        name = stated_name(performance.name, index.problem.calibrations)
        if name != index.plan.performance_model:
            yield f"performanceModel: {index.plan.performance_model!r} stated, judged by {name!r}"
        network = adapter_share(index, group, performance) or 0.0
        yield from _Island(group, index.island_rates(group), model, performance, network).findings()


def _differ(one: float, other: float) -> bool:
    """Return whether two figures differ by more than rounding."""
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
        """Yield every broken limit and every wrong figure."""
        phase = self.group.phase
        yield from self._binding()
        yield from self._stated_rates()
        yield from self._check_memory()
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

    def _check_memory(self) -> Iterator[str]:
        """Check that the longest request of every served range fits into one copy."""
        memory = self.performance.kv_capacity() / self.group.parallelism.dp
        prefill = self.group.phase is Phase.PREFILL
        loads = decoding(self.model)
        for rate, span, decode in zip(self.rates, self.model.ranges, loads, strict=True):
            tokens = span.max - 1 + (1.0 if prefill else decode.output)
            if rate > 0 and tokens > memory * (1 + TOLERANCE):
                yield (
                    f"{self.place} {span_text(span)}: a request of {tokens:.0f} tokens does not "
                    f"fit into the {memory:.0f} tokens of KV memory of one copy"
                )

    def _ttft_alone(self) -> Iterator[str]:
        """Check that the longest prompt of a range meets the target on an idle island."""
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
        """Check that one longest request of a range on every copy meets the target."""
        tpot, copies = self.model.targets.tpot, float(self.group.parallelism.dp)
        if tpot is None:
            return
        loads = decoding(self.model)
        for rate, span, decode in zip(self.rates, self.model.ranges, loads, strict=True):
            tokens = np.array([copies * (span.max - 1 + decode.output)])
            alone = float(self.performance.decode_step_time(np.array([copies]), tokens)[0])
            if rate > 0 and alone > tpot * (1 + TOLERANCE):
                yield (
                    f"{self.place} {span_text(span)}: TPOT of one sequence alone is "
                    f"{alone * 1e3:.2f} ms, the target {tpot * 1e3:.0f} ms"
                )

    def _prompts(self) -> float:
        """Return the share of time in which the island computes prompts."""
        seconds = mean_by_range(self.model, self.performance.prefill_occupancy)
        return sum(rate * time for rate, time in zip(self.rates, seconds, strict=True))

    def _cap(self, step: float = 0.0) -> float:
        """Return the largest share of time for prompts, which may wait for a step of ``step`` s."""
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
        """Check the steady state of a decode or mixed island, and the plan's figures of it."""
        group, performance = self.group, self.performance
        if group.max_batch > performance.max_sequences():
            yield (
                f"{self.place}.maxBatch: {group.max_batch} exceeds the engine's limit of "
                f"{performance.max_sequences()} on the island"
            )
        prompts = self._prompts() if group.phase is Phase.MIXED else 0.0
        load = island_load(group, self.rates, self.model, performance, prompts)
        shortfall = load_shortfall(load, performance, self.model.max_utilisation)
        if shortfall:
            yield f"{self.place}: {shortfall}"
            return
        point = steady_state(load, performance)
        yield from self._stated_point(point)
        used = [self.network, *(value / limit for value, limit in point.use)]
        if group.phase is Phase.MIXED:
            cap = self._cap(point.step)
            yield from self._busy(prompts, cap)
            used.append(prompts / cap * self.model.max_utilisation if cap > 0 else 0.0)
        yield from self._stated_use(max(used) / self.model.max_utilisation)

    def _stated_point(self, point: SteadyState) -> Iterator[str]:
        """Check that the plan states the steady state."""
        group, capacity = self.group, self.performance.kv_capacity()
        for field, stated, computed in (
            ("tpotMilliseconds", group.step_time * 1e3, point.tau * 1e3),
            ("sequences", group.sequences, point.sequences),
            ("kvTokens", group.kv_tokens, point.kv_tokens),
        ):
            if _differ(stated, computed):
                yield f"{self.place}.{field}: {stated:.9g} stated, it is {computed:.9g}"
        if group.kv_capacity != capacity:
            yield f"{self.place}.kvCapacity: {group.kv_capacity} stated, it is {capacity}"

    def _stated_use(self, used: float) -> Iterator[str]:
        """Check the utilisation: the rate model's rows state at least the use."""
        stated = self.group.utilisation
        if stated < used * (1 - TOLERANCE):
            yield f"{self.place}.utilisation: {stated:.9g} stated, {used:.9g} is in use"
        if stated > 1 + TOLERANCE:
            yield f"{self.place}.utilisation: {stated:.9g} exceeds 1"
