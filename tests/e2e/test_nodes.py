"""Nodes of a real API server: thousands at the start, reports, losses, selectors (B12, B13, B15).

``NODES=5000`` is the size of the acceptance point; the default is smaller, for time.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.table.validate import validate_table
from tests.support.controlplane import eventually
from tests.support.controlplane.api import MERGE
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import Operator, Plans, running, seconds_until, small
from tests.support.faults.ground import live_spec, nodes_under
from tests.support.operator.nodes import ODD

pytestmark = pytest.mark.cluster

COUNT = int(os.environ.get("NODES", "1000"))
SERVING = {"serving": "yes"}
REPORTS = 1000 / 60
"""Reports of nodes per second."""
REST = 0.12
"""Of a core: above it something is being listed."""
TICK = os.sysconf("SC_CLK_TCK")


def small_on(selector: dict[str, str], **spec: object) -> dict[str, Any]:
    """A small plan whose GPUs are found by labels of nodes."""
    plan = small(**spec)
    (pool,) = plan["pools"]
    del pool["count"]
    plan["pools"] = [{**pool, "nodeSelector": selector}]
    return plan


def placed(plans: Plans, name: str = "chat") -> set[str]:
    """Return the nodes of the islands of the stored table, which is valid."""
    table = plans.table(name)
    assert table == {} or validate_table(table) == []
    return nodes_under(table)


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
    request: pytest.FixtureRequest, plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B15: 15 s, 400 MB, 0.2 of a core at 1,000 reports a minute, and nobody plans for them."""
    if request.config.getoption("kind"):
        pytest.skip("on kind: its controllers give nodes without a kubelet pods and call them lost")
    names = nodes.names(COUNT)
    nodes.create(names[:4], SERVING)
    nodes.create(names[4:])
    plans.apply("chat", small_on({**nodes.labels, **SERVING}))
    started = time.monotonic()
    with running(prepared) as operator:
        eventually(lambda: state(operator, "usable") >= COUNT, within=60)
        synced = time.monotonic() - started
        assert state(operator, "lost") == 0
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
        assert placed(plans) == {*names[:4]}
        assert (state(operator, "usable"), state(operator, "lost")) == (COUNT, 0)


