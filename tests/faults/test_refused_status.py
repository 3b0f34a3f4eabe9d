"""A status write that is refused: 404 reads the plan again at once, 422 becomes a condition."""

import pytest

from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench
from tests.support.faults.history import PLAN
from tests.support.faults.rules import Call, Exchange, Rule, refuse

pytestmark = pytest.mark.cluster
SOON = 20.0
"""Seconds, far less than the full list (300)."""


def is_status(call: Call) -> bool:
    """Whether it writes a plan's status."""
    return call.is_write and call.path.endswith("/status")


def test_a_status_that_was_not_found_is_written_again(bench: Bench) -> None:
    name = "refused-404"
    bench.user.create(name, small())
    bench.rest(name, 1)
    before = len(bench.proxy.calls)

    rule = Rule(is_status, refuse(404), times=3)
    with bench.proxy.rule(rule):
        bench.user.edit(name, {"budgetPerHour": "8"})
        bench.rest(name, 2, within=SOON)
    assert rule.used == 3
    reads = [call for call in bench.proxy.calls[before:] if call.method == "GET"]
    assert any(call.kind == PLAN and not call.is_watch for call in reads)
    bench.judge(name)


def test_a_status_that_the_schema_refuses_becomes_a_condition(bench: Bench) -> None:
    """Each status is refused that says more than that it was refused."""

    def unless_short(exchange: Exchange) -> None:
        if b"StatusRefused" in exchange.body:
            exchange.pass_on()
        else:
            refuse(422)(exchange)

    name = "refused-422"
    bench.user.create(name, small())
    bench.rest(name, 1)
    with bench.proxy.rule(Rule(is_status, unless_short, times=None)):
        bench.user.edit(name, {"budgetPerHour": "8"})
        bench.rest(name, 2, "StatusRefused", within=SOON)
        last = bench.history.last(PLAN, name)
        assert last is not None
        ready = next(c for c in last.body["status"]["conditions"] if c["type"] == "Ready")
        assert "made up by a test" in ready["message"]
        assert 'quarantines_total{kind="Status"}' in bench.operator.answer("/metrics")[1]
    bench.rest(name, 2, within=SOON)
    bench.judge(name)
