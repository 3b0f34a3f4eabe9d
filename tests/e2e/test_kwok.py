"""Nodes whose kubelets report, and pods that start on them: KWOK beside Kubernetes' controllers.

What other tests write by hand comes from others here: reports and leases of nodes, the silence of
one, the pods of what `archipelago manifests` wrote, their place and their readiness. ``KWOK_NODES``
is how many nodes report; from 200 on each does so once a minute, and leases are as on a cluster.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_controlplane import is_alive, running_in
from tests.e2e.test_nodes import cpu, peak_mib, placed, rest, small_on, state
from tests.support.controlplane import ControlPlane, eventually, kwok
from tests.support.controlplane.api import Api
from tests.support.controlplane.errors import BinariesMissing
from tests.support.e2e.history import tables
from tests.support.e2e.nodes import Nodes, nodes_of
from tests.support.e2e.operators import ROOT, Operator, Plans, resource, running, seconds_until
from tests.support.faults.ground import live_spec
from tests.support.faults.history import History
from tests.support.faults.recorder import recorded

pytestmark = pytest.mark.cluster

COUNT = int(os.environ.get("KWOK_NODES", "40"))
MANY = COUNT >= 200
PLANNED = 40
"""Nodes that the plan selects; the others only report."""
OURS = "archipelago.dev/plan=chat"
SERVING = {"serving": "yes"}
DRAIN = 1.0
"""Seconds of `live_spec`."""

OWNER = """
import tempfile, time
from pathlib import Path
from types import SimpleNamespace
from tests.support.controlplane import binaries, kwok
here = Path(tempfile.gettempdir())
plane = {"directory": here / "x", "kubeconfig": here / "admin", "programs": binaries.locate()}
with kwok.kubelets(SimpleNamespace(**plane)):
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def kubelets(controlplane: ControlPlane) -> Iterator[None]:
    """KWOK and the controllers of nodes and pods, beside this module's tests."""
    try:
        with kwok.kubelets(controlplane, 40 if MANY else kwok.LEASE_SECONDS):
            yield
    except BinariesMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def nodes(kubelets: None, plans: Plans) -> Iterator[Nodes]:
    """Nodes; what runs on them is gone before they are, as nobody would end it afterwards."""
    del kubelets
    with nodes_of(Api.of(plans.cluster), plans.namespace) as those:
        yield those
        plans.kubectl("delete", "deployments,replicasets,pods", "--all", "--timeout=30s")


def begin(nodes: Nodes, names: list[str], **labels: str) -> None:
    """Make nodes that are not ready until their kubelets, which KWOK plays, say so."""
    nodes.create(names, {**kwok.LABEL, **labels}, ready="Unknown")


def heartbeats(plans: Plans) -> tuple[int, int]:
    """Reports and renewed leases of all nodes since the API server's start, as it counts them."""
    text = plans.cluster.kubectl("get", "--raw", "/metrics").stdout

    def requests(*labels: str) -> int:
        return sum(
            int(float(line.rsplit(" ", 1)[1]))
            for line in text.splitlines()
            if line.startswith("apiserver_request_total") and all(one in line for one in labels)
        )

    reports = requests('resource="nodes"', 'subresource="status"', 'verb="PATCH"')
    return reports, requests('resource="leases"', 'verb="PUT"')


def written(plans: Plans) -> list[str]:
    """Versions of the plan and its table."""
    objects = (plans.plan("chat"), plans.get("configmap", "chat-routing"))
    return [one["metadata"]["resourceVersion"] for one in objects]


