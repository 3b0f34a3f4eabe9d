"""Writes that fail, plans at their largest numbers, and the program of README.md."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench
from tests.support.faults.history import PLAN, History
from tests.support.faults.invariants import Allowance
from tests.support.faults.rules import Rule, lose, writes_of
from tests.support.faults.scenarios import SPOILT

pytestmark = pytest.mark.cluster

CHANGE = 4
WRITES = (
    2 * CHANGE
)  # of one life: early status, table, final status, event; and the same for the edit
BAR = 10.0
RETRIES = 3  # said that it was refused, promised once more, tried once more


SCALED = frozenset({"dropped", "lost", "409", "422", "429", "503"})


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how in SCALED else pytest.mark.full) for how in SPOILT]
)
def test_any_one_write_may_be_spoilt(bench: Bench, how: str) -> None:
    """A plan for each write, all at once; the clock starts when the spoilt request is over."""
    names = [f"write-{how}-{number}" for number in range(1, WRITES + 1)]
    rules = [Rule(writes_of(name), SPOILT[how][1], skip=skip) for skip, name in enumerate(names)]
    with bench.proxy.rule(*rules):
        for name in names:
            bench.user.create(name, small())
        slowest = settle(bench, 1, dict(zip(names, rules[:CHANGE], strict=False)), names)
        for name in names:
            bench.user.edit(name, {"budgetPerHour": "8"})
        edited = dict(zip(names[CHANGE:], rules[CHANGE:], strict=True))
        slowest = max(slowest, settle(bench, 2, edited, names))

    print(f"\n{how}: at most {slowest:.1f} s from the spoilt write to rest")  # noqa: T201
    assert slowest <= BAR
    bench.quiet(1.0)
    bench.judge(*names, allowance=Allowance(retries=RETRIES))


def settle(bench: Bench, generation: int, spoilt: dict[str, Rule], names: list[str]) -> float:
    """Wait for rest; returns how long the slowest took [s] after its write was spoilt."""
    rests = {name: bench.rest(name, generation) for name in names}
    for name, rule in spoilt.items():
        assert rule.over.wait(BAR), f"{name}: there was no such write"
    time.sleep(0.5)  # events of this change are told before the next one
    return max(rests[name] - rule.ended for name, rule in spoilt.items())


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


def test_the_block_of_the_page_is_a_test_that_passes(bench: Bench) -> None:
    page = (Path(__file__).parent / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        "Allowance": Allowance, "Bench": Bench, "Rule": Rule, "lose": lose, "small": small,
        "writes_of": writes_of,
    }  # fmt: skip
    exec(block, names)  # noqa: S102  # ours
    (test,) = re.findall(r"^def (\w+)", block, re.MULTILINE)
    names[test](bench)
