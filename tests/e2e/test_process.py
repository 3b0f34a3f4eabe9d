"""The operator as a guest of the cluster: its rights, its surroundings, its end."""

import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from archipelago.operator.manifests import table_name
from tests.controlplane import ControlPlane, eventually
from tests.e2e.operators import (
    COMMAND,
    DEPLOY,
    USER,
    Operator,
    Plans,
    begin_a_life,
    children,
    running,
    small,
)

pytestmark = pytest.mark.cluster

# Granted, and not to be seen in the audit log as such.
UNSEEN = {
    # An apply is a patch; where it makes the object the server checks create as well.
    ("", "configmaps", "create"),
}
# What every authenticated user may do: ask what it may do itself,
REVIEW = ("authorization.k8s.io", "selfsubjectaccessreviews", "create")
# and which resources exist.
DISCOVERY = re.compile(r"^/(api|apis|version)(/|$)")
UID = "12345"


@pytest.fixture
def everywhere(prepared: Operator) -> Iterator[Operator]:
    """The operator as it is deployed: for the whole cluster."""
    prepared.settings = {
        "ARCHIPELAGO_RESYNC_SECONDS": "1",
        "ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024",  # tables in shards, which are removed as well
        "ARCHIPELAGO_SHARD_GRACE_SECONDS": "0.5",
    }
    with running(prepared) as operator:
        yield operator


def granted() -> set[tuple[str, str, str]]:
    """(group, resource, verb) of the deployed roles."""
    documents = yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text())
    roles = [document for document in documents if document["kind"] == "ClusterRole"]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_is_granted_is_used_and_nothing_else_is_asked_for(
    controlplane: ControlPlane, plans: Plans, everywhere: Operator
) -> None:
    """B31: every path that needs a right is walked, then the audit log is compared."""
    begin_a_life(plans)
    eventually(lambda: "RemoveShards" in [line["message"] for line in everywhere.lines()])
    plans.kubectl("delete", "splan", "chat", "taken")
    eventually(lambda: everywhere.metric("resyncs_total") >= 2)

    def used() -> set[tuple[str, str, str]]:
        return {
            (event.group, "/".join(filter(None, (event.resource, event.subresource))), event.verb)
            for event in controlplane.audit_events(USER)
            if event.resource
        } - {REVIEW}

    assert not any("*" in part for grant in granted() for part in grant)
    eventually(lambda: used() == granted() - UNSEEN)
    assert granted() >= UNSEEN
    paths = {event.uri for event in controlplane.audit_events(USER) if not event.resource}
    assert all(DISCOVERY.match(path) for path in paths), paths
    # Other tests' namespaces are being deleted, and then nothing new may be made in them.
    here = ("", plans.namespace)
    events = [event for event in controlplane.audit_events(USER) if event.namespace in here]
    assert [event for event in events if event.code in (401, 403)] == []


def test_without_create_the_table_is_refused_and_the_status_says_so(
    plans: Plans, prepared: Operator
) -> None:
    """Why create is granted: an apply that makes an object needs it."""
    name, account = "without-create", f"--serviceaccount={plans.namespace}:default"
    plans.kubectl("create", "role", name, "--verb=get,list,watch,patch", "--resource=configmaps")
    plans.kubectl("create", "rolebinding", name, f"--role={name}", account)
    for resource, verbs in (
        ("servingplans.archipelago.dev", "list,watch"),
        ("servingplans.archipelago.dev/status", "patch"),
        ("events.events.k8s.io", "create"),
    ):
        role = resource.replace("/", "-")
        plans.kubectl("create", "role", role, f"--verb={verbs}", f"--resource={resource}")
        plans.kubectl("create", "rolebinding", role, f"--role={role}", account)
    prepared.kubeconfig = plans.cluster.service_account_kubeconfig(plans.namespace, "default")

    prepared.begin()  # it is never ready: /readyz names the right that is missing
    try:
        plans.apply("chat", small())
        eventually(lambda: plans.ready("chat")[:2] == ("False", "WriteRefused"), within=30)
    finally:
        prepared.end()

    message = plans.conditions("chat")["Published"]["message"]
    assert "configmaps" in message
    assert "{" not in message  # the server's sentence, not its whole answer


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
    planners = children(prepared)

    prepared.end(signal.SIGKILL)

    eventually(lambda: not any(Path(f"/proc/{planner}").exists() for planner in planners))


def test_a_wrong_setting_ends_it_with_a_sentence(prepared: Operator) -> None:
    wrong = replace(prepared, settings={"ARCHIPELAGO_PLANNERS": "many"})
    wrong.begin()
    assert wrong.process is not None

    assert wrong.process.wait(30) == 2
    assert wrong.log.read_text() == "ARCHIPELAGO_PLANNERS='many': use 1..64\n"


def test_it_outlives_the_api_server_and_catches_up(
    controlplane: ControlPlane, plans: Plans, operator: Operator
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    controlplane.stop_apiserver()
    time.sleep(3)
    assert operator.is_running()
    assert operator.metric("stream_failures_total") > 0
    controlplane.start_apiserver()

    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=20)
    assert operator.is_ready()


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
    (line,) = second.log.read_text().splitlines()
    assert f"ARCHIPELAGO_HTTP_PORT={port}" in line
