"""What the operator needs from the cluster: rights (B33), the definition (B30), watches (B4)."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.cluster.prerequisites import LEASE, NEEDED, PODS
from archipelago.operator.resources.names import Permission
from tests.support.controlplane import Cluster, ControlPlane, eventually
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import (
    ACCOUNT,
    Operator,
    Plans,
    grant,
    refused,
    running,
    seconds_until,
    small,
)
from tests.support.faults.proxy import proxied

pytestmark = pytest.mark.cluster

ROLE = "some-of-it"
ALL = (*NEEDED, *PODS, *LEASE)


def allow(plans: Plans, rights: set[Permission]) -> Path:
    """Grant the namespace's default account exactly that, there; returns its kubeconfig."""
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
        for right in sorted(rights)
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ROLE}}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": plans.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE}
    apply(plans, {**role, "kind": "Role", "rules": rules})
    apply(plans, {**role, "kind": "RoleBinding", "subjects": [account], "roleRef": reference})
    return plans.cluster.service_account_kubeconfig(plans.namespace, "default")


def apply(plans: Plans, manifest: dict[str, Any]) -> None:
    plans.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def named(operator: Operator) -> list[str]:
    """What the log says is missing, line by line."""
    return [line["message"] for line in operator.lines() if "missing right" in line["message"]]


@pytest.fixture
def lone(prepared: Operator) -> Iterator[Operator]:
    """An operator that is ended at the end, ready or not."""
    prepared.settings = {
        **prepared.settings,
        "ARCHIPELAGO_PLANNERS": "1",
        "ARCHIPELAGO_RESYNC_SECONDS": "1",
    }
    yield prepared
    if prepared.is_running():
        assert prepared.end(within=30) == 0  # without a list there is nothing to finish


@pytest.mark.parametrize("dropped", ALL, ids=lambda right: str(right).replace("/", " "))
def test_a_missing_right_is_named_and_nothing_ends(
    plans: Plans, lone: Operator, dropped: Permission
) -> None:
    lone.kubeconfig = allow(plans, set(ALL) - {dropped})
    plans.apply("chat", small())
    lone.begin()

    seconds = seconds_until(lambda: named(lone), within=30)

    print(f"\nwithout {dropped}: named after {seconds:.1f} s")  # noqa: T201
    missing = f"missing right: {dropped} in namespace {plans.namespace}"
    assert named(lone) == [f"{missing}; grant what deploy/base/rbac.yaml grants"]
    assert missing in lone.answer("/readyz")[1].splitlines()
    assert lone.answer("/readyz")[0] == 503
    assert lone.answer("/healthz") == (200, "ok\n")
    assert lone.metric("missing_rights") == 1
    time.sleep(1)
    assert lone.is_running()
    if dropped.resource == "configmaps" and dropped.verb in {"create", "patch"}:
        eventually(lambda: plans.ready("chat")[:2] == ("False", "WriteRefused"))
        message = plans.conditions("chat")["Published"]["message"]
        assert "configmaps" in message
        assert "{" not in message  # the server's sentence, not its whole response
    assert not [line for line in lone.lines() if "exception" in line]
    assert len(lone.lines()) < 40


def test_a_right_that_is_taken_away_is_noticed_and_one_that_comes_back_too(
    plans: Plans, lone: Operator
) -> None:
    lone.kubeconfig = allow(plans, set(ALL))
    with running(lone):
        plans.apply("chat", small())
        plans.wait_ready("chat")
        assert named(lone) == []
        allow(plans, set(ALL) - {Permission("list", "", "configmaps")})
        taken = seconds_until(lambda: named(lone), within=30)
        assert not lone.is_ready()

        allow(plans, set(ALL))
        back = seconds_until(lone.is_ready, within=30)

        print(f"\nnoticed after {taken:.1f} s, well again after {back:.1f} s")  # noqa: T201
        assert lone.metric("missing_rights") == 0
        assert [line["message"] for line in lone.lines()].count("every right is granted now") == 1


CRD = Path(__file__).parents[2] / "crds" / "archipelago.dev_servingplans.yaml"
ABSENT = (
    "servingplans.archipelago.dev (archipelago.dev/v1alpha1) is not installed; waiting until crds/ "
    "is applied"
)


