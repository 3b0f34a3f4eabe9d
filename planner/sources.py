"""Where the numbers of a plan come from: the user, data sheets, publishers, measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.perfmodel import provenance
from archipelago.perfmodel.provenance import Fact
from archipelago.planner.problem import Billing, ModelDemand, Objective, PlanningProblem, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        for dtype in dict.fromkeys(accelerator.operand(dtype) for dtype in dtypes):
            yield from provenance.efficiency_facts(accelerator, dtype)
    yield from provenance.overhead_facts()


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
