"""The operator as a guest of the cluster: its rights, its surroundings, its clock, its end."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from archipelago.operator.resources.names import table_name
from tests.e2e.test_metrics_tls import ROLES as METRICS_ROLES
from tests.e2e.test_metrics_tls import scraped
from tests.operator.test_endpoints import certify
from tests.support.controlplane import Cluster, ControlPlane, eventually
from tests.support.e2e.operators import (
    COMMAND,
    DEPLOY,
    USER,
    Operator,
    Plans,
    begin_a_life,
    children,
    running,
    seconds_until,
    slow,
    small,
)

pytestmark = pytest.mark.cluster

# Asked for and not granted, with the reason.
FREE = {
    (
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "create",
    ): "every user may ask what it may do"
}
# Which resources exist, every authenticated user may ask as well.
DISCOVERY = re.compile(r"^/(api|apis|version)(/|$)")
UID = "12345"


@pytest.fixture
def everywhere(prepared: Operator, cluster: Cluster, tmp_path: Path) -> Iterator[Operator]:
    """The operator as it is deployed with everything: for the whole cluster, metrics over TLS."""
    certify(tmp_path, "metrics.test")
    cluster.kubectl("apply", "--server-side", "-f", METRICS_ROLES)
    prepared.settings = {
        "ARCHIPELAGO_METRICS_CERTIFICATE": str(tmp_path),
        "ARCHIPELAGO_METRICS_PORT": "0",
        "ARCHIPELAGO_RESYNC_SECONDS": "1",
        "ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024",  # tables in shards, which are removed as well
        "ARCHIPELAGO_SHARD_GRACE_SECONDS": "0.5",
    }
    with running(prepared) as operator:
        yield operator
    cluster.kubectl("delete", "-f", METRICS_ROLES)


def granted() -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every role that is bound to the operator."""
    documents = [
        document
        for file in (DEPLOY / "rbac.yaml", METRICS_ROLES)
        for document in yaml.safe_load_all(file.read_text())
    ]
    bound = {item["roleRef"]["name"] for item in documents if "roleRef" in item}
    roles = [item for item in documents if "rules" in item and item["metadata"]["name"] in bound]
    assert len(roles) == len(bound) == 4
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_is_granted_is_used_and_nothing_else_is_asked_for(
    controlplane: ControlPlane, plans: Plans, everywhere: Operator, tmp_path: Path
) -> None:
    """B31: every path that needs a right is walked, then the audit log is compared."""
    begin_a_life(plans)
    token = plans.kubectl("create", "token", "default").strip()
    assert scraped(everywhere, tmp_path, token)[0] == 403

    def resyncs() -> int:
        lists = [event for event in controlplane.audit_events(USER) if event.verb == "list"]
        return sum(event.resource == "servingplans" for event in lists)

    eventually(lambda: "RemoveShards" in [line["message"] for line in everywhere.lines()])
    plans.kubectl("delete", "splan", "chat", "taken")
    before = resyncs()
    eventually(lambda: resyncs() >= before + 2)

    def used() -> set[tuple[str, str, str]]:
        return {
            (event.group, "/".join(filter(None, (event.resource, event.subresource))), event.verb)
            for event in controlplane.audit_events(USER)
            if event.resource
        }

    assert not any("*" in part for grant in granted() for part in grant)
    eventually(lambda: used() - FREE.keys() == granted())
    assert used() >= FREE.keys()
    paths = {event.uri for event in controlplane.audit_events(USER) if not event.resource}
    assert all(DISCOVERY.match(path) for path in paths), paths
    # Other tests' namespaces are being deleted, and then nothing new may be made in them.
    here = ("", plans.namespace)
    events = [event for event in controlplane.audit_events(USER) if event.namespace in here]
    assert [event for event in events if event.code in (401, 403)] == []


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_an_unknown_user_without_a_place_to_write_is_enough(
    plans: Plans, prepared: Operator
) -> None:
    """B35 and K14: no passwd entry, no HOME, working and temporary folders that take no file."""
    other_user = ("unshare", "--user", f"--map-user={UID}", f"--map-group={UID}")
    if subprocess.run([*other_user, "true"], check=False).returncode:
        pytest.skip("user namespaces are not allowed here")
    prepared.command = (*other_user, *COMMAND)
    prepared.directory = Path("/proc")
    prepared.settings = {**prepared.settings, "HOME": "/proc/nowhere", "TMPDIR": "/proc/nowhere"}

    with running(prepared) as operator:
        plans.apply("chat", small())
        plans.wait_ready("chat")

        assert operator.process is not None
        owner = Path(f"/proc/{operator.process.pid}/cwd").resolve()
        assert owner == Path("/proc")


