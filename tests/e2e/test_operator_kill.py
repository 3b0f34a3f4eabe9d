"""B1: killed before or after any write, the operator ends up where it would have been anyway."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import Cluster, eventually
from tests.e2e.operators import Operator, Plans, small
from tests.e2e.proxy import Cut, Proxy, proxied

pytestmark = pytest.mark.cluster

QUIET = 1.0
WRITES = 8  # of one life: early status, table, final status, event; and the same for the edit


class Bench:
    """One operator behind a proxy, killed as a test says and started again at once."""

    def __init__(self, operator: Operator, proxy: Proxy, plans: Plans) -> None:
        self.operator = operator
        self.proxy = proxy
        self.plans = plans
        self.kills = 0

    def kill_at(self, number: int, *, before: bool) -> None:
        """Let the operator die at that write, once."""

        def cut(current: int) -> None:
            if current == number and self.kills == 0:
                self.kills += 1
                self.operator.end(signal.SIGKILL)
                raise Cut

        if before:
            self.proxy.before = cut
        else:
            self.proxy.after = cut

    def live(self, name: str) -> Iterator[dict[str, Any]]:
        """Create, edit and delete a plan; gives what is stored at rest after the first two."""
        self.plans.apply(name, small())
        yield self.settled(name, generation=1)
        self.plans.patch(name, {"budgetPerHour": "8"})
        yield self.settled(name, generation=2)
        self.plans.kubectl("delete", "splan", name)

    def settled(self, name: str, generation: int) -> dict[str, Any]:
        """Wait for the end of the change, then for a while without a write."""
        eventually(lambda: self._is_ready(name, generation), within=40)
        before = len(self.proxy.writes)
        time.sleep(QUIET)
        late = [line for line in self.proxy.writes[before:] if "/events" not in line]
        assert late == [], "writes after the plan was Ready"
        table = self.plans.table(name)
        assert validate_table(table) == []
        conditions = self.plans.conditions(name).values()
        return {
            "content": table["content"],
            "generation": table["identity"]["generation"],
            "sequence": table["identity"]["sequence"],
            "hash": self.plans.plan(name)["status"]["summary"]["contentHash"],
            "conditions": sorted(
                (c["type"], c["status"], c["reason"], c["observedGeneration"]) for c in conditions
            ),
        }

    def _is_ready(self, name: str, generation: int) -> bool:
        if not self.operator.is_running():
            self.operator.begin()
        return self.plans.ready(name) == ("True", "Published", generation)


@pytest.fixture
def bench(cluster: Cluster, prepared: Operator, plans: Plans, tmp_path: Path) -> Iterator[Bench]:
    with proxied(cluster, prepared.kubeconfig, tmp_path) as (proxy, kubeconfig):
        prepared.kubeconfig = kubeconfig
        prepared.settings = {**prepared.settings, "ARCHIPELAGO_PLANNERS": "1"}
        prepared.start()
        yield Bench(prepared, proxy, plans)
        if prepared.is_running():
            prepared.end()


def test_killed_at_any_write_it_ends_up_the_same(bench: Bench) -> None:
    undisturbed = list(bench.live("undisturbed"))
    assert len(bench.proxy.writes) == WRITES, bench.proxy.writes

    for number in range(1, WRITES + 1):
        for before in (True, False):
            bench.proxy.reset()
            bench.kills = 0
            bench.kill_at(number, before=before)
            name = f"killed-{'before' if before else 'after'}-{number}"

            ends = list(bench.live(name))

            assert bench.kills == 1, f"{name}: no write {number}"
            assert [_comparable(end, name) for end in ends] == [
                _comparable(end, "undisturbed") for end in undisturbed
            ], name
            # A sequence that was promised before the kill may be skipped, but none comes twice.
            assert 1 <= ends[0]["sequence"] < ends[1]["sequence"] <= 3
            objects = [line for line in bench.proxy.writes if "/events" not in line]
            # Three writes per change; after a kill one more promise, and what was lost once more.
            assert len(objects) <= 6 + 2, objects


def test_a_table_is_never_seen_to_go_back(bench: Bench) -> None:
    """I4 and I3, read at every version while the operator is killed again and again."""
    seen: list[tuple[int, int]] = []
    for generation, budget in enumerate(("8", "10", "12", "14"), start=1):
        bench.proxy.reset()
        bench.kills = 0
        bench.kill_at(2 + generation % 2, before=generation % 2 == 0)
        bench.plans.apply("chat", small(budgetPerHour=budget))
        deadline = time.monotonic() + 40
        while bench.plans.ready("chat") != ("True", "Published", generation):
            assert time.monotonic() < deadline
            if not bench.operator.is_running():
                bench.operator.begin()
            _, _, ready = bench.plans.ready("chat")
            identity = bench.plans.table("chat").get("identity")
            if identity:
                assert identity["generation"] >= ready or not ready
                seen.append((identity["generation"], identity["sequence"]))

    assert seen == sorted(seen)


def _comparable(end: dict[str, Any], name: str) -> dict[str, Any]:
    """The end state without the plan's own name and the sequence."""
    text = json.dumps(end | {"sequence": 0}, sort_keys=True).replace(name, "NAME")
    content: dict[str, Any] = json.loads(text)
    return content
