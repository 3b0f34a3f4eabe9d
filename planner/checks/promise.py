"""Does every island sustain what the plan promises? Each one is run at the published theta.

Rates come from theta, the workload and the integer weights of the routes. A prefill island must
stay below its utilisation cap. A decode island is followed to its own steady state with the
model's true step time: by Little's law B = L tau sequences and K = M tau cached tokens, where
L = sum_j lambda_j o_j and M = sum_j lambda_j o_j k_j, and tau = step(L tau, M tau).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.checks.lengths import decoding, mean_seconds
from archipelago.planner.checks.queueing import utilisation_cap
from archipelago.planner.checks.routing import span_text
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.model import PerformanceModel
    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group
    from archipelago.planner.problem import ModelDemand

ROWS = {Phase.PREFILL: ("time",), Phase.DECODE: ("tpot", "memory", "batch")}
"""Names of the limits that can bind an island."""
HALVINGS = 100
"""Bisection steps: the interval shrinks below the spacing of floats."""


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
        if performance.name != facts.plan.performance_model:
            yield (
                f"performanceModel: {facts.plan.performance_model!r} stated, judged by "
                f"{performance.name!r}"
            )
        rates = facts.island_rates(group)
        yield from _binding(group)
        yield from _stated_rates(group, rates, model)
        if group.phase is Phase.PREFILL:
            yield from _prefill(group, rates, model, performance)
        else:
            yield from _decode(group, rates, model, performance)


def _binding(group: Group) -> Iterator[str]:
    if group.binding not in ROWS[group.phase]:
        yield (
            f"groups[{group.name}].binding: {group.binding!r} is no row of a {group.phase} island "
            f"({', '.join(ROWS[group.phase])})"
        )


def _differ(one: float, other: float) -> bool:
    return not math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)


def _stated_rates(group: Group, rates: list[float], model: ModelDemand) -> Iterator[str]:
    for stated, rate, span in zip(group.rates, rates, model.ranges, strict=True):
        if _differ(stated, rate * group.islands):
            yield (
                f"groups[{group.name}].rates {span_text(span)}: {stated:.9g} req/s stated, theta "
                f"and the weights give {rate * group.islands:.9g}"
            )


def _held(
    group: Group, rates: list[float], model: ModelDemand, performance: PerformanceModel
) -> Iterator[str]:
    """The longest request of every served range fits into the memory of one copy."""
    memory = performance.kv_capacity() / group.parallelism.dp
    for rate, span, decode in zip(rates, model.ranges, decoding(model), strict=True):
        tokens = span.max - 1 + (decode.output if group.phase is Phase.DECODE else 1.0)
        if rate > 0 and tokens > memory * (1 + TOLERANCE):
            yield (
                f"groups[{group.name}] {span_text(span)}: a request of {tokens:.0f} tokens does "
                f"not fit into the {memory:.0f} tokens of KV memory of one copy"
            )


def _prefill(
    group: Group, rates: list[float], model: ModelDemand, performance: PerformanceModel
) -> Iterator[str]:
    place = f"groups[{group.name}]"
    if any((group.step_time, group.sequences, group.kv_tokens, group.kv_capacity)):
        yield f"{place}: tpotMilliseconds, sequences, kvTokens and kvCapacity are 0 for prefill"
    yield from _held(group, rates, model, performance)
    ttft = model.targets.ttft
    for rate, span in zip(rates, model.ranges, strict=True):
        alone = float(performance.prefill_time(np.array([span.max - 1.0]))[0])
        if rate > 0 and ttft is not None and alone > ttft * (1 + TOLERANCE):
            yield (
                f"{place} {span_text(span)}: TTFT without load is {alone * 1e3:.1f} ms, "
                f"the target {ttft * 1e3:.0f} ms"
            )
    seconds = mean_seconds(model, performance.prefill_occupancy)
    load = sum(rate * time for rate, time in zip(rates, seconds, strict=True))
    cap = utilisation_cap(model, performance)
    if load > cap * (1 + TOLERANCE):
        yield f"{place}: each island is busy {load:.6f} of the time, at most {cap:.6f} is allowed"
    if cap > 0 and _differ(group.utilisation, load / cap):
        yield f"{place}.utilisation: {group.utilisation:.9g} stated, it is {load / cap:.9g}"


@dataclass(frozen=True)
class _Load:
    """L [1] and M [tokens] per second of step time, and the island's limits in step time [s]."""

    sequences: float
    kv_tokens: float
    limits: tuple[tuple[str, float], ...]


