"""Strategy bayesian-divider in a cluster: a search with its progress, its end and its absence.

With the real packages, on a real API server: the extra `bayes` must be installed, as it is in CI.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from archipelago.planner.problem import PACKAGES, missing_packages
from tests.support.controlplane import eventually
from tests.support.controlplane.waiting import Stopwatch
from tests.support.e2e.operators import (
    AS_DEPLOYED,
    Operator,
    Plans,
    children,
    running,
    seconds_until,
    small,
)

STRATEGY = "bayesian-divider"
LIMIT = 60
ABSENT = missing_packages(STRATEGY)
pytestmark = [pytest.mark.cluster, pytest.mark.slow]
needs_extra = pytest.mark.skipif(
    bool(ABSENT), reason=f"needs the extra bayes: {', '.join(ABSENT)} not installed"
)


def searched(limit: int = LIMIT, **spec: object) -> dict[str, object]:
    """A plan with a search of more layouts than the time suffices for."""
    pools = [{"name": n, "accelerator": n.upper(), "count": 16} for n in ("h200", "h20", "a100")]
    planner = {"strategy": STRATEGY, "timeLimitSeconds": limit}
    return small(pools=pools, planner=planner, **spec)


def searchers(operator: Operator) -> set[int]:
    """Processes that search."""
    return {
        pid
        for pid in children(operator)
        if b"searches" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    }


def resident_mib(pid: int) -> float:
    """Largest resident memory of a process so far [MiB]."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


@pytest.fixture
def without_torch(prepared: Operator, tmp_path: Path) -> Iterator[Operator]:
    """An operator from the default image: its interpreter finds none of the packages."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    names = PACKAGES[STRATEGY]
    (hidden / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({names!r}))\n"
    )
    path = os.pathsep.join((str(hidden), AS_DEPLOYED["PYTHONPATH"]))
    settings = {**prepared.settings, "PYTHONPATH": path}
    with running(replace(prepared, settings=settings)) as operator:
        yield operator


def test_without_its_packages_a_strategy_is_unavailable(
    plans: Plans, without_torch: Operator
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    plans.patch("chat", {"planner": {"strategy": STRATEGY}})
    eventually(lambda: plans.ready("chat") == ("False", "StrategyUnavailable", 2))

    message = plans.conditions("chat")["Ready"]["message"]
    assert "image.variant=bayes" in message
    assert "pip" not in message
    assert plans.conditions("chat")["Published"]["reason"] == "LastGoodKept"
    assert searchers(without_torch) == set()
    (line,) = [line for line in without_torch.lines() if line["message"] == "strategies"]
    assert line["strategies"] == "exact"
    assert without_torch.metric(f'strategy_available{{strategy="{STRATEGY}"}}') == 0
    assert without_torch.metric("strategy_available") == 1
    plans.patch("chat", {"planner": {"strategy": "exact"}})
    plans.wait_ready("chat")


@needs_extra
def test_a_search_is_ready_at_its_deadline_and_its_progress_is_seen(
    plans: Plans, operator: Operator, report: Callable[[str, float], None]
) -> None:

    assert searchers(operator) == set()  # torch is loaded by nobody who does not need it
    watch = Stopwatch()
    plans.apply("chat", searched())
    report("first progress in the status", seconds_until(lambda: found(plans), LIMIT))
    first = found(plans)
    assert 0 < first["trials"] <= first["of"]
    eventually(lambda: operator.metric("plan_search_trials") >= first["trials"])
    assert operator.metric("plan_search_best") <= operator.metric("plan_search_bound")
    (pid,) = searchers(operator)
    plans.apply("other", small())  # a plan that is no search waits for none
    plans.wait_ready("other", within=10)
    report("resident memory of the search [MiB]", resident_mib(pid))

    plans.wait_ready("chat", within=LIMIT)

    report("edit to Ready", watch.passed())
    status = plans.plan("chat")["status"]
    assert "search" not in status
    assert float(status["lastPlan"]["planSeconds"]) <= LIMIT
    summary = status["summary"]
    assert summary["strategy"] == STRATEGY
    # the order of its routes may cost a plan a twentieth of the allowed gap of 1e-3
    assert float(summary["throughput"]) >= float(first.get("best", 0)) * (1 - 6e-5)
    assert float(summary["throughput"]) <= float(summary["bound"])
    eventually(lambda: "plan_search_trials{" not in operator.get("/metrics"))
    writes = operator.metric("writes_total")
    eventually(lambda: watch.passed() > 0 and operator.metric("queue_depth") == 0)
    assert operator.metric("writes_total") == writes


@needs_extra
def test_a_killed_search_is_begun_again(plans: Plans, operator: Operator) -> None:
    plans.apply("chat", searched(limit=30))
    eventually(lambda: found(plans), within=90)
    (pid,) = searchers(operator)
    os.kill(pid, signal.SIGKILL)

    plans.wait_ready("chat", within=120)

    assert pid not in searchers(operator)
    assert operator.metric('planner_replacements_total{reason="PlannerOOM"}') == 1
    assert plans.plan("chat")["status"]["lastPlan"]["outcome"] == "Planned"


@needs_extra
def test_an_operator_killed_during_a_search_begins_it_again(
    plans: Plans, prepared: Operator
) -> None:
    prepared.start()
    plans.apply("chat", searched(limit=30))
    eventually(lambda: found(plans), within=90)
    prepared.end(signal.SIGKILL)
    with running(prepared):
        plans.wait_ready("chat", within=120)
        assert "search" not in plans.plan("chat")["status"]


def found(plans: Plans) -> dict[str, int]:
    """What the status says of the search."""
    search: dict[str, int] = plans.plan("chat").get("status", {}).get("search", {})
    return search