@pytest.fixture(scope="module")
def bare(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of this module alone, without our definition."""
    if request.config.getoption("kind"):
        pytest.skip("needs a cluster without the definition, which is installed on kind")
    with ControlPlane.start() as plane:
        yield plane


@pytest.fixture
def waiting(bare: ControlPlane, tmp_path: Path) -> Operator:
    """An operator that is not started yet."""
    settings = {"ARCHIPELAGO_PLANNERS": "1", "ARCHIPELAGO_RESYNC_SECONDS": "86400"}
    return Operator(grant(bare), tmp_path / "operator.log", settings)


@pytest.fixture
def team(bare: ControlPlane) -> Iterator[Plans]:
    with bare.namespace() as name:
        yield Plans(bare, name)


def said(operator: Operator) -> list[str]:
    """Lines about the definition."""
    return [line["message"] for line in operator.lines() if "installed" in line["message"]]


def test_a_definition_that_comes_late_is_waited_for(
    bare: ControlPlane, team: Plans, waiting: Operator
) -> None:
    """The watches work without a resync, and so they do after the definition was away."""
    waiting.begin()
    eventually(lambda: said(waiting) == [ABSENT], within=15)
    time.sleep(5)
    assert said(waiting) == [ABSENT]
    assert "servingplans.archipelago.dev is not installed" in waiting.answer("/readyz")[1]
    assert waiting.answer("/healthz") == (200, "ok\n")

    bare.install([CRD])
    try:
        came = seconds_until(waiting.is_ready, within=15)
        team.apply("chat", small())
        team.wait_ready("chat", within=15)
        bare.kubectl("delete", "-f", CRD)
        eventually(lambda: said(waiting).count(ABSENT) == 2, within=15)
        bare.install([CRD])
        again = seconds_until(waiting.is_ready, within=15)
        team.apply("chat", small())
        back = seconds_until(lambda: team.ready("chat")[:2] == ("True", "Published"), within=60)

        print(f"\nready {came:.1f} s after the definition, then {again:.1f} s")  # noqa: T201
        print(f"plan made after the definition came back: Ready in {back:.1f} s")  # noqa: T201
        assert waiting.is_running()
        assert len(said(waiting)) == 4
        assert not [line for line in waiting.lines() if "exception" in line]
        assert len(waiting.lines()) < 60, waiting.log.read_text()
    finally:
        assert waiting.end() == 0


def newer() -> dict[str, Any]:
    """The definition as a later release may have it: more fields, one of them with a default."""
    definition: dict[str, Any] = yaml.safe_load(CRD.read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["brandNew"] = {"type": "string", "maxLength": 20, "default": "now"}
    spec["models"]["items"]["properties"]["colour"] = {"type": "string", "maxLength": 20}
    return definition


def test_fields_of_a_newer_definition_are_left_alone_and_named(
    bare: ControlPlane, team: Plans, waiting: Operator
) -> None:
    bare.install([CRD])
    with running(waiting):
        team.apply("old", small())
        team.wait_ready("old")
        content = team.table("old")["content"]
        bare.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(newer()))
        spec = small()
        spec["models"][0]["colour"] = "red"

        def seen() -> bool:
            """Watches that began before the change go on for a moment without the new fields."""
            team.kubectl("delete", "splan", "new", "--ignore-not-found")
            team.apply("new", spec)
            eventually(lambda: team.ready("new") == ("True", "Published", 1), within=60)
            return "unknown" in team.conditions("new")["Planned"]["message"]

        eventually(seen, within=60)
        for kind in ("Ready", "Planned"):
            message = team.conditions("new")[kind]["message"]
            assert "spec.brandNew, spec.models[0].colour" in message, message
        plan = team.plan("new")
        assert plan["spec"]["brandNew"] == "now"
        assert plan["spec"]["models"][0]["colour"] == "red"
        assert "colour" not in json.dumps(team.table("new"))
        team.kubectl("label", "splan", "old", "touched=yes")
        eventually(lambda: team.ready("old")[:2] == ("True", "Published"))
        assert team.table("old")["content"] == content


WATCHES = ("the watch of servingplans", "the watch of configmaps")
OUTAGE = 8.0
GONE = 10.0  # seconds without an account
MOST_REFUSED = 30


def test_an_outage_of_the_api_server_is_logged_once_for_each_watch(
    controlplane: ControlPlane, plans: Plans, operator: Operator
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    before = len(operator.lines())

    with controlplane.apiserver_stopped():
        time.sleep(OUTAGE)
    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=20)
    eventually(operator.is_ready)

    def said() -> Counter[tuple[str, str]]:
        lines = operator.lines()[before:]
        outages = [line for line in lines if line["logger"].endswith("operator.logs")]
        return Counter((line["level"], line["message"]) for line in outages)

    watched = {
        *(("WARNING", f"{watch} fails and is tried until it works") for watch in WATCHES),
        *(("INFO", f"{watch} works again") for watch in WATCHES),
    }
    # A watch may come back after the plan, which a full list finds.
    eventually(lambda: watched <= set(said()), within=15)
    # What else was asked for meanwhile is told once, too: a full list may have been due.
    assert set(said().values()) == {1}
    assert [line for line in operator.lines() if line["level"] == "ERROR"] == []
    assert not [line for line in operator.lines() if line["logger"].startswith("kopf")]
    assert max(map(len, operator.log.read_text().splitlines())) < 600


def test_a_watch_that_ends_in_an_error_is_started_again(
    cluster: Cluster, prepared: Operator, plans: Plans, tmp_path: Path
) -> None:
    """Kopf ends at any error but 410; the process goes on, with all of its watches (B4 in part)."""
    with proxied(cluster, prepared.kubeconfig, tmp_path) as (proxy, kubeconfig):
        prepared.kubeconfig = kubeconfig
        prepared.settings = {**prepared.settings, "ARCHIPELAGO_RESYNC_SECONDS": "86400"}
        proxy.watches.error = 504
        with running(prepared) as operator:
            back = seconds_until(lambda: operator.metric("watch_restarts_total") >= 2, within=30)
            proxy.watches.heal()
            plans.apply("chat", small())
            plans.wait_ready("chat", within=15)
            plans.kubectl("delete", "configmap", "chat-routing")
            eventually(lambda: plans.table("chat").get("identity", {}).get("sequence") == 2)

            print(f"\nstarted again twice within {back:.1f} s")  # noqa: T201
            assert operator.is_running()
            ended = [line for line in operator.lines() if "watches ended" in line["message"]]
            assert 2 <= len(ended) <= 3
            assert not [line for line in ended if "exception" in line]


def test_an_account_that_is_gone_is_not_asked_for_all_the_time(
    controlplane: ControlPlane, tmp_path: Path
) -> None:
    """At a 401 kopf reads the credentials anew and asks again at once, for ever."""
    del controlplane  # skipped on kind; it has one of its own, which it restarts
    manifests = sorted(CRDS.glob("*.yaml"))
    with ControlPlane.start(manifests=manifests) as plane, plane.namespace() as namespace:
        grant(plane)
        plans = Plans(plane, namespace)
        plans.kubectl("create", "serviceaccount", "short-lived")
        whom = f"--serviceaccount={namespace}:short-lived"
        plans.kubectl("create", "rolebinding", "short-lived", f"--clusterrole={ACCOUNT}", whom)
        kubeconfig = plane.service_account_kubeconfig(namespace, "short-lived")
        settings = {"ARCHIPELAGO_NAMESPACES": namespace, "ARCHIPELAGO_LEADER_ELECTION": "Off"}
        with running(Operator(kubeconfig, tmp_path / "operator.log", settings)) as operator:
            plans.kubectl("delete", "serviceaccount", "short-lived")
            with plane.apiserver_stopped():  # which ends the watches that it let in before
                pass
            before = refused(plane)
            time.sleep(GONE)
            times = refused(plane) - before

            print(f"\n{times:g} refused requests in {GONE:g} s")  # noqa: T201
            assert 1 <= times <= MOST_REFUSED
            assert operator.is_running()
