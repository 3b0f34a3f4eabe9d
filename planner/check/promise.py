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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.model import PerformanceModel

from ..plan import Group
from ..problem import STAGES, ModelDemand, Phase
from .index import TOLERANCE, PlanIndex, decoding, mean_by_range, misstated
from .routing import adapter_share, span_text
from .transfer import mean_transfer, slowest_transfer


def utilisation_cap(
    model: ModelDemand, performance: PerformanceModel, step: float = 0.0, transfer: float = 0.0
) -> float:
    """Return the busy share rho at which the mean TTFT is the target; 1 without a target.

    An M/G/1 queue over the model's whole mix waits W = rho / (1 - rho) * E[S^2] / (2 E[S]) on
    average (Pollaczek-Khinchine), and the target is met while W + E[S] + E[X] <= T, with E[X] the
    mean ``transfer`` of the cache [s]. On a mixed island nothing is transferred, but a prompt also
    waits for the rest of the token step that is under way, half of ``step`` [s] on average.
    """
    target = model.targets.ttft
    if target is None:
        return 1.0
    lengths = model.lengths
    times = [float(t) for t in performance.prefill_time(np.asarray(lengths.length))]
    mix = [float(p) for p in lengths.probability]
    mean = sum(p * t for p, t in zip(mix, times, strict=True))
    square = sum(p * t * t for p, t in zip(mix, times, strict=True))
    spare = target - mean - step / 2 - transfer
    if spare <= 0:
        return 0.0
    odds = spare * 2 * mean / square  # rho / (1 - rho)
    return odds / (1 + odds)


HALVINGS = 100
"""Bisection steps: the interval shrinks below the spacing of floats."""
ROUNDING = 1e-6
"""Tokens by which the mean of an output may be off: a sum of products of probabilities."""


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
    def limits(self) -> list[tuple[float, str]]:
        """Longest time per token [s] and name of each limit."""
        limits = [
            (self.batch / self.sequences, f"batch of {self.batch}"),
            (self.memory / self.kv_tokens, f"KV memory of {self.memory} tokens"),
        ]
        if self.tpot is not None:
            limits.append((self.tpot, f"TPOT of {self.tpot * 1e3:.0f} ms"))
        return limits


def _shortfall(load: Load, performance: PerformanceModel, utilisation: float) -> str:
    """Return why an island has no steady state within its limits; empty if it has one.

    ``utilisation``: allowed share of its capacity; 1 / utilisation times the load must fit.
    """
    full = replace(
        load,
        sequences=load.sequences / utilisation,
        kv_tokens=load.kv_tokens / utilisation,
        prompts=load.prompts / utilisation,
    )
    reserve = "" if utilisation == 1 else f", with {1 - utilisation:g} of its capacity unused,"
    if full.prompts >= 1:
        return f"at theta{reserve} prompts take all of the time, {full.prompts:.6f}"
    most, name = min(full.limits)
    token = _token_time(full, performance, most)
    if token <= most * (1 + TOLERANCE):
        return ""
    work = "a token, with prompts in between," if full.prompts else "a step"
    return (
        f"at theta{reserve} {work} would have to take at most {most * 1e3:.4f} ms ({name}), "
        f"but takes {token * 1e3:.4f} ms there"
    )


def _steady_token_time(load: Load, performance: PerformanceModel) -> float:
    """Return the time per token of a load without a shortfall, by bisection [s]."""
    low, high = 0.0, min(load.limits)[0] * (1 + TOLERANCE)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _token_time(load, performance, middle) <= middle
        low, high = (low, middle) if above else (middle, high)
    return high


def _token_time(load: Load, performance: PerformanceModel, tau: float) -> float:
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
    """Check rates, targets without load, and the steady state of every group."""
    for group in index.valid_groups:
        place, model, rows = f"groups[{group.name}]", index.models[group.model], ROWS[group.phase]
        if len(group.rates) != len(model.ranges):
            continue  # ``structure`` reports it
        try:
            performance = index.performance(group)
        except PerfModelError as error:
            yield f"{place}: such an island cannot exist: {error}"
            continue
        name = performance.name.removeprefix("calibrated ")
        name = f"calibrated {name}" if index.problem.calibrations else name
        yield from misstated("performanceModel", index.plan.performance_model, name, "judged by")
        if group.binding not in rows:
            yield (
                f"{place}.binding: {group.binding!r} is no row of a {group.phase} island "
                f"({', '.join(rows)})"
            )
        rates, loads = index.island_rates(group), decoding(model)
        spans = zip(group.rates, rates, model.ranges, loads, strict=True)
        for stated, rate, span, load in spans:
            yield from misstated(
                f"{place}.rates {span_text(span)}",
                stated,
                rate * group.islands,
                "theta and the weights give",
                " req/s",
            )
            if rate > 0:
                longest, sent = span.max - 1.0, 0.0
                if group.phase is Phase.PREFILL:
                    length = np.array([longest])
                    sent = float(slowest_transfer(index, group, performance, span, length)[0])
                for finding in alone(
                    group, model, performance, longest, load.output, transfer=sent
                ):
                    yield f"{place} {span_text(span)}: {finding}"
        for finding in _under_load(index, group, performance, rates):
            yield f"{place}{finding}"


