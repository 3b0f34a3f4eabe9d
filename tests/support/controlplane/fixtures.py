"""pytest fixtures: a cluster for the whole session, a namespace for each test.

Each xdist worker has a control plane of its own: a test may then stop its API server without
disturbing the tests of the other workers, and no worker's end can take another's server away.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.errors import ControlPlaneError
from tests.support.controlplane.kind import kind_cluster
from tests.support.controlplane.plane import ControlPlane

CRDS = Path(__file__).parents[3] / "crds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--kind``."""
    parser.addoption(
        "--kind",
        action="store_true",
        default=os.environ.get("KIND") == "1",
        help="run cluster tests on a kind cluster (also: KIND=1 in the environment); not with -n",
    )


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster with our custom resource definitions: the control plane, or kind where asked."""
    if not request.config.getoption("kind"):
        yield request.getfixturevalue("controlplane")
        return
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("there is one kind cluster: run KIND=1 without -n", pytrace=False)
    try:
        with kind_cluster(tmp_path_factory.mktemp("kind")) as kind:
            kind.install(_crds())
            yield kind
    except ControlPlaneError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def controlplane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """Our own control plane, for tests that stop its parts or read its audit log."""
    if request.config.getoption("kind"):
        pytest.skip("needs a control plane of our own: kind's API server is not ours to stop")
    with _started() as plane:
        yield plane


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A new namespace, deleted after the test."""
    with cluster.namespace() as name:
        yield name


def _started() -> ControlPlane:
    """A control plane, or the failure of every test that needs it, with the reason alone."""
    try:
        return ControlPlane.start(manifests=_crds())
    except ControlPlaneError as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


def _crds() -> list[Path]:
    return sorted(CRDS.glob("*.yaml"))
