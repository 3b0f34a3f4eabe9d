"""The operator of a test: its account, its namespace, its process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import Cluster
from tests.e2e.operators import Operator, Plans, grant, running


@pytest.fixture(scope="session")
def account(cluster: Cluster) -> Path:
    return grant(cluster)


@pytest.fixture
def plans(cluster: Cluster, namespace: str) -> Plans:
    return Plans(cluster, namespace)


@pytest.fixture
def prepared(account: Path, plans: Plans, tmp_path: Path) -> Operator:
    """An operator for the test's namespace that is not started yet."""
    settings = {"ARCHIPELAGO_NAMESPACES": plans.namespace}
    return Operator(account, tmp_path / "operator.log", settings)


@pytest.fixture
def operator(prepared: Operator) -> Iterator[Operator]:
    with running(prepared) as started:
        yield started