def alone(
    group: Group,
    model: ModelDemand,
    performance: PerformanceModel,
    longest: float,
    output: float,
    *,
    stages: Sequence[Phase] = STAGES,
    slack: float = TOLERANCE,
    transfer: float = 0.0,
) -> Iterator[str]:
    """Yield the limits that one request breaks on every copy of an otherwise idle island.

    ``longest``: its input [tokens]. ``stages``: which of the group's to judge. ``slack``: relative,
    of every limit; a negative one is of the times alone, as tokens are counted exactly.
    ``transfer``: of its cache [s], a part of TTFT.
    """
    stages = [stage for stage in stages if stage in group.phase.stages]
    memory = performance.kv_capacity() / group.parallelism.dp
    tokens = longest + (output if Phase.DECODE in stages else 1.0)
    if tokens > memory * (1 + max(slack, 0.0)) + ROUNDING:
        yield (
            f"a request of {tokens:.0f} tokens does not fit into the {memory:.0f} tokens of KV "
            "memory of one copy"
        )
    for stage in stages:
        prefills = stage is Phase.PREFILL
        target = model.targets.ttft if prefills else model.targets.tpot
        if target is None:
            continue
        time = idle_time(group, performance, longest, output, stage) + transfer * prefills
        if time > target * (1 + slack):
            part = f"{transfer * 1e3:.1f}"
            moved = "" if float(part) == 0 else f", {part} ms of it the transfer,"
            name = f"TTFT without load{moved}" if prefills else "TPOT of one sequence alone"
            digits = 1 if prefills else 2
            yield f"{name} is {time * 1e3:.{digits}f} ms, the target {target * 1e3:.0f} ms"


def idle_time(
    group: Group, performance: PerformanceModel, longest: float, output: float, stage: Phase
) -> float:
    """Return TTFT, or TPOT with one such request on every copy, of an idle island [s]."""
    if stage is Phase.PREFILL:
        return float(performance.prefill_time(np.array([longest]))[0])
    copies = float(group.parallelism.dp)
    cached = np.array([copies * (longest + output)])
    return float(performance.decode_step_time(np.array([copies]), cached)[0])


def _under_load(
    index: PlanIndex, group: Group, performance: PerformanceModel, rates: list[float]
) -> Iterator[str]:
    """Yield the limits that a group's islands break at their rates, and its wrong figures."""
    model, capacity = index.models[group.model], performance.kv_capacity()
    prompts, step = 0.0, 0.0
    uses = [adapter_share(index, group, performance)]
    if Phase.PREFILL in group.phase.stages:
        seconds = mean_by_range(model, performance.prefill_occupancy)
        prompts = sum(rate * time for rate, time in zip(rates, seconds, strict=True))
    if group.phase is Phase.PREFILL:
        if any((group.step_time, group.sequences, group.kv_tokens, group.kv_capacity)):
            yield ": tpotMilliseconds, sequences, kvTokens and kvCapacity are 0 for prefill"
    else:
        if group.max_batch > performance.max_sequences():
            yield (
                f".maxBatch: {group.max_batch} exceeds the engine's limit of "
                f"{performance.max_sequences()} on the island"
            )
        tokens = [rate * load.output for rate, load in zip(rates, decoding(model), strict=True)]
        cached = [n * load.context for n, load in zip(tokens, decoding(model), strict=True)]
        load = Load(
            sum(tokens), sum(cached), prompts, group.max_batch, capacity, model.targets.tpot
        )
        idle = load.sequences <= 0 or load.kv_tokens <= 0  # at most ranges of probability 0
        if idle and not index.is_routed(group):
            yield ": serves no requests; leave its islands out"
            return
        if not idle and (shortfall := _shortfall(load, performance, model.max_utilisation)):
            yield f": {shortfall}"
            return
        tau = _token_time(load, performance, 0.0) if idle else _steady_token_time(load, performance)
        step = tau * (1 - prompts)
        sequences, kv_tokens = load.sequences * tau, load.kv_tokens * tau
        uses += [sequences / load.batch, kv_tokens / load.memory]
        yield from misstated(".tpotMilliseconds", group.step_time * 1e3, tau * 1e3)
        yield from misstated(".sequences", group.sequences, sequences)
        yield from misstated(".kvTokens", group.kv_tokens, kv_tokens)
        yield from misstated(".kvCapacity", group.kv_capacity, capacity)
    used = max(uses) / model.max_utilisation
    if Phase.PREFILL in group.phase.stages:
        sent = mean_transfer(index, group, performance) if group.phase is Phase.PREFILL else 0.0
        cap = min(utilisation_cap(model, performance, step, sent), model.max_utilisation)
        if prompts > cap * (1 + TOLERANCE):
            yield (f": each island is busy {prompts:.6f} of the time, at most {cap:.6f} is allowed")
        if cap > 0:
            used = max(used, prompts / cap)
        elif group.phase is Phase.PREFILL:
            return
    if group.phase is Phase.PREFILL and model.targets.ttft is None:
        yield from misstated(".utilisation", group.utilisation, used)
        return
    # The other rows are upper bounds and state at least the use: that of time under a TTFT target
    # is of the slowest transfer that the plan could have chosen.
    if group.utilisation < used * (1 - TOLERANCE):
        yield f".utilisation: {group.utilisation:.9g} stated, {used:.9g} is in use"
    if group.utilisation > 1 + TOLERANCE:
        yield f".utilisation: {group.utilisation:.9g} exceeds 1"
