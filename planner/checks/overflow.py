"""Can the islands of a route beyond the stated workload hold the longest request it takes?

Such a route has no share and no rate, so nothing is promised about how many of these requests are
served: one alone must fit into memory and context and keep the latency targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import PerfModelError
from archipelago.planner.checks.facts import TOLERANCE
from archipelago.planner.checks.lengths import decoding
from archipelago.planner.checks.routing import is_overflow, span_text
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Group, Route
    from archipelago.planner.problem import ModelDemand


def check(facts: Facts) -> Iterator[str]:
    """Every group of an overflow route, by the longest request of the route."""
    for route in facts.plan.routes:
        model = facts.models.get(route.model)
        if model is not None and is_overflow(model, route.range):
            names = {name for pair in route.pairs for name in (pair.prefill, pair.decode)}
            for group in facts.known_groups:  # ``routing`` reports what is not among them
                if group.name in names and group.model == route.model:
                    yield from _holds(facts, route, model, group)


def _holds(facts: Facts, route: Route, model: ModelDemand, group: Group) -> Iterator[str]:
    place = f"routes[{route.model} {span_text(route.range)}] in {group.name}"
    try:
        performance = facts.performance(group)
    except PerfModelError:
        return  # ``promise`` says so
    longest, output = float(route.range.max - 1), decoding(model)[-1].output
    if longest + output > performance.max_length:
        yield f"{place}: longer than the model's {performance.max_length} tokens with its output"
    copies = float(group.parallelism.dp)
    held = longest + (1.0 if group.phase is Phase.PREFILL else output)
    if held > performance.kv_capacity() / copies * (1 + TOLERANCE):
        yield f"{place}: {held:.0f} tokens do not fit into the KV memory of one copy"
    for stage in group.phase.stages:
        if stage is Phase.PREFILL:
            limit, alone = model.targets.ttft, performance.prefill_time(np.array([longest]))
        else:
            limit = model.targets.tpot
            alone = performance.decode_step_time(np.array([copies]), np.array([copies * held]))
        if limit is not None and float(alone[0]) > limit * (1 + TOLERANCE):
            yield (
                f"{place}: one request alone takes {float(alone[0]) * 1e3:.1f} ms, the target is "
                f"{limit * 1e3:.0f} ms"
            )
