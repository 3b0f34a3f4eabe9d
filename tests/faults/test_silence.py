"""An API server that does not answer makes the operator not ready, and nothing else."""

from collections.abc import Callable

import pytest

from tests.support.controlplane import eventually
from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench
from tests.support.faults.rules import Call, Rule, hang

pytestmark = pytest.mark.cluster

NOTICED, BACK = 15.0, 6.0
"""Seconds of silence until /readyz is 503, and after its end until it is 200."""
SILENT: dict[str, Callable[[Call], bool]] = {
    "all": lambda call: not call.is_watch,
    "reads": lambda call: call.method == "GET" and not call.is_watch,
    "writes": lambda call: call.is_write,
}


@pytest.mark.parametrize("what", SILENT)
def test_silence_is_noticed_and_so_is_its_end(bench: Bench, what: str) -> None:
    name, operator = f"silent-{what}", bench.operator
    bench.user.create(name, small())
    bench.rest(name, 1)
    eventually(operator.is_ready)

    with bench.proxy.rule(Rule(SILENT[what], hang(NOTICED + 5), times=None)):
        bench.user.edit(name, {"budgetPerHour": "8"})  # leads to writes
        eventually(lambda: operator.answer("/readyz")[0] == 503, within=NOTICED)
        assert "the API server: no answer for" in operator.answer("/readyz")[1]
        assert operator.answer("/healthz") == (200, "ok\n")

    # What hangs already ends within 5 s of its own.
    eventually(operator.is_ready, within=5 + BACK)
    bench.rest(name, 2)
