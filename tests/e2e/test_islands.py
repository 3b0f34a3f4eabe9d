"""Plan, pods, table, without hands: the operator owns the pods, KWOK plays their kubelets."""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.planner.kubernetes.labels import ISLAND_LABEL, ROLE_LABEL, label_value, role_of
from tests.deploy.rendering import BASE, DEPLOY, HOME, NAME
from tests.e2e.test_kwok import answers, begin, pods, sent_to, standing
from tests.e2e.test_kwok import kubelets as kubelets  # noqa: PLC0414  # a fixture
from tests.e2e.test_kwok import nodes as nodes  # noqa: PLC0414
from tests.e2e.test_live import event_reasons
from tests.e2e.test_nodes import state
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.e2e.history import tables
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import (
    ROOT,
    Operator,
    Plans,
    running,
    seconds_until,
    small,
)
from tests.support.faults.history import DELETED, PLAN, POD, TABLE, History
from tests.support.faults.recorder import recorded

pytestmark = pytest.mark.cluster

COMPONENT = DEPLOY / "components" / "islands"
MANAGED = {"manage": "Deployments", "template": {"configMap": "pods"}}
READY_SECONDS = 10
MOST = 9
"""Islands that the administrator permits in a namespace: one more than the plan has."""


@pytest.fixture(scope="module")
def owner(cluster: Cluster) -> Iterator[Path]:
    """An account of its own, with the rights of base and component: the usual one's are audited.

    The policy of the component bounds it to workloads of ServingPlans.
    """
    name = "archipelago-with-islands"
    files = [BASE / f for f in ("namespace.yaml", "serviceaccount.yaml", "rbac.yaml")]
    files += [COMPONENT / f for f in ("rights.yaml", "admission.yaml")]
    text = "\n---\n".join(file.read_text() for file in files).replace(NAME, name)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
    yield cluster.service_account_kubeconfig(HOME, name)
    kinds = ("clusterrole", "clusterrolebinding", "validatingadmissionpolicy")
    for kind in (*kinds, "validatingadmissionpolicybinding"):
        cluster.kubectl("delete", kind, f"{name}-islands")


@pytest.fixture
def owning(prepared: Operator, owner: Path, tmp_path: Path) -> Iterator[Operator]:
    """An operator that may own Deployments."""
    file = tmp_path / "admin.yaml"
    file.write_text(yaml.safe_dump({"startedIslands": [{"namespaces": ["*"], "maxIslands": MOST}]}))
    more = {"ARCHIPELAGO_ISLANDS": "Deployments", "ARCHIPELAGO_ADMIN_FILE": str(file)}
    settings = {**prepared.settings, **more}
    with running(replace(prepared, kubeconfig=owner, settings=settings)) as operator:
        yield operator


def store_template(plans: Plans, starts_in: str = "1s") -> None:
    """The template, whose engines take that long to start on KWOK's nodes."""
    template = yaml.safe_load((ROOT / "examples" / "render" / "vllm.yaml").read_text())
    template["template"]["metadata"] = {"annotations": {"starts-in": starts_in}}
    stored = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pods"},
        "data": {"template.yaml": yaml.safe_dump(template)},
    }
    plans.kubectl("apply", "-f", "-", input=json.dumps(stored))


def managed(nodes: Nodes, mean: int, **islands: object) -> dict[str, Any]:
    return {**answers(nodes, mean), "islands": {**MANAGED, **islands}}


def requests_to_pods_that_were_not_ready(history: History) -> list[str]:
    """Islands that a stored table sends requests to, and that no pod had shown ready as such."""
    wrong, ready = [], dict[str, tuple[str, str]]()
    for version in sorted(history.versions, key=lambda version: version.number):
        if version.kind == POD:
            labels = version.body["metadata"]["labels"]
            said = version.body["status"].get("conditions", ())
            serves = ("Ready", "True") in [(one["type"], one["status"]) for one in said]
            if serves and version.change != DELETED:
                ready[version.uid] = labels.get(ISLAND_LABEL, ""), labels.get(ROLE_LABEL, "")
            else:
                ready.pop(version.uid, None)
        if version.kind == TABLE and version.table and version.change != DELETED:
            content = version.table["content"]
            models = {name: g["model"] for g in content["groups"] for name in g["members"]}
            wrong += [
                f"{island['name']} in the table of {version.number}"
                for island in content["islands"]
                if island["name"] in sent_to(version.table)
                and (label_value(island["name"]), role_of(island, models[island["name"]]))
                not in ready.values()
            ]
    return wrong


def served(plans: Plans) -> bool:
    """Whether every island of the table gets requests and has its pod, and the plan is Ready."""
    table = plans.table("chat")
    whole = bool(table) and sent_to(table) == standing(table).keys()
    return whole and pods(plans) == standing(table) and plans.ready("chat")[0] == "True"


