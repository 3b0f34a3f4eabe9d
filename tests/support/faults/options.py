"""``--faults``: every scenario at its full length; registered by tests/conftest.py."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--faults``."""
    parser.addoption(
        "--faults",
        action="store_true",
        help="tests/faults: every scenario, at full length (17 minutes)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of ``mark.full`` without ``--faults``."""
    if not config.getoption("faults"):
        rare = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=rare)
        items[:] = [item for item in items if item not in set(rare)]
