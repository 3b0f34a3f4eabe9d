"""The operator starts without libraries that it never runs, and with all that it does."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "scipy", "requests", "kubernetes.client", "kubernetes_validate"}


def imported(*modules: str) -> set[str]:
    """Return which of the heavy libraries a new process has after importing these in order."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.split())


@pytest.mark.parametrize("module", ["archipelago.operator.__main__", "archipelago.operator.app"])
def test_the_operator_starts_without_numpy_and_the_synchronous_client(module: str) -> None:
    assert imported(module) == set()


def test_the_whole_client_can_be_imported_before_and_after() -> None:
    operator = "archipelago.operator.cluster.client"
    assert "kubernetes.client" in imported("kubernetes.client", operator)
    assert "kubernetes.client" in imported(operator, "kubernetes.client")
