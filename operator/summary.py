"""What the status says of a plan: integers and decimal strings. In planner processes only."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from archipelago.planner.problem import Objective

if TYPE_CHECKING:
    from archipelago.planner.plan import Plan
    from archipelago.planner.spec import ServingPlanSpec


def summary(spec: ServingPlanSpec, plan: Plan, ttft: float | None) -> dict[str, Any]:
    """What the status says of a plan: integers and decimal strings. ``ttft`` [s]."""
    per_theta = plan.throughput / plan.theta if plan.theta else 1.0
    headroom = plan.objective is not Objective.THROUGHPUT
    bound = plan.certificate.bound * (1.0 if headroom else per_theta)
    rented = sum(gpus for _, gpus in plan.rented)
    steps = [group.step_time for group in plan.groups if group.step_time > 0]
    return {
        "strategy": plan.strategy,
        "objective": str(plan.objective),
        "throughput": decimal(plan.throughput),
        **({"headroom": decimal(plan.theta)} if headroom else {}),
        "bound": decimal(bound),
        "gap": f"{gap(plan):.6f}",
        "costPerHour": f"{plan.cost_per_hour:f}",
        "islands": len(plan.islands),
        "gpus": sum(group.gpus * group.islands for group in plan.groups),
        **({"rentedGpus": rented} if rented else {}),
        "slo": "Met" if any(_has_target(model) for model in spec.models) else "None",
        **({} if ttft is None else {"ttftMilliseconds": round(1000 * ttft)}),
        **({"tpotMilliseconds": round(1000 * max(steps))} if steps else {}),
    }


def decimal(value: float) -> str:
    """Six significant digits without an exponent: ``12.5``, ``0.000734``."""
    return f"{Decimal(f'{value:.6g}').normalize():f}"


def gap(plan: Plan) -> float:
    """The proven gap, rounded up to a millionth: what is printed is never too good."""
    return max(0, math.ceil(plan.certificate.gap * 1e6)) / 1e6


def _has_target(model: Any) -> bool:  # noqa: ANN401  # a model of the spec
    return model.slo is not None and any(model.slo.model_dump().values())


def described(plan: Plan) -> str:
    """One sentence about a plan for people."""
    unit = "req/s" if plan.objective.value == "throughput" else "times the stated rates"
    least = plan.objective.value == "cost"
    price = f" for ${plan.cost_per_hour}/h" if least else ""
    best = "above the least possible cost" if least else "below the best possible"
    proof = plan.certificate
    limit = "" if proof.complete else f" (stopped early: {proof.reason})"
    return (
        f"{len(plan.islands)} islands sustain {decimal(plan.theta)} {unit}{price}, "
        f"at most {100 * gap(plan):.4f} % {best}{limit}"
    )