def _decode(
    group: Group, rates: list[float], model: ModelDemand, performance: PerformanceModel
) -> Iterator[str]:
    place = f"groups[{group.name}]"
    if group.max_batch > performance.max_sequences():
        yield (
            f"{place}.maxBatch: {group.max_batch} exceeds the engine's limit of "
            f"{performance.max_sequences()} on the island"
        )
    yield from _held(group, rates, model, performance)
    yield from _tpot_alone(group, rates, model, performance)
    load = _load(group, rates, model, performance)
    name, most = min(load.limits, key=lambda limit: limit[1], default=("", math.inf))
    if not math.isfinite(most):
        yield f"{place}: serves no requests; leave its islands out"
        return
    step = _step(performance, load, most)
    if step > most * (1 + TOLERANCE):
        yield (
            f"{place}: at theta a step would have to take at most {most * 1e3:.4f} ms ({name}), "
            f"but takes {step * 1e3:.4f} ms there"
        )
        return
    tau = _steady(performance, load, most * (1 + TOLERANCE))
    yield from _stated_point(group, tau, load, performance)


def _tpot_alone(
    group: Group, rates: list[float], model: ModelDemand, performance: PerformanceModel
) -> Iterator[str]:
    """The longest request of a range alone on every copy keeps the target."""
    tpot, copies = model.targets.tpot, float(group.parallelism.dp)
    if tpot is None:
        return
    for rate, span, decode in zip(rates, model.ranges, decoding(model), strict=True):
        tokens = copies * (span.max - 1 + decode.output)
        alone = float(performance.decode_step_time(np.array([copies]), np.array([tokens]))[0])
        if rate > 0 and alone > tpot * (1 + TOLERANCE):
            yield (
                f"groups[{group.name}] {span_text(span)}: TPOT of one sequence alone is "
                f"{alone * 1e3:.2f} ms, the target {tpot * 1e3:.0f} ms"
            )


def _load(
    group: Group, rates: list[float], model: ModelDemand, performance: PerformanceModel
) -> _Load:
    asked = decoding(model)
    sequences = sum(r * d.output for r, d in zip(rates, asked, strict=True))
    kv = sum(r * d.output * d.context for r, d in zip(rates, asked, strict=True))
    if sequences <= 0 or kv <= 0:
        return _Load(0.0, 0.0, ())
    limits = [
        (f"batch of {group.max_batch}", group.max_batch / sequences),
        (f"KV memory of {performance.kv_capacity()} tokens", performance.kv_capacity() / kv),
    ]
    if model.targets.tpot is not None:
        limits.append((f"TPOT of {model.targets.tpot * 1e3:.0f} ms", model.targets.tpot))
    return _Load(sequences, kv, tuple(limits))


def _step(performance: PerformanceModel, load: _Load, tau: float) -> float:
    sequences, tokens = np.array([load.sequences * tau]), np.array([load.kv_tokens * tau])
    return float(performance.decode_step_time(sequences, tokens)[0])


def _steady(performance: PerformanceModel, load: _Load, most: float) -> float:
    """The step time that reproduces itself; step(0) > 0 and step(most) <= most enclose it."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _step(performance, load, middle) <= middle else (middle, high)
    return high


def _stated_point(
    group: Group, tau: float, load: _Load, performance: PerformanceModel
) -> Iterator[str]:
    """The evaluation that the plan shows is the one found here, and its use covers it."""
    place = f"groups[{group.name}]"
    sequences, tokens = load.sequences * tau, load.kv_tokens * tau
    for field, stated, found in (
        ("tpotMilliseconds", group.step_time * 1e3, tau * 1e3),
        ("sequences", group.sequences, sequences),
        ("kvTokens", group.kv_tokens, tokens),
    ):
        if _differ(stated, found):
            yield f"{place}.{field}: {stated:.9g} stated, it is {found:.9g}"
    if group.kv_capacity != performance.kv_capacity():
        yield f"{place}.kvCapacity: {group.kv_capacity} stated, it is {performance.kv_capacity()}"
    used = max(sequences / group.max_batch, tokens / performance.kv_capacity())
    if group.utilisation < used * (1 - TOLERANCE):
        yield f"{place}.utilisation: {group.utilisation:.9g} stated, {used:.9g} is in use"
    if group.utilisation > 1 + TOLERANCE:
        yield f"{place}.utilisation: {group.utilisation:.9g} exceeds 1"
