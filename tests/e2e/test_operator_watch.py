"""Watches that break: what the operator says about it, and that it goes on."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.controlplane import Cluster, ControlPlane, eventually
from tests.controlplane.fixtures import CRDS
from tests.e2e.operators import (
    ACCOUNT,
    Operator,
    Plans,
    grant,
    refused,
    running,
    seconds_until,
    small,
)
from tests.faults.proxy import proxied

pytestmark = pytest.mark.cluster

WATCHES = ("the watch of servingplans", "the watch of configmaps")
OUTAGE = 8.0
GONE = 10.0  # seconds without an account
MOST_REFUSED = 40  # requests in that time; without a pause it is 35 each second


def test_an_outage_of_the_api_server_is_told_once_a_watch(
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
        told = [line for line in operator.lines()[before:] if line["logger"].endswith("outages")]
        return Counter((line["level"], line["message"]) for line in told)

    watched = {
        *(("WARNING", f"{watch}: fails, and is tried until it works") for watch in WATCHES),
        *(("INFO", f"{watch}: works again") for watch in WATCHES),
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
        settings = {"ARCHIPELAGO_NAMESPACES": namespace}
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
