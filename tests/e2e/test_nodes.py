"""Nodes on a real API server: thousands at the start, their reports, their loss (B12, B13, B15).

``NODES=5000`` is the size of the acceptance point; the default is smaller, for time.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import Cluster, eventually
from tests.controlplane.api import Api
from tests.e2e.nodes import Nodes, nodes_of
from tests.e2e.operators import Operator, Plans, running, seconds_until, small
from tests.operator.nodes import ODD

pytestmark = pytest.mark.cluster

COUNT = int(os.environ.get("NODES", "1000"))
SERVING = {"serving": "yes"}
REPORTS = 1000 / 60
"""Reports of nodes per second."""
REST = 0.12
"""Of a core: above it something is being listed."""
TICK = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def nodes(cluster: Cluster, namespace: str) -> Iterator[Nodes]:
    with nodes_of(Api.of(cluster), namespace) as found:
        yield found


def found(selector: dict[str, str], **spec: object) -> dict[str, Any]:
    """A small plan whose GPUs are found by labels of nodes."""
    plan = small(**spec)
    (pool,) = plan["pools"]
    del pool["count"]
    plan["pools"] = [{**pool, "nodeSelector": selector}]
    return plan


def placed(plans: Plans, name: str) -> set[str]:
    """Nodes that the stored table sends requests to."""
    table = plans.table(name)
    islands = table["content"]["islands"] if table else []
    return {node for island in islands for node in island["nodes"]}


def state(operator: Operator, name: str) -> int:
    """Nodes in that state, as /metrics has it."""
    return int(operator.metric(f'nodes{{state="{name}"}}'))


def cpu(operator: Operator) -> float:
    """Seconds of processor time of the operator's own process, its planners not counted."""
    assert operator.process is not None
    parts = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICK


