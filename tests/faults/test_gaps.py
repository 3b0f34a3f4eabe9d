"""Events that something on the way drops for good: found by versions, long before a resync."""

import time

import pytest

from tests.support.controlplane import eventually
from tests.support.e2e.nodes import nodes_of
from tests.support.e2e.operators import Plans, small
from tests.support.faults.bench import Bench
from tests.support.faults.ground import live_spec, nodes_under

pytestmark = pytest.mark.cluster

NOTICED = 60.0
"""Seconds until a lost event is made good; the full list comes after 300 s."""


def test_what_a_watch_never_tells_is_noticed_within_a_minute(bench: Bench) -> None:
    """Plans and tables that are created, edited and deleted; nodes that go and that change."""
    user, operator = bench.user, bench.operator
    plans = Plans(bench.cluster, user.namespace)
    with nodes_of(bench.user.api, user.namespace) as nodes:
        names = nodes.names(4)
        nodes.create(names)
        for name in ("edited", "deleted", "bare"):
            user.create(name, small())
        user.create("live", live_spec(nodes))
        for name in ("edited", "deleted", "bare", "live"):
            bench.rest(name, 1)
        eventually(lambda: nodes_under(plans.table("live")) == {*names})
        try:
            bench.proxy.watches.drops = lambda _event: True
            began = time.monotonic()
            user.edit("edited", {"budgetPerHour": "8"})
            user.create("created", small())
            user.delete("deleted")
            user.delete_table("bare")
            nodes.delete(names[:1])
            nodes.report(names[1], 1, ready="Unknown")
            bench.rest("edited", 2, within=NOTICED)
            bench.rest("created", 1, within=NOTICED)
            eventually(lambda: plans.table("bare") != {}, within=NOTICED)
            eventually(lambda: nodes_under(plans.table("live")) <= {*names[2:]}, within=NOTICED)
            eventually(lambda: 'plan="deleted"' not in operator.get("/metrics"), within=NOTICED)
            assert time.monotonic() - began <= NOTICED
            assert not [line for line in operator.lines() if "set aside" in line["message"]]
        finally:
            bench.proxy.watches.heal()
