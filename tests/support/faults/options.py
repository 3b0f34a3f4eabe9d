"""``--faults``: every scenario at its full length; registered by tests/conftest.py."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--faults``."""
    parser.addoption(
        "--faults",
        action="store_true",
        help="tests/faults: every scenario, at full length (17 minutes)",
    )
