"""The bench of a test; and the scenarios, played beside each other since they mostly wait."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.controlplane import Cluster, ControlPlane
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import grant
from tests.support.faults.bench import Bench, started
from tests.support.faults.scenarios import SCENARIOS
from tests.support.faults.stage import Outcome, Scenario, premiere

AT_ONCE = 6
ON_KIND = ("test_each_forgery_heals", "test_forged_shards_heal")
ELSEWHERE = (
    "on kind: a fault of the operator, or between it and an API server, is the same on any; "
    "`make test` plays it on a control plane of its own (here: with --faults)"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to our control plane what kind shows nothing new of."""
    if _elsewhere(config):
        here = Path(__file__).parent
        for item in items:
            if item.path.parent == here and not item.name.startswith(ON_KIND):
                item.add_marker(pytest.mark.skip(reason=ELSEWHERE))


def _elsewhere(config: pytest.Config) -> bool:
    return bool(config.getoption("kind") and not config.getoption("faults"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a scenario runs for all of them, or for those that are played scaled."""
    if "scenario" in metafunc.fixturenames:
        full, kind = metafunc.config.getoption("faults"), metafunc.config.getoption("kind")
        chosen = [
            scenario
            for scenario in SCENARIOS
            if (full or scenario.scaled) and not (kind and scenario.own_plane)
        ]
        metafunc.parametrize("scenario", chosen, ids=[scenario.id for scenario in chosen])


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether faults last as long as they really do."""
    return bool(request.config.getoption("faults"))


@pytest.fixture(scope="session")
def account(cluster: Cluster) -> Path:
    return grant(cluster)


@pytest.fixture(scope="module")
def bench(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """One operator for the tests of a module, each with plans of its own."""
    with started(cluster, account, tmp_path_factory.mktemp("bench")) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def _begun(request: pytest.FixtureRequest) -> None:
    """Scenarios are begun before the first test here; beside other processes only where needed.

    Which of those processes is given their test nobody knows: each would play all of them.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        request.getfixturevalue("plays")


@pytest.fixture(scope="session")
def plays(
    request: pytest.FixtureRequest, full: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Outcome]]]:
    """What each scenario that is tested showed; all are begun at once."""
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [spec.params["scenario"] for spec in specs if spec and "scenario" in spec.params]
    if not wanted or _elsewhere(request.config):
        yield {}
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    account: Path = request.getfixturevalue("account")
    rooms = {scenario.id: tmp_path_factory.mktemp(scenario.id) for scenario in wanted}

    def perform(scenario: Scenario) -> Outcome:
        room = rooms[scenario.id]
        if not scenario.own_plane:
            return premiere(scenario, cluster, account, room, full=full)
        with ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane:
            return premiere(scenario, plane, grant(plane), room, full=full)

    # The longest first.
    wanted.sort(key=lambda scenario: -scenario.lasts(full=full))
    with ThreadPoolExecutor(AT_ONCE * (2 if full else 1)) as pool:
        yield {scenario.id: pool.submit(perform, scenario) for scenario in wanted}
        pool.shutdown(cancel_futures=True)
