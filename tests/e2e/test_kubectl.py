"""What a user sees: `kubectl splan`, `archipelago watch`, rendered manifests, metrics, the log."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.kubernetes.pod_template import read_template
from archipelago.planner.kubernetes.workloads import ManifestOptions, workloads
from archipelago.planner.servingplan import load_resource
from tests.manifests.cases import good
from tests.planner.kubernetes.test_workloads import content, island
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import (
    AS_DEPLOYED,
    HOME,
    ROOT,
    Operator,
    Plans,
    impossible,
    running,
    small,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Plugin:
    """The console script under the name by which kubectl finds it, first on the path."""
    script = tmp_path / "bin" / "kubectl-splan"
    script.parent.mkdir()
    body = f"#!{sys.executable} -P\nfrom archipelago.operator.kubectl.plugin import main\nmain()\n"
    script.write_text(body)
    script.chmod(0o755)
    return Plugin(cluster, script.parent, cluster.kubeconfig)


class Plugin:
    """Runs ``kubectl splan ...``."""

    def __init__(self, cluster: Cluster, folder: Path, kubeconfig: Path) -> None:
        self.cluster, self.folder, self.kubeconfig = cluster, folder, kubeconfig

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.cluster.kubectl_binary, "splan", *args],
            env={
                "PATH": f"{self.folder}:{os.environ['PATH']}",
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.folder),
                **AS_DEPLOYED,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def checks(self, *args: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code of the doctor and its checks by subject."""
        done = self("doctor", "-o", "json", *args)
        assert done.stderr == ""
        found = json.loads(done.stdout)["checks"]
        return done.returncode, {check["subject"]: check for check in found}


def test_status_of_a_plan_that_is_served(team: Plans, plugin: Plugin) -> None:
    team.apply("small", small())
    team.wait_ready("small")

    text = plugin("status", "small", "-n", team.namespace)
    data = json.loads(plugin("status", "small", "-n", team.namespace, "-o", "json").stdout)

    assert (text.returncode, text.stderr) == (0, "")
    assert data["ready"] is True
    assert {item["type"]: item["status"] for item in data["conditions"]}["Ready"] == "True"
    stored = team.get("configmap", data["table"]["configMap"])
    assert data["table"]["key"] in stored["data"]
    assert data["table"]["contentHash"] == team.plan("small")["status"]["summary"]["contentHash"]
    assert "generation 1 was planned in" in data["lastDecision"]
    for word in (
        "Ready",
        "Published",
        data["table"]["configMap"],
        data["table"]["contentHash"][:12],
    ):
        assert word in text.stdout


def test_status_of_a_plan_that_is_not_exits_1(team: Plans, plugin: Plugin) -> None:
    team.apply("small", impossible())
    team.kubectl("wait", "--for=condition=Ready=false", "splan/small", "--timeout=30s")

    result = plugin("status", "small", "-n", team.namespace)

    assert result.returncode == 1
    assert "Infeasible" in result.stdout
    assert "last decision: at " in result.stdout


def test_status_of_nothing_exits_2(plugin: Plugin, namespace: str) -> None:
    result = plugin("status", "none", "-n", namespace)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: no ServingPlan none in namespace {namespace}")


def test_the_doctor_finds_what_is_missing_and_says_what_to_do(
    plugin: Plugin, namespace: str
) -> None:
    """A cluster with the custom resource and without an operator."""
    status, checks = plugin.checks("-n", namespace, "--operator-namespace", namespace)
    assert status == 1
    assert checks["custom resource"]["verdict"] == "ok"
    assert checks["your rights"]["verdict"] == "ok"
    assert checks["operator"]["verdict"] == "fail"
    assert "kubectl apply -k deploy/base" in checks["operator"]["remedy"]
    assert checks["plans"]["text"] == f"there is no ServingPlan in namespace {namespace}"


def test_the_doctor_judges_plans_and_tables(
    plans: Plans, operator: Operator, plugin: Plugin
) -> None:
    """One plan is served, one impossible; then somebody breaks the table while nobody looks."""
    plans.apply("good", small())
    plans.apply("bad", impossible())
    plans.wait_ready("good")
    plans.kubectl("wait", "--for=condition=Ready=false", "splan/bad", "--timeout=30s")

    _, checks = plugin.checks("-n", plans.namespace)
    assert checks[f"plan {plans.namespace}/good"]["verdict"] == "ok"
    assert checks[f"table of {plans.namespace}/good"]["verdict"] == "ok"
    failed = checks[f"plan {plans.namespace}/bad"]
    assert failed["verdict"] == "fail"
    assert failed["remedy"].startswith("Make one of the changes")

    operator.end()
    patch = json.dumps({"data": {"table.json": "{}"}})
    plans.kubectl("patch", "configmap", "good-routing", "--type=merge", "-p", patch)
    status, checks = plugin.checks("-n", plans.namespace)
    assert status == 1
    assert checks[f"table of {plans.namespace}/good"]["verdict"] == "fail"


