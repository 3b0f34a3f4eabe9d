"""Where the numbers of a plan come from: the user, data sheets, publishers, measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel import provenance
from archipelago.perfmodel.provenance import Fact
from archipelago.planner.problem import Billing, ModelDemand, Objective, PlanningProblem, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.calibration import Calibration

GIGABIT = 1e9 / 8


def facts(problem: PlanningProblem) -> Iterator[Fact]:
    """Every number that the plan stands on, the user's first."""
    yield from _stated(problem)
    for architecture in {m.architecture.name: m.architecture for m in problem.models}.values():
        yield provenance.architecture_fact(architecture)
    accelerators = {pool.accelerator.name: pool.accelerator for pool in problem.pools}
    dtypes = sorted({t for m in problem.models for t in provenance.weight_types(m.architecture)})
    for accelerator in accelerators.values():
        yield from provenance.accelerator_facts(accelerator)
        operands = dict.fromkeys(accelerator.operand(dtype) for dtype in dtypes)
        yield from _reached(problem, accelerator, tuple(operands))
    if any(_uncalibrated(problem, accelerator) for accelerator in accelerators.values()):
        yield from provenance.overhead_facts()


def _reached(
    problem: PlanningProblem, accelerator: Accelerator, operands: tuple[str, ...]
) -> Iterator[Fact]:
    """What engines reach there: by measurements where there are any, else by the catalogue."""
    if _uncalibrated(problem, accelerator):
        for operand in operands:
            yield from provenance.efficiency_facts(accelerator, operand)
    for one in problem.calibrations:
        if one.accelerator == accelerator.name:
            yield from provenance.calibration_facts(one)
            rest = [
                *provenance.overhead_facts(accelerator, one.engine, one.version),
                *(
                    fact
                    for operand in operands
                    for fact in provenance.efficiency_facts(
                        accelerator, operand, one.engine, one.version
                    )
                ),
            ]
            yield from (fact for fact in rest if not _replaced(one, fact))


def _replaced(one: Calibration, fact: Fact) -> bool:
    """Whether the calibration has a value in the place of a catalogue's."""
    operand = fact.subject.rpartition(" ")[2]
    return fact.name in one.values or f"{operand}.{fact.name}" in one.values


def _uncalibrated(problem: PlanningProblem, accelerator: Accelerator) -> bool:
    """Whether a model's times on an accelerator are by the catalogue alone."""
    own = [one for one in problem.calibrations if one.accelerator == accelerator.name]
    models = {model.architecture.name for model in problem.models}
    return not (own and all(any(not c.models or m in c.models for c in own) for m in models))


def _user(subject: str, name: str, value: object, unit: str) -> Fact:
    return Fact(subject, name, str(value), unit, provenance.Kind.USER, "ServingPlan")


def _stated(problem: PlanningProblem) -> Iterator[Fact]:
    """What the ServingPlan says."""
    for model in problem.models:
        yield from _of_model(model)
    for pool in problem.pools:
        yield from _of_pool(pool)
    for link in problem.links:
        speed = f"{link.bytes_per_second / GIGABIT:g}"
        yield _user(" and ".join(link.classes), "gigabitsPerSecond", speed, "Gbit/s")
    if problem.budget_per_hour is not None:
        yield _user(problem.name, "budgetPerHour", problem.budget_per_hour, "$/h")
    if problem.objective is Objective.COST and problem.min_headroom is not None:
        yield _user(problem.name, "minHeadroom", f"{problem.min_headroom:g}", "1")


def _of_model(model: ModelDemand) -> Iterator[Fact]:
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
    yield _user(model.name, "mean input of the workload", f"{mean:.4g}", "tokens")
    yield _user(model.name, "mean output of the workload", f"{output:.4g}", "tokens")


def _of_pool(pool: Pool) -> Iterator[Fact]:
    yield _user(pool.name, "count", pool.count, "GPUs")
    if pool.max_count is not None:
        yield _user(pool.name, "maxCount", pool.max_count, "GPUs")
    per = "$/h"
    if pool.billing is Billing.PER_NODE:
        per = "$/h, whole nodes"
    yield _user(pool.name, "pricePerGPUHour", pool.price_per_gpu_hour, per)
    if pool.nic_per_gpu is not None:
        speed = pool.nic_per_gpu * (pool.gpus_per_node or 1) / GIGABIT
        yield _user(pool.name, "nicGigabitsPerSecond", f"{speed:g}", "Gbit/s")
