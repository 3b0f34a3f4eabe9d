"""Sources of the numbers behind a plan: the user, data sheets, publishers, measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, product
from typing import TYPE_CHECKING

from archipelago.perfmodel.calibration import provenance
from archipelago.perfmodel.calibration.provenance import Fact, SourceKind
from archipelago.perfmodel.roofline.kv_transfer import CacheLayout

from ..formats.calibrations import applies
from ..problem import Billing, ModelDemand, Objective, PlanningProblem

if TYPE_CHECKING:
    from archipelago.perfmodel.calibration.corrections import Calibration
    from archipelago.perfmodel.catalogue.accelerators import Accelerator

    from ..plan import Plan


GIGABIT = 1e9 / 8


def facts(problem: PlanningProblem) -> Iterator[Fact]:
    """Yield every number that a plan depends on, the user's first."""
    yield from _stated(problem)
    for architecture in {m.architecture.name: m.architecture for m in problem.models}.values():
        yield provenance.architecture_fact(architecture)
    accelerators = {pool.accelerator.name: pool.accelerator for pool in problem.pools}
    dtypes = sorted({t for m in problem.models for t in provenance.weight_types(m.architecture)})
    for accelerator in accelerators.values():
        yield from provenance.accelerator_facts(accelerator)
        yield from provenance.precision_facts(accelerator, dtypes)
        operands = dict.fromkeys(accelerator.operand(dtype) for dtype in dtypes)
        if _uncalibrated(problem, accelerator):
            for engine, operand in product(_engines(problem), operands):
                yield from provenance.efficiency_facts(accelerator, operand, *engine)
        for calibration in problem.calibrations:
            if calibration.accelerator != accelerator.name:
                continue
            yield from provenance.calibration_facts(calibration)
            own = calibration.engine, calibration.version
            rest = chain(
                provenance.overhead_facts(accelerator, *own),
                *(provenance.efficiency_facts(accelerator, name, *own) for name in operands),
            )
            yield from (fact for fact in rest if not _replaced(calibration, fact))
    if any(_uncalibrated(problem, accelerator) for accelerator in accelerators.values()):
        for engine in _engines(problem):
            yield from provenance.overhead_facts(None, *engine)


def precisions(problem: PlanningProblem, plan: Plan) -> tuple[str, ...]:
    """Return what the weights of a plan's models become on its accelerators, where they do."""
    accelerators = {pool.name: pool.accelerator for pool in problem.pools}
    models = {model.name: model.architecture for model in problem.models}
    used = {
        (group.model, pool)
        for group in plan.groups
        for pool in ([part.pool for part in group.parts] or [group.pool])
    }
    said = (
        accelerators[pool].becomes(dtype)
        for model, pool in sorted(used)
        for dtype in provenance.weight_types(models[model])
    )
    return tuple(dict.fromkeys(sentence for sentence in said if sentence))


def _replaced(calibration: Calibration, fact: Fact) -> bool:
    """Return whether a calibration replaces the catalogue's value."""
    operand = fact.subject.rpartition(" ")[2]
    return fact.name in calibration.values or f"{operand}.{fact.name}" in calibration.values


def _uncalibrated(problem: PlanningProblem, accelerator: Accelerator) -> bool:
    """Return whether a model's times on an accelerator are by the catalogue alone."""
    calibrations = [c for c in problem.calibrations if c.accelerator == accelerator.name]
    return not all(any(applies(c, model) for c in calibrations) for model in problem.models)


def _engines(problem: PlanningProblem) -> list[tuple[str, str]]:
    """Return name and version of every engine of the models, ``*`` for any."""
    return sorted({(m.settings.engine, m.settings.version) for m in problem.models})


def _engine(model: ModelDemand) -> Iterator[Fact]:
    """Yield how the engine of a model runs: as the ServingPlan says, or as it is assumed to."""
    settings, draft = model.settings, model.settings.speculation
    steps = [*settings.prefix_hits, (math.inf, settings.prefix_hit)]
    hits = ", ".join(
        f"{share:g}" + (f" up to {end:g}" if math.isfinite(end) else "") for end, share in steps
    )
    words = (
        f"{draft.drafted} drafted, {draft.acceptance:g} accepted, {draft.draft_cost:g} of a step"
        if draft
        else "none"
    )
    sent = model.wire or CacheLayout.of(model.architecture)
    rows = (
        ("kvDtype", f"{model.architecture.precision.kv:g}", "B per element"),
        ("memoryShare", f"{settings.memory.utilisation:g}", "1"),
        ("chunkTokens", str(settings.chunk), "tokens"),
        ("prefixHitShare", hits, "1"),
        ("speculation", words, "1"),
        ("transferDtype", f"{sent.element_bytes:g}", "B per element"),
        ("twoBatchOverlap", "on" if settings.two_batch_overlap else "off", "1"),
    )
    for name, value, unit in rows:
        stated = name in model.stated
        kind = SourceKind.USER if stated else SourceKind.ASSUMED
        source = "ServingPlan" if stated else "default of models[].engine"
        yield Fact(model.name, name, value, unit, kind, source)


def _user(subject: str, name: str, value: object, unit: str) -> Fact:
    return Fact(subject, name, str(value), unit, SourceKind.USER, "ServingPlan")


def _stated(problem: PlanningProblem) -> Iterator[Fact]:
    """Yield the values of the ServingPlan."""
    for model in problem.models:
        if model.rate is not None:
            yield _user(model.name, "requestsPerSecond", f"{model.rate:g}", "req/s")
        else:
            yield _user(model.name, "weight", f"{model.weight:g}", "1")
        for name, target in (("ttft", model.targets.ttft), ("tpot", model.targets.tpot)):
            if target is not None:
                yield _user(model.name, name, f"{target * 1e3:g}", "ms")
        if model.max_utilisation < 1:
            yield _user(model.name, "maxUtilisation", f"{model.max_utilisation:g}", "1")
        mean = float(model.lengths.probability @ model.lengths.length)
        output = float(model.lengths.probability @ model.lengths.output)
        yield from _engine(model)
        yield _user(model.name, "mean input of the workload", f"{mean:.4g}", "tokens")
        yield _user(model.name, "mean output of the workload", f"{output:.4g}", "tokens")
    for pool in problem.pools:
        yield _user(pool.name, "count", pool.count, "GPUs")
        if pool.max_count is not None:
            yield _user(pool.name, "maxCount", pool.max_count, "GPUs")
        per = "$/h, whole nodes" if pool.billing is Billing.PER_NODE else "$/h"
        yield _user(pool.name, "pricePerGPUHour", pool.price_per_gpu_hour, per)
        if pool.nic_per_gpu is not None:
            speed = pool.nic_per_gpu * (pool.gpus_per_node or 1) / GIGABIT
            yield _user(pool.name, "nicGigabitsPerSecond", f"{speed:g}", "Gbit/s")
    for link in problem.links:
        speed = link.bytes_per_second / GIGABIT
        ends, delay = " and ".join(link.classes), link.latency
        yield _user(ends, "gigabitsPerSecond", f"{speed:g}", "Gbit/s")
        if delay is not None:
            yield _user(ends, "latencyMilliseconds", f"{delay * 1e3:g}", "ms")
    if problem.budget_per_hour is not None:
        yield _user(problem.name, "budgetPerHour", problem.budget_per_hour, "$/h")
    if problem.objective is Objective.COST and problem.min_headroom is not None:
        yield _user(problem.name, "minHeadroom", f"{problem.min_headroom:g}", "1")
