"""What all tests share: cluster and Prometheus fixtures; how many processes, and their order."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no-clock", deadline=None)  # how long an example takes is the machine's
settings.load_profile("no-clock")

pytest_plugins = [
    "tests.support.controlplane.fixtures",
    "tests.support.faults.options",
    "tests.support.prometheus.fixtures",
]

ROOT = Path(__file__).parents[1]
LONG = (
    "tests/scenarios/test_live.py",
    "tests/faults/test_live_watches.py",
    "tests/e2e/test_lifecycle.py",
    "tests/e2e/test_nodes.py",
    "tests/e2e/test_live.py",
    "tests/e2e/test_process.py",
    "tests/faults/test_live.py",
    "tests/faults/test_scenarios.py",
    "tests/e2e/test_prerequisites.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_shards.py",
    "tests/e2e/test_upgrade.py",
)
"""Files that take about a minute or more, the longest first.

One process would else begin one of these when nothing is left for the others.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: three processes for two processors, since some tests wait."""
    return max(2, 3 * (os.cpu_count() or 1) // 2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with them; the order inside of files stays."""
    place = {ROOT / name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))
