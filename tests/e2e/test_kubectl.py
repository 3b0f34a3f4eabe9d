"""By what people see the operator: its metrics page, its log, and the view of a plan at work."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import Cluster, eventually
from tests.e2e.operators import AS_DEPLOYED, Operator, Plans, running, small

pytestmark = pytest.mark.cluster

PROGRAM = "from archipelago.planner.cli import main; main()"
HASH = "0123456789abcdef" * 4
DECISION: dict[str, Any] = {
    "time": "2026-01-01T00:00:00Z",
    "trigger": "Safety",
    "rung": "Flip",
    "headroom": "0.91",
    "message": "2 islands change phase",
    "rungs": [{"rung": "Keep", "theta": "0.91"}, {"rung": "Flip", "theta": "1.09"}],
    "proposal": {"hash": HASH, "rung": "Reshape", "trigger": "Gain", "message": "3 islands start"},
}


def series(page: str, name: str) -> list[str]:
    """Lines of a metrics page about one plan."""
    return [line for line in page.splitlines() if f'plan="{name}"' in line]


def test_the_metrics_page_of_a_real_operator(
    plans: Plans, operator: Operator, promtool: Path, report: Callable[[str, float], None]
) -> None:
    """A45."""
    plans.apply("chat", small())
    plans.wait_ready("chat")
    eventually(lambda: operator.metric("plan_ready") == 1)
    page = operator.get("/metrics")

    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    families = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(families) == len(set(families)) <= 40
    assert all(name.startswith("archipelago_") for name in families)
    assert 4 <= len(series(page, "chat")) <= 15
    assert not re.search(r"https?:|[Bb]earer|token", page)

    plans.kubectl("delete", "splan", "chat")
    started = time.monotonic()
    eventually(lambda: series(operator.get("/metrics"), "chat") == [], within=5)
    report("series gone after deletion", time.monotonic() - started)


def test_a_line_of_the_log_says_what_was_decided_of_which_plan(
    plans: Plans, operator: Operator
) -> None:
    """A49."""
    plans.apply("chat", small())
    plans.wait_ready("chat")
    notes = plans.get("configmap", "chat-routing")["metadata"]["annotations"]

    lines = [line for line in operator.lines() if line.get("plan") == "chat"]
    decided = [line["decision"] for line in lines]
    assert {"StartPlanning", "WriteStatus", "WriteTable"} <= set(decided)
    for line in lines:
        assert line["namespace"] == plans.namespace
        assert line["generation"] == 1
        assert line["inputs_hash"] == notes["archipelago.dev/inputs-hash"]
        assert 0 <= line["duration_s"] < 30
        assert line["reason"]


def test_an_hour_without_a_change_is_three_lines_at_most(
    plans: Plans, prepared: Operator, report: Callable[[str, float], None]
) -> None:
    """A49: an hour has twelve full lists, each of which looks at every plan; here, twenty-four."""
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_RESYNC_SECONDS": "0.25"}
    with running(prepared) as operator:
        for name in ("chat", "code"):
            plans.apply(name, small())
            plans.wait_ready(name)
        resyncs = operator.metric("resyncs_total")
        eventually(lambda: operator.metric("resyncs_total") >= resyncs + 2, within=10)
        before = len(operator.lines())
        resyncs = operator.metric("resyncs_total")
        eventually(lambda: operator.metric("resyncs_total") >= resyncs + 24, within=60)
        said = operator.lines()[before:]
    report("lines in 24 resyncs", len(said))
    assert len(said) <= 3, said


class Watching:
    """``archipelago watch`` as somebody's process."""

    def __init__(self, cluster: Cluster, plans: Plans) -> None:
        self.command = (sys.executable, "-P", "-c", PROGRAM, "watch", "-n", plans.namespace)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "KUBECONFIG": str(cluster.kubeconfig),
            "TERM": "xterm",
            "COLUMNS": "120",
            "LINES": "50",
            **AS_DEPLOYED,
        }

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip

    def begin(self, *arguments: str, out: int) -> subprocess.Popen[bytes]:
        """Start it."""
        return subprocess.Popen([*self.command, *arguments], env=self.environment, stdout=out)


@pytest.fixture
def watching(cluster: Cluster, team: Plans) -> Watching:
    return Watching(cluster, team)


def decide(plans: Plans, **decision: object) -> None:
    """Write a decision into the status, as the operator does."""
    patch = json.dumps({"status": {"lastDecision": {**DECISION, **decision}}})
    plans.kubectl("patch", "splan", "chat", "--subresource=status", "--type=merge", "-p", patch)


def read_until(file: int, word: str, within: float = 15) -> str:
    """What comes out of a terminal or a pipe until the word does."""
    text, end = "", time.monotonic() + within
    while word not in text:
        left = end - time.monotonic()
        assert left > 0, text
        if select.select([file], [], [], left)[0]:
            text += os.read(file, 65536).decode()
    return text


def test_a_plan_is_shown_once(team: Plans, watching: Watching) -> None:
    team.apply("chat", small())
    team.wait_ready("chat")
    decide(team)
    said = watching("chat", "--once")
    assert (said.returncode, said.stderr) == (0, "")
    for word in (
        f"{team.namespace}/chat: generation 1",
        "Published",
        "headroom  [",
        "* Flip",
        HASH,
    ):
        assert word in said.stdout
    assert re.search(r"^h100 +\d+ +\d+ +\d+ +\d+$", said.stdout, re.MULTILINE)
    assert "\x1b" not in said.stdout

    shown = json.loads(watching("chat", "--once", "-o", "json").stdout)
    (pool,) = shown["islands"]
    table = team.table("chat")["content"]["islands"]
    assert pool["gpus"] == sum(island["gpus"] for island in table)
    assert sum(pool[phase] for phase in ("prefill", "decode", "mixed")) == len(table)
    assert shown["replanning"]["rung"] == "Flip"
    assert watching("none", "--once").returncode == 2


def test_on_a_terminal_it_changes_in_place(team: Plans, watching: Watching) -> None:
    team.apply("chat", small())
    team.wait_ready("chat")
    ours, theirs = pty.openpty()
    process = watching.begin("chat", "--every", "0.2", out=theirs)
    try:
        read_until(ours, "nothing was decided yet")
        decide(team)
        changed = read_until(ours, "3 islands start")
        assert "\x1b[1A" in changed  # the cursor goes up: in place, not below
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


def test_into_a_pipe_it_writes_what_changed_and_ends_with_the_plan(
    team: Plans, watching: Watching
) -> None:
    team.apply("chat", small())
    team.wait_ready("chat")
    ours, theirs = os.pipe()
    process = watching.begin("chat", "--every", "0.2", "-o", "json", out=theirs)
    os.close(theirs)
    try:
        first = read_until(ours, "\n")
        time.sleep(1)  # five readings, and nothing new
        decide(team)
        second = read_until(ours, "\n")
        team.kubectl("delete", "splan", "chat")
        last = read_until(ours, "it is gone")
        assert process.wait(10) == 1
    finally:
        process.kill()
        os.close(ours)
    told = [json.loads(line) for line in (first + second + last).splitlines()]
    assert [line["replanning"] and line["replanning"]["rung"] for line in told] == [
        None, "Flip", "Flip"
    ]  # fmt: skip
    assert [line.get("note") for line in told] == [None, None, "it is gone"]
