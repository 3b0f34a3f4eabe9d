"""pytest fixtures: promtool's path, and a real Prometheus for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prometheus.pages import Pages, served
from tests.support.prometheus.provision import Programs, PrometheusMissing, locate
from tests.support.prometheus.server import Prometheus, running


@pytest.fixture(scope="session")
def prometheus_programs() -> Programs:
    """The programs; the test is skipped with the remedy where they are not here."""
    try:
        return locate()
    except PrometheusMissing as error:
        reason = str(error)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def promtool(prometheus_programs: Programs) -> Path:
    """The path of promtool."""
    return prometheus_programs.promtool


@pytest.fixture
def prometheus(
    prometheus_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A server of this test's own: empty, with no target, ready."""
    with running(prometheus_programs, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A server of pages to be scraped."""
    with served() as found:
        yield found
