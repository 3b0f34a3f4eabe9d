"""The operator of a test: its account, its namespace, its process or, on kind, its image."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.controlplane import Cluster, eventually
from tests.support.controlplane.api import Api
from tests.support.controlplane.kind import load
from tests.support.e2e.nodes import Nodes, nodes_of
from tests.support.e2e.operators import Operator, Plans, grant, running
from tests.support.prometheus.server import Prometheus


@pytest.fixture(scope="session")
def account(cluster: Cluster) -> Path:
    return grant(cluster)


@pytest.fixture
def plans(cluster: Cluster, namespace: str) -> Plans:
    return Plans(cluster, namespace)


@pytest.fixture
def prepared(account: Path, plans: Plans, tmp_path: Path) -> Operator:
    """An operator for the test's namespace that is not started yet.

    One planner process instead of three, which take longer to start than most of the tests.
    """
    settings = {"ARCHIPELAGO_NAMESPACES": plans.namespace, "ARCHIPELAGO_PLANNERS": "1"}
    return Operator(account, tmp_path / "operator.log", settings)


@pytest.fixture
def nodes(cluster: Cluster, namespace: str) -> Iterator[Nodes]:
    with nodes_of(Api.of(cluster), namespace) as made:
        yield made


@pytest.fixture
def operator(prepared: Operator) -> Iterator[Operator]:
    with running(prepared) as started:
        yield started


@pytest.fixture
def source(prometheus: Prometheus) -> dict[str, Any]:
    """A source of metrics by the name of main, as the administrator's file has it."""
    allowed = ["127.0.0.0/8"]  # no address of this machine is connected to unless that is said
    main = {"name": "main", "kind": "prometheus", "address": prometheus.url}
    return {**main, "allowAddresses": allowed}


@pytest.fixture
def observing(prepared: Operator, source: dict[str, Any], tmp_path: Path) -> Iterator[Operator]:
    """An operator that has a source of metrics by the name of main."""
    file = tmp_path / "sources.yaml"
    file.write_text(yaml.safe_dump({"sources": [source]}))
    settings = {**prepared.settings, "ARCHIPELAGO_SOURCES": str(file)}
    with running(replace(prepared, settings=settings)) as operator:
        yield operator


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note a measured figure; `pytest -s` and the JUnit report show it."""

    def note(what: str, figure: float, unit: str = "s") -> None:
        record_property(what, round(figure, 2))
        print(f"\n{what}: {figure:.2f} {unit}")  # noqa: T201

    return note


@pytest.fixture(scope="module")
def beside(
    cluster: Cluster, account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Plans, Operator]]:
    """A namespace whose operator serves many tests, one after the other: a start takes seconds."""
    with cluster.namespace() as namespace:
        settings = {"ARCHIPELAGO_NAMESPACES": namespace, "ARCHIPELAGO_PLANNERS": "1"}
        log = tmp_path_factory.mktemp("beside") / "operator.log"
        with running(Operator(account, log, settings)) as operator:
            yield Plans(cluster, namespace), operator


@pytest.fixture
def team(beside: tuple[Plans, Operator]) -> Iterator[Plans]:
    """Its plans: none at first. Afterwards the operator still runs and knows of none."""
    plans, operator = beside
    yield plans
    assert operator.is_running()
    plans.clear()
    eventually(lambda: 'plan="' not in operator.get("/metrics"), within=20)


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> Cluster:
    """A cluster whose nodes run pods."""
    if not request.config.getoption("kind"):
        pytest.skip("needs nodes: make e2e KIND=1")
    found: Cluster = request.getfixturevalue("cluster")
    return found


@pytest.fixture(scope="session")
def image(kind: Cluster) -> str:
    """The operator's image, on every node: what IMAGE names, as `make image` builds it."""
    del kind
    name = os.environ.get("IMAGE") or "archipelago-operator:0.1.0"
    docker = shutil.which("docker")
    assert docker, "no docker on the PATH"
    there = subprocess.run([docker, "image", "inspect", name], check=False, capture_output=True)
    if there.returncode:
        pytest.fail(f"Docker has no image {name}: make image IMAGE={name}", pytrace=False)
    load(name)
    return name
