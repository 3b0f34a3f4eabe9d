"""What all tests share: the cluster and Prometheus fixtures; and the order of the long files."""

from pathlib import Path

import pytest

pytest_plugins = [
    "tests.controlplane.fixtures",
    "tests.faults.options",
    "tests.prometheus.fixtures",
]

ROOT = Path(__file__).parents[1]
LONG = (
    "tests/faults/test_live_watches.py",
    "tests/e2e/test_operator_nodes.py",
    "tests/e2e/test_live_nodes.py",
    "tests/e2e/test_live_traffic.py",
    "tests/faults/test_live.py",
    "tests/faults/test_scenarios.py",
    "tests/e2e/test_operator.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_operator_shards.py",
    "tests/e2e/test_upgrade.py",
    "tests/e2e/test_operator_clock.py",
    "tests/e2e/test_operator_transitions.py",
)
"""Files of cluster tests that take about a minute, the longest first.

Processes that are given whole files would else begin one of these when nothing else is left.
"""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with them; the order inside of files stays."""
    place = {ROOT / name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))
