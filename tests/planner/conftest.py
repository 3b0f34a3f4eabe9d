"""Fixtures for the planner's tests."""

from pathlib import Path

import pytest

from archipelago.perfmodel.workload.traces import Trace, read_trace
from tests.support.planner.command import Runner


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Return a function that runs ``archipelago`` with arguments."""
    return Runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def traces() -> dict[str, Trace]:
    """Return the traces of conversations and of code that Azure published."""
    folder = Path(__file__).parents[2] / "../shared/data/traces/azure_2023"
    if not folder.exists():
        pytest.skip("../shared/data is absent")
    return {
        name: read_trace(folder / f"AzureLLMInferenceTrace_{name}.csv") for name in ("conv", "code")
    }