def test_a_lost_node_leaves_the_table_in_two_seconds_and_a_cordoned_one_with_the_next_plan(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    names = nodes.names(4)
    nodes.create(names)
    plans.apply("chat", small_on(nodes.labels))
    with running(prepared) as operator:
        plans.wait_ready("chat")
        assert placed(plans) == {*names}
        nodes.cordon(names[0])
        time.sleep(2)
        assert placed(plans) == {*names}

        nodes.delete(names[1:2])
        seconds = seconds_until(lambda: names[1] not in placed(plans), within=30)

        print(f"\nlost node out of the stored table after {seconds:.2f} s")  # noqa: T201
        assert seconds <= 2
        eventually(lambda: "Repaired" in reasons(plans))
        eventually(lambda: placed(plans) == {*names[2:]}, within=30)
        plans.wait_ready("chat")
        assert operator.metric("replans_total") >= 1


def test_an_unknown_accelerator_is_reported_and_the_plan_continues(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    """A42."""
    names = nodes.names(9)
    nodes.create(names[:2])
    nodes.create(names[2:], ODD)
    eventually(lambda: (state(operator, "usable"), state(operator, "excluded")) == (2, 7))
    plans.apply("chat", small_on(nodes.labels))
    plans.wait_ready("chat")
    said = plans.conditions("chat")["InventoryResolved"]
    assert (said["status"], said["reason"]) == ("False", "UnknownAccelerator")
    assert said["message"].startswith("7 nodes have accelerators that are not in the catalogue")
    assert sum(f"{name} " in said["message"] for name in names) == 5
    assert placed(plans) == {*names[:2]}


def test_nodes_are_lost_come_back_and_are_gone_as_metrics_show(
    prepared: Operator, nodes: Nodes
) -> None:
    names = nodes.names(20)
    nodes.create(names)
    with running(prepared) as operator:
        eventually(lambda: state(operator, "usable") == 20)
        nodes.cordon(names[0])
        eventually(lambda: (state(operator, "usable"), state(operator, "excluded")) == (19, 1))
        nodes.report(names[1], 1, ready="Unknown")
        eventually(lambda: (state(operator, "usable"), state(operator, "lost")) == (18, 1))
        nodes.report(names[1], 2)
        nodes.delete(names[2:])
        eventually(lambda: (state(operator, "usable"), state(operator, "excluded")) == (0, 1))
        assert state(operator, "lost") == 1  # back, and not trusted yet


def test_without_the_right_to_see_nodes_everything_else_works(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B32: a namespaced installation without the one ClusterRole for nodes."""
    nodes.create(nodes.names(3))
    account = f"--serviceaccount={plans.namespace}:default"
    plans.kubectl("create", "rolebinding", "ours", "--clusterrole=archipelago-operator", account)
    prepared.kubeconfig = plans.cluster.service_account_kubeconfig(plans.namespace, "default")
    prepared.settings = {**prepared.settings, "ARCHIPELAGO_LEADER_ELECTION": "Off"}
    role = f"nodes-{plans.namespace}"
    with running(prepared) as operator:
        plans.apply("chat", small())
        plans.apply("live", small_on(nodes.labels))
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


SOME = 4


def reasons(plans: Plans) -> list[str]:
    return [event["reason"] for event in plans.events("chat")]


def test_half_of_the_nodes_vanish(
    plans: Plans, operator: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    """B13: a new table of what is left within 10 s; here within 2 s, the rest by the planner."""
    names = nodes.names(2 * SOME)
    nodes.create(names)
    plans.apply("chat", live_spec(nodes))
    plans.wait_ready("chat")
    assert placed(plans) == set(names)
    inventory = plans.conditions("chat")["InventoryResolved"]
    assert (inventory["status"], inventory["reason"]) == ("True", "NodesFound")
    sequence = plans.table("chat")["identity"]["sequence"]

    started = time.monotonic()
    nodes.delete(names[:SOME])
    eventually(lambda: not placed(plans) & set(names[:SOME]), within=10)
    report("half of the nodes to repaired table", time.monotonic() - started)

    assert placed(plans) <= set(names[SOME:])
    assert plans.table("chat")["identity"]["sequence"] > sequence
    eventually(lambda: placed(plans) == set(names[SOME:]), within=60)
    plans.wait_ready("chat")
    assert operator.is_running()


def test_a_suspended_plan_is_left_alone_whatever_happens_to_its_nodes(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    """A29: nothing but the status is written; when it goes on, what was lost is repaired."""
    names = nodes.names(SOME)
    nodes.create(names)
    plans.apply("chat", live_spec(nodes))
    plans.wait_ready("chat")
    plans.patch("chat", {"suspend": True})
    eventually(lambda: plans.conditions("chat")["Suspended"]["status"] == "True")
    before, tables = plans.table("chat"), operator.metric('writes_total{kind="table"}')

    nodes.delete(names[:1])
    time.sleep(8)
    assert plans.table("chat") == before
    assert operator.metric('writes_total{kind="table"}') == tables

    plans.patch("chat", {"suspend": False})
    assert seconds_until(lambda: names[0] not in placed(plans), 5) <= 5
    eventually(lambda: plans.ready("chat")[0] == "True", within=60)


def test_a_plan_gets_no_node_outside_the_administrators_selector(
    plans: Plans, prepared: Operator, nodes: Nodes
) -> None:
    """B39: whatever it selects; and what it hears of others' nodes names no plan of theirs."""
    names = nodes.names(SOME)
    nodes.create(names)
    selector = "team=ours"
    settings = {**prepared.settings, "ARCHIPELAGO_NODE_SELECTOR": selector}
    with running(replace(prepared, settings=settings)):
        plans.apply("chat", live_spec(nodes))
        eventually(lambda: plans.ready("chat")[1] == "NoNodes", within=20)
        message = plans.conditions("chat")["InventoryResolved"]["message"]
        assert "outside the operator's selector" in message
        assert plans.table("chat") == {}

        api = nodes.api
        for name in names:
            patch = {"metadata": {"labels": {"team": "ours"}}}
            api("PATCH", f"/api/v1/nodes/{name}", patch, kind=MERGE)
        plans.wait_ready("chat", within=60)
        assert placed(plans) == set(names)


def test_of_two_plans_that_select_a_node_the_older_has_it(
    plans: Plans, operator: Operator, nodes: Nodes
) -> None:
    names = nodes.names(SOME)
    nodes.create(names)
    plans.apply("older", live_spec(nodes))
    plans.wait_ready("older")
    # A creationTimestamp has whole seconds; of two plans of one second the uid decides.
    created = datetime.fromisoformat(plans.get("splan", "older")["metadata"]["creationTimestamp"])
    eventually(lambda: datetime.now(UTC) - created > timedelta(seconds=1))
    plans.apply("younger", live_spec(nodes))

    def reason() -> str | None:
        return plans.conditions("younger").get("InventoryResolved", {}).get("reason")

    eventually(lambda: reason() == "PoolClaimed", within=20)
    found = plans.conditions("younger")["InventoryResolved"]
    assert plans.ready("younger")[1] == "NoNodes"
    assert f"({SOME} to the older plan older)" in found["message"]
    plans.kubectl("delete", "splan", "older")
    plans.wait_ready("younger", within=60)
    assert placed(plans, "younger") == set(names)
    assert operator.is_running()


def test_a_table_in_shards_is_repaired_as_well(
    plans: Plans, prepared: Operator, nodes: Nodes, tmp_path: Path
) -> None:
    """No watch tells where its islands stand: they are read once, after a restart as well."""
    names = nodes.names(SOME)
    nodes.create(names)
    settings = {**prepared.settings, "ARCHIPELAGO_TABLE_LIMIT_BYTES": "1024"}
    with running(replace(prepared, settings=settings)):
        plans.apply("chat", live_spec(nodes))
        plans.wait_ready("chat")
        assert "table.json" in plans.get("configmap", "chat-routing")["data"]
        nodes.delete(names[:1])
        assert seconds_until(lambda: names[0] not in placed(plans), 10) <= 10
    log = tmp_path / "second.log"
    with running(replace(prepared, settings=settings, log=log, process=None)):
        eventually(lambda: plans.ready("chat")[0] == "True", within=60)
        nodes.delete(names[1:2])
        assert seconds_until(lambda: not placed(plans) & set(names[:2]), 15) <= 15
