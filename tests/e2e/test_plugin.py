"""``kubectl splan status`` and ``doctor`` against a real API server, called as kubectl calls it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import Cluster
from tests.e2e.operators import AS_DEPLOYED, HOME, ROOT, Operator, Plans, small

pytestmark = pytest.mark.cluster

IMPOSSIBLE = {"ttftMilliseconds": 1}


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> "Plugin":
    """The console script under the name by which kubectl finds it, first on the path."""
    script = tmp_path / "bin" / "kubectl-splan"
    script.parent.mkdir()
    body = f"#!{sys.executable} -P\nfrom archipelago.operator.plugin import main\nmain()\n"
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
    spec = small()
    spec["models"][0]["slo"] = IMPOSSIBLE
    team.apply("small", spec)
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
    bad = small()
    bad["models"][0]["slo"] = IMPOSSIBLE
    plans.apply("good", small())
    plans.apply("bad", bad)
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
    assert "0 of 1 ready" in checks["operator"]["text"]
    assert checks["operator health"]["verdict"] == "fail"


def test_what_a_user_may_not_read_is_said_and_fails_nothing(
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