@pytest.mark.parametrize(
    "text",
    ['a\r\n{"level":"INFO"}', "\x1b[31mred\x1b[0m", "../../etc/passwd", "naïve\u2028\u202e"],
    ids=["line", "colour", "path", "unicode"],
)
def test_text_that_could_forge_a_log_line_does_not_get_in(plans: Plans, text: str) -> None:
    """B41: every free text of the spec is refused by the API server already."""
    for change in (
        {"routing": {"affinityKey": text}},
        {"models": [small()["models"][0] | {"name": text}]},
        {"models": [small()["models"][0] | {"architecture": text}]},
        {"pools": [small()["pools"][0] | {"name": text}]},
        {"pools": [small()["pools"][0] | {"accelerator": text}]},
    ):
        with pytest.raises(Exception, match=r"Invalid|invalid|should match"):
            plans.apply("forged", small() | change)


def test_log_lines_are_json_and_names_build_no_path(
    plans: Plans, operator: Operator, tmp_path: Path
) -> None:
    """B41: a name as long and as odd as the API server takes it; foreign text beside it."""
    name = "x" * 190 + ".etc.passwd"
    before = set(tmp_path.rglob("*"))
    foreign = plans.kubectl(
        "create", "configmap", table_name(name), "--from-literal=table.json=\x1b[31m\r\nforged"
    )
    assert foreign
    odd = small()
    odd["pools"][0]["accelerator"] = "no-such-thing"
    plans.apply(name, small())
    plans.apply("odd", odd)
    eventually(lambda: plans.ready(name)[1] == "NameConflict")
    eventually(lambda: plans.ready("odd")[1] == "UnknownAccelerator")

    lines = operator.log.read_text().splitlines()
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert operator.lines()[-1]["namespace"] == plans.namespace
    assert not any("forged" in line for line in lines)
    assert set(tmp_path.rglob("*")) == before


def test_sigterm_ends_it_in_order_and_its_planners_with_it(
    plans: Plans, prepared: Operator
) -> None:
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_PLANNERS": "2"}
    prepared.start()
    plans.apply("chat", small())
    plans.wait_ready("chat")
    planners = children(prepared)
    assert len(planners) >= 2

    started = time.monotonic()
    assert prepared.end(signal.SIGTERM) == 0

    assert time.monotonic() - started < 10
    assert not any(Path(f"/proc/{planner}").exists() for planner in planners)
    assert [line["level"] for line in prepared.lines() if line["level"] == "ERROR"] == []


def test_planners_end_with_an_operator_that_was_killed(prepared: Operator) -> None:
    prepared.start()
    eventually(lambda: children(prepared))
    planners = children(prepared)

    prepared.end(signal.SIGKILL)

    eventually(lambda: not any(Path(f"/proc/{planner}").exists() for planner in planners))


def test_a_wrong_setting_ends_it_with_a_sentence(prepared: Operator) -> None:
    wrong = replace(prepared, settings={"ARCHIPELAGO_PLANNERS": "many"})
    wrong.begin()
    assert wrong.process is not None

    assert wrong.process.wait(30) == 2
    assert wrong.log.read_text() == "ARCHIPELAGO_PLANNERS='many': use 1..64\n"


def test_without_credentials_it_ends_with_a_sentence(prepared: Operator, tmp_path: Path) -> None:
    """No KUBECONFIG and no pod; a KUBECONFIG that is missing, a folder, no YAML, or no config."""
    nonsense, stranger = tmp_path / "nonsense", tmp_path / "stranger"
    nonsense.write_text("clusters: [unclosed\n  - {\n")
    stranger.write_text("- a list\n")
    for name in ("", tmp_path / "missing", tmp_path, nonsense, stranger):
        log = tmp_path / "alone.log"
        log.write_text("")
        lost = replace(prepared, settings={"KUBECONFIG": str(name)}, log=log)
        lost.begin()
        assert lost.process is not None

        assert lost.process.wait(30) == 2, name
        (line,) = log.read_text().splitlines()
        assert "KUBECONFIG" in line
        assert str(name) in line


