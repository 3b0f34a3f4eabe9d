"""The test control plane keeps what it promises to the tests that stand on it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane import Cluster, ControlPlane, ControlPlaneError, eventually
from tests.support.controlplane.kind import CONFIG, kind_cluster

pytestmark = pytest.mark.cluster

# Tests that start one themselves. The session's is not theirs, but where there is none (on kind),
# its fixture skips them.
starts_its_own = pytest.mark.usefixtures("controlplane")

ROOT = Path(__file__).parents[2]

OWNER = """
import json, os, time
from tests.support.controlplane import ControlPlane
plane = ControlPlane.start()
fork = os.fork()  # like a worker process, it keeps what the owner has open
if fork:
    print(json.dumps([str(plane.directory), fork]), flush=True)
time.sleep(60)
"""

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.archipelago.dev}
spec:
  group: test.archipelago.dev
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object}}
"""

KIND = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in get) echo "{existing}";; esac
for word; do
  case "$1 $word" in create*--kubeconfig=*|export*--kubeconfig=*)
    cp "{kubeconfig}" "${{word#*=}}";;
  esac
done
"""


def test_a_namespace_and_its_contents_are_deleted(cluster: Cluster) -> None:
    with cluster.namespace() as name:
        cluster.kubectl("create", "configmap", "content", f"-n={name}")
    cluster.kubectl("wait", "--for=delete", f"namespace/{name}", "--timeout=30s")
    assert "NotFound" in cluster.kubectl("get", "ns", name, check=False).stderr


@starts_its_own
def test_garbage_collection_knows_a_custom_kind_that_came_with_the_start(tmp_path: Path) -> None:
    """It would learn of a kind that came later up to 30 s later."""
    crd = tmp_path / "widgets.yaml"
    crd.write_text(WIDGETS)
    with ControlPlane.start(manifests=[crd]) as plane:
        widget = {
            "apiVersion": "test.archipelago.dev/v1",
            "kind": "Widget",
            "metadata": {"name": "owner"},
        }
        plane.kubectl("create", "-f-", input=json.dumps(widget))
        create_owned(plane, "default", get(plane, "default", "widget/owner"))

        plane.kubectl("delete", "widget", "owner", "--cascade=background")

        plane.kubectl("wait", "--for=delete", "configmap/owned", "--timeout=10s")


def test_the_audit_log_has_user_and_verb(controlplane: ControlPlane, namespace: str) -> None:
    controlplane.kubectl("create", "serviceaccount", "curious", f"-n={namespace}")
    curious = controlplane.service_account_kubeconfig(namespace, "curious")
    controlplane.kubectl("get", "secrets", kubeconfig=curious, check=False)

    user = f"system:serviceaccount:{namespace}:curious"
    eventually(lambda: any(e.resource == "secrets" for e in controlplane.audit_events(user)))
    (event,) = (e for e in controlplane.audit_events(user) if e.resource == "secrets")
    assert (event.verb, event.group, event.namespace, event.code) == ("list", "", namespace, 403)


def test_an_outage_refuses_connections_and_loses_nothing(
    controlplane: ControlPlane, namespace: str
) -> None:
    controlplane.kubectl("create", "serviceaccount", "survivor", f"-n={namespace}")
    token = controlplane.service_account_kubeconfig(namespace, "survivor")
    controlplane.kubectl("create", "configmap", "owner", f"-n={namespace}")
    create_owned(controlplane, namespace, get(controlplane, namespace, "configmap/owner"))

    with controlplane.apiserver_stopped():
        refused = controlplane.kubectl("get", "namespaces", check=False)
        assert "refused" in refused.stderr

    whoami = controlplane.kubectl("auth", "whoami", kubeconfig=token)
    assert f"system:serviceaccount:{namespace}:survivor" in whoami.stdout
    controlplane.kubectl("delete", "configmap", "owner", f"-n={namespace}")
    controlplane.kubectl(
        "wait", "--for=delete", "configmap/owned", f"-n={namespace}", "--timeout=60s"
    )


def test_a_paused_api_server_answers_nothing_until_it_goes_on(controlplane: ControlPlane) -> None:
    with controlplane.apiserver_paused():
        silent = controlplane.kubectl("get", "ns", "--request-timeout=1s", check=False)
        assert silent.returncode == 1
        assert "refused" not in silent.stderr
    controlplane.kubectl("get", "namespaces")


@starts_its_own
def test_nothing_is_left_of_a_controlplane_that_was_closed(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path) as plane:
        assert plane.directory.parent == tmp_path
        processes = running_in(plane.directory)
        assert {"etcd", "kube-apiserver", "kube-controller-manager"} <= set(processes.values())
    assert not any(is_alive(pid) for pid in processes)
    assert list(tmp_path.iterdir()) == []


@starts_its_own
def test_nothing_is_left_of_a_controlplane_whose_owner_was_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        directory, fork = json.loads(owner.stdout.readline())
        processes = running_in(Path(directory))
        assert len(processes) == 4  # the guard among them
        owner.kill()
    try:
        eventually(lambda: not any(is_alive(pid) for pid in processes), within=5)
        eventually(lambda: list(tmp_path.iterdir()) == [], within=5)
    finally:
        os.kill(fork, signal.SIGKILL)


@starts_its_own
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a dead parent")
def test_nothing_is_left_of_a_controlplane_whose_guard_was_killed(tmp_path: Path) -> None:
    plane = ControlPlane.start(tmp_path)
    processes = running_in(plane.directory)
    plane.processes.guard.kill()
    eventually(lambda: not any(is_alive(pid) for pid in processes), within=5)
    plane.close()
    assert list(tmp_path.iterdir()) == []


@starts_its_own
def test_a_program_that_ends_at_the_start_is_reported_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd = tmp_path / "assets" / "etcd"
    etcd.parent.mkdir()
    etcd.write_text("#!/bin/sh\necho no space left\nexit 3\n")
    etcd.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(etcd.parent))
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(ControlPlaneError, match=r"etcd ended with 3:\nno space left"):
        ControlPlane.start(work)
    assert list(work.iterdir()) == []


@starts_its_own
def test_up_writes_a_kubeconfig_and_stops_on_a_signal(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with up(kubeconfig) as process:
        assert process.stdout
        assert process.stdout.readline() == f"export KUBECONFIG={kubeconfig}\n"
        assert kubeconfig.stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert list(tmp_path.iterdir()) == []


def test_up_never_overwrites_a_kubeconfig_of_others(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("kind: Config\n")
    with up(kubeconfig) as process:
        assert process.wait(timeout=20) == 1
    assert kubeconfig.read_text() == "kind: Config\n"


def test_a_session_without_programs_fails_at_once_and_names_the_command(tmp_path: Path) -> None:
    absent = {"XDG_CACHE_HOME": str(tmp_path), "KUBEBUILDER_ASSETS": "", "KIND": ""}
    environment = {**os.environ, **absent}
    this = "test_a_namespace_and_its_contents_are_deleted"
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"{__file__}::{this}"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    ) as session:  # fmt: skip
        try:
            eventually(lambda: session.poll() is not None, within=10)
        finally:
            session.kill()
        said = session.communicate()[0]
    assert session.returncode == 1
    assert "python -m tests.support.controlplane ensure" in said


@pytest.mark.parametrize(
    ("existing", "commands"),
    [
        pytest.param("", ["get", "create", "delete"], id="made-and-deleted"),
        pytest.param("archipelago-e2e\nother", ["get", "export"], id="reused-and-left"),
    ],
)
def test_a_kind_cluster_is_deleted_only_where_it_was_made(
    controlplane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    existing: str,
    commands: list[str],
) -> None:
    """With a stand-in for the program kind that hands out our control plane: Docker is rare."""
    log = tmp_path / "log"
    stand_in = tmp_path / "kind"
    stand_in.write_text(KIND.format(log=log, existing=existing, kubeconfig=controlplane.kubeconfig))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("KIND_IMAGE", "node:1")
    monkeypatch.setenv("KIND_CONFIG", "")

    with kind_cluster(tmp_path) as cluster, cluster.namespace() as name:
        cluster.kubectl("create", "serviceaccount", "someone", f"-n={name}")
        account = cluster.service_account_kubeconfig(name, "someone")
        assert "someone" in cluster.kubectl("auth", "whoami", kubeconfig=account).stdout

    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines] == commands
    created = [line for line in lines if line.startswith("create")]
    assert all("--image=node:1" in line and f"--config={CONFIG}" in line for line in created)


def get(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        cluster.kubectl("get", name, f"-n={namespace}", "-o=json").stdout
    )
    return answer


def create_owned(cluster: Cluster, namespace: str, owner: dict[str, Any]) -> None:
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [reference]},
    }
    cluster.kubectl("create", "-f-", f"-n={namespace}", input=json.dumps(owned))


def up(kubeconfig: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.controlplane", "up", f"--kubeconfig={kubeconfig}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(kubeconfig.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )


def running_in(directory: Path) -> dict[int, str]:
    """Programs that work in a control plane's directory, and their guard, by process id."""
    table = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], check=True, capture_output=True, text=True
    )
    rows = [line.split(None, 2) for line in table.stdout.splitlines()]
    found = {}
    for pid, parent, command in rows:
        if str(directory) in command:
            found[int(pid)] = Path(command.split()[0]).name
            found[int(parent)] = "guard"
    return found


def is_alive(pid: int) -> bool:
    """False for a zombie too: in a container nobody may reap what was orphaned."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")
