"""B27 in part: a plan at the largest numbers that the schema takes is answered in time."""

import json
import time
from typing import Any

import pytest

from tests.e2e.operators import small
from tests.faults.bench import Bench
from tests.faults.history import PLAN, History

pytestmark = pytest.mark.cluster

SECONDS = 10.0
KUBECTL = 256 * 1024  # bytes of an annotation: what a client-side apply can take
MODELS, POOLS, RANGES = 16, 64, 256
BINS, DOMAINS = 512, 512  # in all of them together


def largest() -> dict[str, Any]:
    """Every list as long as it may be, and so is every name."""
    spec = small(planner={"timeLimitSeconds": 3})
    workload = {"histogram": {"bins": bins()}, "ranges": {"count": RANGES}}
    spec["models"] = [
        {**spec["models"][0], "name": long("m", number), "workload": workload,
         "requestsPerSecond": "1.000001"}
        for number in range(MODELS)
    ]  # fmt: skip
    domains = [{"name": long("d", number), "nodes": 1} for number in range(DOMAINS // POOLS)]
    spec["pools"] = [
        {"name": long("p", number), "accelerator": "H100", "count": 8 * len(domains),
         "gpusPerNode": 8, "pricePerGPUHour": "123456789.123456", "domains": domains}
        for number in range(POOLS)
    ]  # fmt: skip
    return spec


def bins() -> list[dict[str, Any]]:
    step = 400
    return [
        {"min": step * number, "max": step * (number + 1), "weight": 1_000_000_000,
         "inputMean": f"{step * number + step // 2}.123456", "outputMean": "250.123456",
         "outputMeanSquare": "100000.123456"}
        for number in range(BINS // MODELS)
    ]  # fmt: skip


def long(prefix: str, number: int) -> str:
    return f"{prefix}{number:03d}-".ljust(63, "x")


def test_the_largest_plan_is_answered_and_another_is_not_held_up(bench: Bench) -> None:
    size = len(json.dumps(largest(), separators=(",", ":")))
    started = time.monotonic()
    bench.user.create("largest", largest())
    bench.user.create("beside", small())
    beside = bench.rest("beside", 1, within=SECONDS) - started

    def answered(history: History) -> float:
        plan = history.last(PLAN, "largest")
        return plan.at if plan and plan.ready[0] in ("True", "False") else 0.0

    seconds = bench.history.wait(answered, 2 * SECONDS) - started
    plan = bench.history.last(PLAN, "largest")
    assert plan is not None
    reason = plan.ready[1]
    print(f"\n{size} bytes: {reason} after {seconds:.1f} s, another after {beside:.1f} s")  # noqa: T201
    assert seconds <= SECONDS
    assert reason in ("Published", "Infeasible", "PlannerTimeout", "SolverFailed")
    assert size < KUBECTL