def test_the_doctor_sees_an_operator_that_does_not_get_ready(
    cluster: Cluster, account: Path, plugin: Plugin
) -> None:
    """The deployment as it is delivered, where no node is there to run it."""
    assert account.exists()
    manifest = ROOT / "deploy" / "base" / "deployment.yaml"
    cluster.kubectl("apply", "--server-side", "-f", manifest)
    try:
        _, checks = plugin.checks("--operator-namespace", HOME)
    finally:
        cluster.kubectl("delete", "-f", manifest, "--wait=false")
    assert checks["operator"]["verdict"] == "fail"
    assert "0 of 2 ready" in checks["operator"]["text"]
    assert checks["operator health"]["verdict"] == "fail"


def test_missing_read_rights_are_reported_and_fail_nothing(
    cluster: Cluster, account: Path, plans: Plans, plugin: Plugin
) -> None:
    """One who looks after plans alone may neither read nodes nor ask for definitions."""
    plans.kubectl("create", "serviceaccount", "planner")
    binding = ("create", "rolebinding", "planner", f"--serviceaccount={plans.namespace}:planner")
    plans.kubectl(*binding, "--clusterrole=archipelago-operator")
    plugin.kubeconfig = cluster.service_account_kubeconfig(plans.namespace, "planner")
    _, checks = plugin.checks("-n", plans.namespace, "--operator-namespace", plans.namespace)
    for subject in ("custom resource", "operator", "accelerators"):
        assert checks[subject]["verdict"] == "unknown", subject
    assert "you may not list nodes" in checks["your rights"]["text"]
    assert checks["your rights"]["verdict"] == "warn"
    assert plugin.kubeconfig != account


