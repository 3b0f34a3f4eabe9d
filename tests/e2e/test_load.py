"""Many plans, idle plans, hostile plans, changes: the phases of ``make soak``, scaled down."""

import pytest

from benchmarks.soak.api import Administrator
from benchmarks.soak.phases import Place, attack, burst, idle, unrest
from benchmarks.soak.probe import Probe, slope
from tests.support.controlplane import Cluster, ControlPlane
from tests.support.controlplane.api import Api
from tests.support.e2e.operators import Operator, running

pytestmark = pytest.mark.cluster

PLANS = 40
HOSTILE = 6
LIMIT = 1 + 2 + 1
"""Seconds that a hostile plan takes at most: its own limit, the grace, and what a kill takes."""


def test_many_plans_idle_plans_hostile_plans_and_changes(
    controlplane: ControlPlane, cluster: Cluster, prepared: Operator, namespace: str
) -> None:
    """B14, B16 and B40, with figures of this machine beside what else it does."""
    with cluster.namespace() as other:
        prepared.settings = {"ARCHIPELAGO_NAMESPACES": f"{namespace},{other}"}
        place = Place(Administrator(Api.of(cluster)), controlplane, prepared, namespace, other)
        with running(prepared), Probe(prepared, every=0.5) as probe:
            first = burst(place, PLANS)
            rest = idle(place, 20)  # lists for gaps come all at once
            attacked = attack(place, HOSTILE, 6)
            unrested = unrest(place, 5)
    print(f"\n{first}\n{rest}\n{attacked}\n{unrested}")  # noqa: T201
    assert first.all_ready - first.planning / 2 <= 60
    assert first.p99 <= 5 * first.p50
    assert rest.writes == 0
    assert rest.requests_per_second <= 1
    assert attacked.longest <= LIMIT
    assert attacked.beside <= 2 * attacked.alone + 2  # seconds for a machine that is shared
    assert len(probe.samples) > 10
    assert max(sample.rss_mib for sample in probe.samples) < 400


def test_growth_is_per_hour() -> None:
    assert slope([(0, 10), (1800, 11), (3600, 12)]) == pytest.approx(2)
    assert slope([(0, 10)]) == 0