def test_kubelets_report_and_nobody_plans_until_a_node_is_gone_or_silent(
    plans: Plans, prepared: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    """B15 and B12 with reports, leases and a silence that the tests do not write."""
    names = nodes.names(COUNT)
    begin(nodes, names[:PLANNED], **SERVING)
    begin(nodes, names[PLANNED:], **({"reports-every": "60s"} if MANY else {}))
    started = time.monotonic()
    with running(prepared) as operator:
        eventually(lambda: state(operator, "usable") >= COUNT, within=60)
        report(f"{COUNT} nodes of KWOK synced after the start", time.monotonic() - started)
        plans.apply("chat", small_on({**nodes.labels, **SERVING}))
        plans.wait_ready("chat")
        assert placed(plans) == {*names[:PLANNED]}
        if MANY:
            rest(operator)

        before = written(plans), operator.metric("plannings_total")
        seen, used, began = heartbeats(plans), cpu(operator), time.monotonic()

        def since() -> tuple[int, int]:
            reports, leases = heartbeats(plans)
            return reports - seen[0], leases - seen[1]

        time.sleep(60 if MANY else 5)
        eventually(lambda: min(since()) >= 150, within=60)
        reports, leases = since()
        share = (cpu(operator) - used) / (time.monotonic() - began)
        cost = f"{share:.3f} of a core, {peak_mib(operator):.0f} MiB at most"
        print(f"\n{reports} reports, {leases} renewed leases: {cost}")  # noqa: T201
        assert (written(plans), operator.metric("plannings_total")) == before
        assert (state(operator, "usable"), state(operator, "lost")) == (COUNT, 0)

        nodes.delete(names[:1])
        gone = seconds_until(lambda: names[0] not in placed(plans), within=10)
        report("node deleted to repaired table", gone)
        assert gone <= 2

        if not MANY:
            plans.kubectl("label", "node", names[1], *(f"{label}-" for label in kwok.LABEL))
            eventually(lambda: names[1] not in placed(plans), within=30)
            said = plans.get("node", names[1])["status"]["conditions"]
            silent = next(one for one in said if one["type"] == "Ready")
            assert (silent["status"], silent["reason"]) == ("Unknown", "NodeStatusUnknown")
            assert placed(plans) <= {*names[2:PLANNED]}


def answers(nodes: Nodes, mean: int) -> dict[str, Any]:
    """The plan with answers of that many tokens on average."""
    plan = live_spec(nodes)
    workload = plan["models"][0]["workload"]
    workload["outputTokens"] = {"mean": str(mean), "meanSquare": str(int(1.6 * mean**2))}
    return plan


def rendered(plans: Plans, plan: dict[str, Any], folder: Path) -> str:
    """What `archipelago manifests` makes of the stored table, whose engines take 2 s to start."""
    template = yaml.safe_load((ROOT / "examples" / "render" / "vllm.yaml").read_text())
    template["template"]["metadata"] = {"annotations": {"starts-in": "2s"}}
    files = {
        "template": template,
        "plan": resource("chat", plan),
        "table": plans.get("configmap", "chat-routing"),
    }
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    command = [
        sys.executable, "-P", "-m", "archipelago.planner", "manifests", "plan.yaml",
        "--table=table.yaml", "--pod-template=template.yaml",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    return done.stdout


def deploy(plans: Plans, manifests: str) -> None:
    """As a user does; islands that are no more go."""
    plans.kubectl("apply", "--prune", f"-l={OURS}", "-f", "-", input=manifests)


def pods(plans: Plans) -> dict[str, tuple[str, bool]]:
    """Node of each island's pod, and whether it is ready; the controllers named and placed it."""
    items = plans.get("pods", f"-l={OURS}")["items"]
    return {
        pod["metadata"]["labels"]["archipelago.dev/island"]: (
            pod["spec"].get("nodeName", ""),
            any(
                (one["type"], one["status"]) == ("Ready", "True")
                for one in pod["status"].get("conditions", ())
            ),
        )
        for pod in items
        if "deletionTimestamp" not in pod["metadata"]
    }


def standing(table: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """What `pods` says where every island of the table has its pod, and each of them is ready."""
    return {island["name"]: (island["nodes"][0], True) for island in table["content"]["islands"]}


def sent_to(table: dict[str, Any]) -> set[str]:
    """Islands of the groups that requests are sent to."""
    content = table["content"]
    pairs = [p for m in content["models"] for r in m["routes"] for p in r["pairs"]]
    used = {pair[phase] for pair in pairs for phase in ("prefill", "decode")}
    return {
        name for group in content["groups"] if group["name"] in used for name in group["members"]
    }


def test_the_loop_closes_with_kubectl_apply(
    plans: Plans,
    operator: Operator,
    nodes: Nodes,
    tmp_path: Path,
    report: Callable[[str, float], None],
) -> None:
    """Plan, render, apply; edit: away, change, and onto no sooner than the new pods are ready."""
    begin(nodes, nodes.names(4))
    eventually(lambda: state(operator, "usable") == 4)
    plans.apply("chat", answers(nodes, 211))
    plans.wait_ready("chat", within=60)
    first = plans.table("chat")
    deploy(plans, rendered(plans, answers(nodes, 211), tmp_path))
    seconds = seconds_until(lambda: pods(plans) == standing(first), within=30)
    report("rendered and applied to all pods ready where the table says", seconds)
    assert len(standing(first)) == 8
    assert sent_to(first) == set(standing(first))

    with recorded(Api.of(plans.cluster), plans.namespace, History()) as history:
        plans.apply("chat", answers(nodes, 20))
        eventually(lambda: standing(plans.table("chat")).keys() != standing(first).keys())
        change = plans.table("chat")
        new = standing(change).keys() - standing(first).keys()
        assert len(new) == 3
        time.sleep(3 * DRAIN)
        assert plans.table("chat") == change
        assert not sent_to(change) & new

        deploy(plans, rendered(plans, answers(nodes, 20), tmp_path))
        seconds = seconds_until(lambda: sent_to(plans.table("chat")) >= new, within=30)
        report("changed pods applied to requests on them", seconds)
        assert pods(plans) == standing(change)
        plans.wait_ready("chat")

    stored = {t["identity"]["sequence"]: t for _, t, _ in tables(history, "chat-routing") if t}
    assert [wrong for _, _, wrong in tables(history, "chat-routing") if wrong] == []
    del stored[first["identity"]["sequence"]]
    away, changed, onto = (stored[sequence] for sequence in sorted(stored))
    assert standing(away) == standing(first)
    assert len(standing(first).keys() - sent_to(away)) == 3
    assert changed == change
    assert sent_to(onto) == set(standing(onto)) == set(standing(change))
    assert operator.is_running()


@pytest.mark.usefixtures("kubelets")
def test_nothing_is_left_of_them_when_the_session_is_killed(
    controlplane: ControlPlane, tmp_path: Path
) -> None:
    account = tmp_path / "admin"
    shutil.copy(controlplane.kubeconfig, account)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "begun\n"
        processes = running_in(tmp_path)
        owner.kill()
    assert {*kwok.PROGRAMS, kwok.MANAGER} <= {*processes.values()}
    eventually(lambda: not any(is_alive(pid) for pid in processes))
    eventually(lambda: list(tmp_path.iterdir()) == [account])