PROGRAM = "from archipelago.planner.cli.app import main; main()"
HASH = "0123456789abcdef" * 4
DECISION: dict[str, Any] = {
    "time": "2026-01-01T00:00:00Z",
    "trigger": "Safety",
    "level": "Flip",
    "headroom": "0.91",
    "message": "2 islands change phase",
    "levels": [{"level": "Keep", "theta": "0.91"}, {"level": "Flip", "theta": "1.09"}],
    "proposal": {"hash": HASH, "level": "Reshape", "trigger": "Gain", "message": "3 islands start"},
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
    assert len(families) == len(set(families)) <= 48
    assert all(name.startswith("archipelago_") for name in families)
    assert 4 <= len(series(page, "chat")) <= 15
    assert not re.search(r"https?:|[Bb]earer|token", page)

    plans.kubectl("delete", "splan", "chat")
    started = time.monotonic()
    eventually(lambda: series(operator.get("/metrics"), "chat") == [], within=5)
    report("series gone after deletion", time.monotonic() - started)


def test_a_log_line_names_the_plan_and_the_decision(plans: Plans, operator: Operator) -> None:
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
def watching(cluster: Cluster, team: Plans) -> Iterator[Watching]:
    """Its processes hear Ctrl-C also if the tests are a job in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Watching(cluster, team)
    signal.signal(signal.SIGINT, before)


def decide(plans: Plans, **decision: object) -> None:
    """Write a decision into the status, as the operator does."""
    patch = json.dumps({"status": {"lastDecision": {**DECISION, **decision}}})
    plans.kubectl("patch", "splan", "chat", "--subresource=status", "--type=merge", "-p", patch)


def read_until(file: int, word: str, within: float = 15) -> str:
    """What comes out of a terminal or a pipe until the word does."""
    text, end = "", time.monotonic() + within
    decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
    while word not in text:
        left = end - time.monotonic()
        assert left > 0, text
        if select.select([file], [], [], left)[0]:
            text += decoder.decode(os.read(file, 65536))
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
    assert shown["replanning"]["level"] == "Flip"
    assert watching("none", "--once").returncode == 2


def test_on_a_terminal_it_changes_in_place(team: Plans, watching: Watching) -> None:
    team.apply("chat", small())
    team.wait_ready("chat")
    ours, theirs = pty.openpty()
    process = watching.begin("chat", "--every", "0.2", out=theirs)
    try:
        read_until(ours, "no decision yet")
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
        last = read_until(ours, "the plan was deleted")
        assert process.wait(10) == 1
    finally:
        process.kill()
        os.close(ours)
    told = [json.loads(line) for line in (first + second + last).splitlines()]
    # What the operator writes meanwhile, and a slow API server, add lines: none is there twice.
    assert all(line != after for line, after in pairwise(told))
    assert told[0]["replanning"] is None
    assert {line["replanning"]["level"] for line in told[1:]} == {"Flip"}
    assert "note" not in told[1]
    assert told[-1]["note"] == "the plan was deleted"


TEMPLATE = ROOT / "examples" / "render" / "vllm.yaml"
PLAN = "archipelago.dev/plan"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first example, planned and rendered by the installed command."""
    plan: Path = tmp_path_factory.mktemp("render") / "plan.json"
    plan.write_text(_archipelago("plan", "-q", "-o", "json", "-f", str(_example())))
    return _archipelago("manifests", str(plan), "--pod-template", str(TEMPLATE))


def _example() -> Path:
    found: Path = ROOT / "examples" / "01-llama-on-two-pools.yaml"
    return found


def _archipelago(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "archipelago.planner", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_is_rendered_is_stored_as_it_is_and_applied_twice_changes_nothing(
    cluster: Cluster, namespace: str, manifests: str
) -> None:
    """Strict validation: a field that the API server does not know would be a warning."""
    wanted = list(yaml.safe_load_all(manifests))
    apply = ("apply", f"-n={namespace}", "--validate=strict", "-f", "-")
    first = cluster.kubectl(*apply, input=manifests).stdout
    assert first.count(" created") == len(wanted) >= 10
    second = cluster.kubectl(*apply, input=manifests).stdout
    assert second.count(" unchanged") == len(wanted)
    show = ("get", "deployments", f"-n={namespace}", "-l", f"{PLAN}=llama-on-two-pools", "-o=json")
    stored = {
        item["metadata"]["name"]: item
        for item in json.loads(cluster.kubectl(*show).stdout)["items"]
    }
    assert len(stored) == len(wanted)
    for document in wanted:
        pod = stored[document["metadata"]["name"]]["spec"]["template"]
        asked = document["spec"]["template"]
        assert pod["metadata"]["labels"] == asked["metadata"]["labels"]
        (has,), (given,) = pod["spec"]["containers"], asked["spec"]["containers"]
        assert has["args"] == given["args"]
        assert has["resources"]["limits"] == given["resources"]["limits"]


def test_a_phase_may_change_under_the_same_name(
    cluster: Cluster, namespace: str, manifests: str
) -> None:
    """A selector cannot be changed, hence the phase is not in it."""
    document = next(iter(yaml.safe_load_all(manifests)))
    apply = ("apply", f"-n={namespace}", "-f", "-")
    cluster.kubectl(*apply, input=yaml.safe_dump(document))
    pod = document["spec"]["template"]
    before = pod["metadata"]["labels"]["archipelago.dev/phase"]
    other = "prefill" if before == "decode" else "decode"
    for labels in (pod["metadata"]["labels"], document["metadata"]["labels"]):
        labels["archipelago.dev/phase"] = other
    assert " configured" in cluster.kubectl(*apply, input=yaml.safe_dump(document)).stdout


def test_pods_of_several_nodes_and_on_named_ones_are_pods_that_the_server_knows(
    cluster: Cluster, namespace: str
) -> None:
    """The LeaderWorkerSet itself is another project's; its two templates are pods like others."""
    spec = load_resource(yaml.safe_load(good()["nodes-found"])).spec
    template = read_template(yaml.safe_load(TEMPLATE.read_text()))
    there = content(
        island("one", "h100", 8, "ip-10-0-0-1.eu-central-1.compute.internal"),
        island("two", "h100", 16, "n1", "n2", split={"tp": 8, "pp": 2}),
    )
    one, two = workloads(there, spec, ManifestOptions("a.plan-of-any-name", {"": template}))
    cluster.kubectl(
        "create", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f", "-",
        input=json.dumps(one),
    )  # fmt: skip
    group: dict[str, Any] = two["spec"]["leaderWorkerTemplate"]
    for kind in ("leaderTemplate", "workerTemplate"):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": kind.lower()}}
        text = json.dumps(pod | {"template": group[kind]})
        create = ("create", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f", "-")
        assert "created" in cluster.kubectl(*create, input=text).stdout


def test_the_example_of_a_template_is_one_that_the_server_takes(
    cluster: Cluster, namespace: str
) -> None:
    """By itself, before anything is added."""
    apply = ("apply", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f")
    assert "Warning" not in cluster.kubectl(*apply, TEMPLATE).stderr