def test_the_loop_closes_without_hands(
    plans: Plans, owning: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    """First table, an edit that changes islands, a kill in its middle; nothing foreign is touched.

    No table sends requests to an island before its pods are ready as what the table says.
    """
    begin(nodes, nodes.names(4))
    eventually(lambda: state(owning, "usable") == 4)
    plans.kubectl("create", "deployment", "foreign", "--image=foreign", "--replicas=0")
    foreign = plans.get("deployment", "foreign")
    kinds = (PLAN, TABLE, POD)
    with recorded(Api.of(plans.cluster), plans.namespace, History(), kinds) as history:
        plans.apply("chat", managed(nodes, 211))
        eventually(lambda: plans.ready("chat")[:2] == ("False", "InvalidSpec"), within=20)
        store_template(plans)
        plans.patch("chat", {"priority": 1})
        eventually(lambda: plans.ready("chat")[:2] == ("Unknown", "PodsNotReady"), within=20)
        assert plans.table("chat") == {}
        report("template stored to requests", seconds_until(lambda: served(plans), within=60))
        first = plans.table("chat")
        assert len(standing(first)) == MOST - 1

        plans.apply("chat", managed(nodes, 20))
        eventually(lambda: standing(plans.table("chat")).keys() != standing(first).keys())
        assert owning.end(signal.SIGKILL) == -signal.SIGKILL
        owning.start()
        report("killed in a change to its end", seconds_until(lambda: served(plans), within=90))
        assert standing(plans.table("chat")).keys() != standing(first).keys()
    assert requests_to_pods_that_were_not_ready(history) == []
    assert [wrong for _, _, wrong in tables(history, "chat-routing") if wrong] == []
    assert plans.get("deployment", "foreign") == foreign
    assert owning.is_running()


def test_a_change_whose_pods_never_start_is_taken_back(
    plans: Plans, owning: Operator, nodes: Nodes, report: Callable[[str, float], None]
) -> None:
    """The last whole table serves again, the plan says why, and is not tried again at once."""
    begin(nodes, nodes.names(4))
    eventually(lambda: state(owning, "usable") == 4)
    store_template(plans)
    plans.apply("chat", managed(nodes, 211, readySeconds=READY_SECONDS))
    eventually(lambda: served(plans), within=60)
    first = plans.table("chat")["content"]
    with recorded(Api.of(plans.cluster), plans.namespace, History(), (TABLE, POD)) as history:
        store_template(plans, starts_in="1h")
        plans.apply("chat", managed(nodes, 20, readySeconds=READY_SECONDS))
        eventually(lambda: plans.table("chat")["content"] != first, within=20)
        eventually(lambda: plans.table("chat")["content"]["islands"] != first["islands"], within=20)
        store_template(plans)
        back = seconds_until(lambda: plans.table("chat")["content"] == first, within=60)
        report("pods that never start to the table before", back)
        eventually(lambda: plans.ready("chat")[:2] == ("False", "PodsNotReady"), within=10)
        assert "RolledBack" in event_reasons(plans)
        eventually(lambda: pods(plans) == standing(plans.table("chat")), within=10)
    assert requests_to_pods_that_were_not_ready(history) == []

    plans.patch("chat", {"priority": 1})
    eventually(lambda: served(plans), within=60)
    assert plans.table("chat")["content"] != first
    assert owning.is_running()


def test_a_foreign_workload_and_a_quota_stop_it(
    plans: Plans, owning: Operator, nodes: Nodes
) -> None:
    begin(nodes, nodes.names(4))
    eventually(lambda: state(owning, "usable") == 4)
    store_template(plans)
    plans.apply("chat", managed(nodes, 211))
    eventually(lambda: served(plans), within=60)
    table, own = plans.table("chat"), plans.get("deployments", "-l=archipelago.dev/plan=chat")

    plans.apply("more", small(islands=MANAGED))
    eventually(lambda: plans.ready("more")[:2] == ("False", "QuotaExceeded"), within=20)
    assert plans.get("deployments", "-l=archipelago.dev/plan=more") == {}
    plans.kubectl("delete", "splan", "more")

    name = own["items"][0]["metadata"]["name"]
    plans.kubectl("delete", "deployment", name, "--cascade=orphan")
    plans.kubectl("create", "deployment", name, "--image=foreign", "--replicas=0")
    foreign = plans.get("deployment", name)
    plans.patch("chat", {"priority": 1})
    eventually(
        lambda: plans.conditions("chat")["IslandsReady"]["reason"] == "NameConflict", within=40
    )
    assert plans.get("deployment", name) == foreign
    assert plans.table("chat")["content"] == table["content"]
    plans.kubectl("delete", "deployment", name)
