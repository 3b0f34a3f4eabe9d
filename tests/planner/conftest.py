"""Fixtures for the planner's tests."""

import pytest

from tests.support.planner.command import Runner


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Return a function that runs ``archipelago`` with arguments."""
    return Runner(monkeypatch, capsys)