def test_a_taken_port_ends_it_with_a_sentence(prepared: Operator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {**prepared.settings, "ARCHIPELAGO_HTTP_PORT": str(port)}
        second = replace(prepared, settings=settings)
        second.begin()
        assert second.process is not None

        assert second.process.wait(30) == 2
    assert f"ARCHIPELAGO_HTTP_PORT={port}" in second.log.read_text().splitlines()[-1]


STRIKES = 3


@pytest.fixture
def alone(prepared: Operator) -> Iterator[Operator]:
    """An operator with one planner process."""
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_PLANNERS": "1"}
    with running(prepared) as operator:
        yield operator


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
    eventually(lambda: sum(map(is_warm, children(pair))) >= 2, within=30)
    for pid in children(pair):
        os.kill(pid, signal.SIGKILL)

    plans.patch("chat", {"budgetPerHour": "8"})

    seconds = seconds_until(lambda: plans.ready("chat") == ("True", "Published", 2), within=10)
    print(f"\nedit to Ready, all planners killed just before: {seconds:.2f} s")  # noqa: T201
    # The one that is kept warm may not have been warm yet.
    assert 2 <= pair.metric("planner_replacements_total") <= 3
    eventually(lambda: {event["reason"] for event in plans.events("chat")} == {"Published"})


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
    eventually(lambda: {event["reason"] for event in plans.events("chat")} == {"Published"})


HOUR = 3600
SHIM = Path(__file__).parent / "clockshift.c"


class Clock:
    """The wall clock of the processes that ``settings`` are given to."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: the wall clock of a process is shifted by a library")
        library = folder / "clockshift.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SHIM], check=True)
        self._file = folder / "shift"
        self.settings = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Ahead by so much from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def shifted(prepared: Operator, clock: Clock) -> Operator:
    """An operator, not started, that looks at every plan anew five times a second."""
    prepared.settings = {
        **prepared.settings, **clock.settings, "ARCHIPELAGO_RESYNC_SECONDS": "0.2"
    }  # fmt: skip
    return prepared


def traces(plans: Plans, operator: Operator) -> dict[str, object]:
    """Everything by which a re-plan, a write or a flap would show."""
    plan = plans.plan("chat")
    return {
        "version": plan["metadata"]["resourceVersion"],
        "since": [item["lastTransitionTime"] for item in plan["status"]["conditions"]],
        "table": plans.get("configmap", "chat-routing")["metadata"]["resourceVersion"],
        "events": len(plans.events("chat")),
        "writes": operator.metric("writes_total"),
        "plannings": operator.metric("plannings_total"),
    }


def looked_again(operator: Operator, times: int) -> None:
    """Wait until every plan was looked at so often."""
    before = operator.metric("resyncs_total")
    eventually(lambda: operator.metric("resyncs_total") >= before + times, within=30)


def test_a_step_of_the_wall_clock_is_reported_and_changes_nothing(
    shifted: Operator, clock: Clock, plans: Plans
) -> None:
    with running(shifted) as operator:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        looked_again(operator, 2)
        before = traces(plans, operator)

        for step, direction in ((HOUR, "forward"), (-HOUR, "back")):
            clock.set(step)
            status, said = operator.answer("/healthz")
            assert status == 503
            assert said.startswith(f"the wall clock went {direction} by 36")
            assert said == f"{said.strip()}\n"
            assert abs(operator.metric("clock_skew_seconds") - step) < 1
            looked_again(operator, 5)
            assert traces(plans, operator) == before

        clock.set(240)
        assert operator.answer("/healthz") == (200, "ok\n")
        clock.set(-HOUR)
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=15)
        looked_again(operator, 3)
        settled = traces(plans, operator)
        looked_again(operator, 3)
        assert traces(plans, operator) == settled
        assert operator.is_running()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_an_operator_whose_wall_clock_is_an_hour_wrong_writes_nothing_anew(
    request: pytest.FixtureRequest, step: int, shifted: Operator, clock: Clock, plans: Plans
) -> None:
    """Started anew with the wrong clock, which it cannot know: a served plan stays as it is."""
    if step < 0 and request.config.getoption("kind"):
        pytest.skip("kind's certificates are new: an hour ago they are not valid yet")
    with running(shifted) as operator:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        looked_again(operator, 2)
        before = traces(plans, operator)
    clock.set(step)
    with running(shifted) as operator:
        looked_again(operator, 5)
        after = traces(plans, operator)
        assert operator.answer("/healthz") == (200, "ok\n")
    # It counts its writes from 0; one planning of the inputs that it knows nothing of is allowed.
    counted = {"writes": 0.0, "plannings": after["plannings"]}
    assert after == before | counted
    assert after["plannings"] in (0.0, 1.0)
