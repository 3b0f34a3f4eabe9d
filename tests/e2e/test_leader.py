"""Two replicas: one leads by the Lease, the other stands by and takes over."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from archipelago.operator.cluster.lease import Lease, lease_name, read_lease, read_strategies
from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.e2e.operators import HOME, Operator, Plans, running, seconds_until, small

pytestmark = pytest.mark.cluster

KILLED, GRACEFUL = 15.0, 2.0
"""Bars of a takeover [s]."""


@pytest.fixture
def other(prepared: Operator, operator: Operator) -> Iterator[Operator]:
    """A second replica, which stands by."""
    eventually(lambda: operator.metric("leader") == 1)
    log = prepared.log.with_name("other.log")
    with running(replace(operator, log=log, process=None)) as started:
        yield started


def the_lease(cluster: Cluster, plans: Plans) -> Lease:
    name = lease_name((plans.namespace,))
    return read_lease(
        Api.of(cluster)("GET", f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/{name}")
    )


def test_the_standby_is_ready_and_silent_and_takes_over_after_a_kill(
    cluster: Cluster,
    plans: Plans,
    operator: Operator,
    other: Operator,
    report: Callable[[str, float], None],
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    assert other.is_ready()
    assert [other.metric(name) for name in ("leader", "writes_total", "plannings_total")] == [0] * 3
    assert 'plan="chat"' not in other.get("/metrics")
    assert the_lease(cluster, plans).holder == "operator"
    assert "exact" in read_strategies(the_lease(cluster, plans))

    operator.end(signal.SIGKILL)
    report("takeover after kill -9", seconds_until(lambda: other.metric("leader") == 1, KILLED))
    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 2))
    lease = the_lease(cluster, plans)
    assert (lease.holder, lease.transitions) == ("other", 1)
    messages = [line["message"] for line in other.lines()]
    assert "leading: this replica plans and writes" in messages


def test_a_replica_that_ends_gives_the_lead_away(
    plans: Plans, operator: Operator, other: Operator, report: Callable[[str, float], None]
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    assert operator.process is not None
    operator.process.send_signal(signal.SIGTERM)
    report("takeover after SIGTERM", seconds_until(lambda: other.metric("leader") == 1, GRACEFUL))
    assert operator.process.wait(30) == 0
    assert other.metric("writes_total") == 0  # what is stored is right


def test_a_container_that_is_started_again_goes_on_with_its_lease(
    plans: Plans, operator: Operator
) -> None:
    plans.apply("chat", small())
    plans.wait_ready("chat")
    operator.end(signal.SIGKILL)
    operator.start()
    assert seconds_until(lambda: operator.metric("leader") == 1, within=5) < 5


def test_a_frozen_leader_writes_nothing_when_it_goes_on(
    plans: Plans, operator: Operator, other: Operator
) -> None:
    """With a plan that is edited before, meanwhile and after."""
    plans.apply("chat", small())
    plans.wait_ready("chat")
    assert operator.process is not None
    operator.process.send_signal(signal.SIGSTOP)
    try:
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: other.metric("leader") == 1, within=KILLED)
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2))
        plans.patch("chat", {"budgetPerHour": "10"})
    finally:
        operator.process.send_signal(signal.SIGCONT)
    eventually(lambda: plans.ready("chat") == ("True", "Published", 3))
    time.sleep(2)
    before = operator.lines()
    assert operator.metric("leader") == 0
    stored = [line for line in before if line["message"].startswith("Write")]
    assert {line["generation"] for line in stored} == {1}
    assert "not leading any more: this replica stands by" in [line["message"] for line in before]