def peak_mib(operator: Operator) -> float:
    """The most memory that the operator's own process ever had [MiB]."""
    assert operator.process is not None
    status = Path(f"/proc/{operator.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) / 1024


def rest(operator: Operator) -> None:
    """Wait until the lists that follow the first watches are over: every few minutes from then."""
    eventually(lambda: operator.metric("resyncs_total") >= 2, within=60)
    used = REST
    while used >= REST:
        before = cpu(operator)
        time.sleep(2)
        used = (cpu(operator) - before) / 2


def test_thousands_of_nodes_are_synced_soon_and_their_reports_cost_little(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B15: 15 s, 400 MB, 0.2 of a core at 1,000 reports a minute, and nobody plans for them."""
    names = nodes.names(COUNT)
    nodes.create(names[:4], SERVING)
    nodes.create(names[4:])
    plans.apply("chat", found({**nodes.labels, **SERVING}))
    started = time.monotonic()
    with running(prepared) as operator:
        eventually(lambda: state(operator, "usable") >= COUNT, within=60)
        synced = time.monotonic() - started
        plans.wait_ready("chat")
        rest(operator)
        before, planned = cpu(operator), operator.metric("plannings_total")
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < 15:
            nodes.report(names[sent % COUNT], sent)
            sent += 1
            time.sleep(max(0.0, began + sent / REPORTS - time.monotonic()))
        used = (cpu(operator) - before) / (time.monotonic() - began)
        print(  # noqa: T201
            f"\n{COUNT} nodes: synced {synced:.1f} s after the start, {peak_mib(operator):.0f} MiB "
            f"at most; {sent} reports: {used:.3f} of a core"
        )
        assert synced <= 15
        assert peak_mib(operator) <= 400e6 / 2**20
        assert sent >= 0.9 * 15 * REPORTS
        assert used <= 0.2
        assert operator.metric("plannings_total") == planned
        assert [line for line in operator.lines() if "nodes" in line["message"]] == []
        assert placed(plans, "chat") == {*names[:4]}
        assert (state(operator, "usable"), state(operator, "lost")) == (COUNT, 0)


def test_a_lost_node_leaves_the_table_in_two_seconds_and_a_cordoned_one_with_the_next_plan(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    names = nodes.names(4)
    nodes.create(names)
    plans.apply("chat", found(nodes.labels))
    with running(prepared) as operator:
        plans.wait_ready("chat")
        assert placed(plans, "chat") == {*names}
        nodes.cordon(names[0])
        time.sleep(2)
        assert placed(plans, "chat") == {*names}

        nodes.delete(names[1:2])
        seconds = seconds_until(lambda: names[1] not in placed(plans, "chat"), within=30)

        print(f"\nlost node out of the stored table after {seconds:.2f} s")  # noqa: T201
        assert seconds <= 2
        eventually(lambda: placed(plans, "chat") == {*names[2:]}, within=30)
        plans.wait_ready("chat")
        assert operator.metric("replans_total") >= 1


def test_half_the_nodes_go_within_a_second_and_the_rest_serves(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B13, scaled down to 20 nodes: a table of what is left, and soon the best one."""
    names = nodes.names(20)
    nodes.create(names)
    plans.apply("chat", found(nodes.labels))
    with running(prepared):
        plans.wait_ready("chat")
        assert placed(plans, "chat") == {*names}
        started = time.monotonic()
        nodes.delete(names[:10])
        took = time.monotonic() - started
        repaired = seconds_until(lambda: placed(plans, "chat") <= {*names[10:]}, within=10)
        print(f"\n10 of 20 gone in {took:.2f} s, out of the table {repaired:.2f} s later")  # noqa: T201
        assert took + repaired <= 10
        assert placed(plans, "chat")
        eventually(lambda: placed(plans, "chat") == {*names[10:]}, within=40)
        plans.wait_ready("chat")


def test_nodes_that_flap_are_repaired_away_and_planned_without_once(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B12, scaled down: 10 of 20 nodes not ready and back every 2 s, for 24 s."""
    names = nodes.names(20)
    nodes.create(names)
    plans.apply("chat", found(nodes.labels))
    with running(prepared) as operator:
        plans.wait_ready("chat")
        before = operator.metric("plannings_total")
        for turn in range(12):
            for name in names[:10]:
                nodes.report(name, turn, ready="True" if turn % 2 else "Unknown")
            time.sleep(2)
        told = [line["message"] for line in operator.lines() if "nodes" in line["message"]]
        print(f"\n{told}, {operator.metric('plannings_total') - before:.0f} plannings")  # noqa: T201
        assert told.count("nodes were lost") <= 2  # one burst, or two where the machine is busy
        assert told.count("other nodes are there") <= 1
        assert placed(plans, "chat") <= {*names[10:]}
        plans.wait_ready("chat")


def test_an_unknown_accelerator_is_said_and_the_plan_goes_on(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    """A42."""
    names = nodes.names(9)
    nodes.create(names[:2])
    nodes.create(names[2:], ODD)
    eventually(lambda: (state(operator, "usable"), state(operator, "aside")) == (2, 7))
    plans.apply("chat", found(nodes.labels))
    plans.wait_ready("chat")
    said = plans.conditions("chat")["InventoryResolved"]
    assert (said["status"], said["reason"]) == ("False", "UnknownAccelerator")
    assert said["message"].startswith("7 nodes have accelerators that are not in the catalogue")
    assert sum(f"{name} " in said["message"] for name in names) == 5
    assert placed(plans, "chat") == {*names[:2]}


def test_nodes_are_lost_come_back_and_are_gone_as_metrics_show(
    prepared: Operator, nodes: Nodes
) -> None:
    names = nodes.names(20)
    nodes.create(names)
    with running(prepared) as operator:
        eventually(lambda: state(operator, "usable") == 20)
        nodes.cordon(names[0])
        eventually(lambda: (state(operator, "usable"), state(operator, "aside")) == (19, 1))
        nodes.report(names[1], 1, ready="Unknown")
        eventually(lambda: (state(operator, "usable"), state(operator, "lost")) == (18, 1))
        nodes.report(names[1], 2)
        nodes.delete(names[2:])
        eventually(lambda: (state(operator, "usable"), state(operator, "aside")) == (0, 1))
        assert state(operator, "lost") == 1  # back, and not trusted yet


def test_without_the_right_to_see_nodes_everything_else_works_and_it_is_said_once(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B32: a namespaced installation without the one ClusterRole for nodes."""
    nodes.create(nodes.names(3))
    account = f"--serviceaccount={plans.namespace}:default"
    plans.kubectl("create", "rolebinding", "ours", "--clusterrole=archipelago-operator", account)
    prepared.kubeconfig = plans.cluster.service_account_kubeconfig(plans.namespace, "default")
    role = f"nodes-{plans.namespace}"
    with running(prepared) as operator:
        plans.apply("chat", small())
        plans.apply("live", found(nodes.labels))
        plans.wait_ready("chat")
        eventually(lambda: plans.ready("live")[:2] == ("False", "NoNodes"))
        live = plans.conditions("live")["InventoryResolved"]
        assert (live["status"], live["reason"]) == ("Unknown", "NoNodes")
        assert "missing right: list nodes, watch nodes in the cluster" in live["message"]
        said = [line for line in operator.lines() if "nodeSelector" in line["message"]]
        assert [line["rights"] for line in said] == ["list nodes, watch nodes"]
        assert operator.metric("missing_rights") == 0
        assert operator.metric("nodes") == 0
        try:
            binding = (role, "--clusterrole=archipelago-operator-nodes", account)
            plans.cluster.kubectl("create", "clusterrolebinding", *binding)
            # Nothing told it: it asks every two minutes, and whenever it is refused something.
            operator.end()
            operator.start()
            eventually(lambda: state(operator, "usable") == 3)
            plans.wait_ready("live")
        finally:
            plans.cluster.kubectl("delete", "clusterrolebinding", role)


def test_switched_off_it_asks_for_neither_nodes_nor_pods(prepared: Operator, nodes: Nodes) -> None:
    nodes.create(nodes.names(3))
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_INVENTORY": "Off"}
    with running(prepared) as operator:
        time.sleep(1)
        assert operator.metric("nodes") == 0
        text = operator.get("/metrics")
        assert 'stream_age_seconds{kind="nodes"}' not in text
        assert 'resource="pods"' not in text
