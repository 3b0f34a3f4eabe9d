"""Planner processes of a running operator that die, idle or at the work (B23)."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import eventually
from tests.e2e.operators import Operator, Plans, children, running, seconds_until, small

pytestmark = pytest.mark.cluster

STRIKES = 3


@pytest.fixture
def alone(prepared: Operator) -> Iterator[Operator]:
    """An operator with one planner process."""
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_PLANNERS": "1"}
    with running(prepared) as operator:
        yield operator


def slow() -> dict[str, Any]:
    """A plan that takes long enough to be caught at the work."""
    spec = small()
    spec["models"][0] |= {"name": "deepseek", "architecture": "DeepSeek-V3"}
    spec["models"][0]["workload"]["ranges"] = {"count": 128}
    spec["pools"] = [
        {"name": name, "accelerator": name.upper(), "count": 64, "gpusPerNode": 8}
        for name in ("h200", "h800", "h20")
    ]
    return spec


def kill_at_work(operator: Operator, number: signal.Signals) -> int:
    """Wait until the planner process works on a question, then send it the signal."""
    idle: dict[int, float] = {}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for pid in children(operator):
            # The thread that listens for questions is started when the libraries are loaded.
            if is_warm(pid) and cpu_seconds(pid) > idle.setdefault(pid, cpu_seconds(pid)) + 0.1:
                os.kill(pid, number)
                return pid
        time.sleep(0.02)
    raise AssertionError("no planner process at work")


def is_warm(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def pair(prepared: Operator) -> Iterator[Operator]:
    """An operator with two planner processes, and one more that is kept warm."""
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_PLANNERS": "2"}
    with running(prepared) as operator:
        yield operator


def test_processes_killed_while_idle_cost_no_plan_anything(plans: Plans, pair: Operator) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    for pid in children(pair):
        os.kill(pid, signal.SIGKILL)

    plans.patch("chat", {"budgetPerHour": "8"})

    seconds = seconds_until(lambda: plans.ready("chat") == ("True", "Published", 2), within=10)
    print(f"\nedit to Ready, all planners killed just before: {seconds:.2f} s")  # noqa: T201
    # The one that is kept warm may not have been warm yet.
    assert 2 <= pair.metric("planner_replacements_total") <= 3
    assert {event["reason"] for event in plans.events("chat")} == {"Published"}


def test_a_question_that_kills_its_process_is_tried_three_times_then_rarely(
    plans: Plans, alone: Operator
) -> None:
    """B23: the last good table stays, and other plans go on."""
    plans.apply("chat", small())
    plans.wait_ready("chat")
    good = plans.get("configmap", "chat-routing")
    plans.apply("chat", slow())
    dead = [kill_at_work(alone, signal.SIGSEGV) for _ in range(STRIKES)]

    eventually(lambda: plans.ready("chat") == ("False", "PlannerCrashed", 2))
    assert len(set(dead)) == STRIKES
    assert "SIGSEGV" in plans.conditions("chat")["Planned"]["message"]
    assert plans.conditions("chat")["Published"]["reason"] == "LastGoodKept"
    assert plans.get("configmap", "chat-routing") == good
    plans.apply("other", small())
    plans.wait_ready("other")
    assert alone.metric("planner_replacements_total") == STRIKES
    assert alone.metric("plannings_total") == 1 + STRIKES + 1


def test_a_question_that_kills_its_process_once_gets_its_answer(
    plans: Plans, alone: Operator
) -> None:
    plans.apply("chat", slow())
    kill_at_work(alone, signal.SIGSEGV)

    plans.wait_ready("chat")
    assert {event["reason"] for event in plans.events("chat")} == {"Published"}
