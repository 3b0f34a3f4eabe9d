"""Whatever fails about one object costs that object: a real process with a defect in each place."""

import random
import sys
import time
from pathlib import Path

import pytest

from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import small
from tests.support.faults.bench import Bench, prepared
from tests.support.faults.defective import PLACES, error_of
from tests.support.faults.history import PLAN

pytestmark = pytest.mark.cluster

COMMAND = (sys.executable, "-P", "-m", "tests.support.faults.defective")
ROOT = Path(__file__).parents[2]
CANARY = 5.0


@pytest.mark.parametrize("seed", [1, 2])
def test_a_defect_costs_the_object_it_is_met_with(
    cluster: Cluster, account: Path, tmp_path: Path, seed: int
) -> None:
    """Every ill plan says so in a condition; the process, the canary and full lists go on."""
    drawn = random.Random(seed)  # noqa: S311
    ill = [f"{place}-{drawn.randrange(10**6)}" for place in PLACES]
    settings = {"PYTHONPATH": str(ROOT), "ARCHIPELAGO_RESYNC_SECONDS": "5"}
    with prepared(cluster, account, tmp_path, settings) as bench:
        bench.operator.command = COMMAND
        bench.operator.start()
        bench.user.create("canary", small())
        bench.rest("canary", 1)
        bench.user.api("POST", bench.user.tables, _stranger(f"table-{seed}"))
        for name in ill:
            bench.user.create(name, small())
        for name in ill:
            figures = name.startswith("figures")  # no reason to stop
            bench.rest(name, 1, "Published" if figures else "Quarantined", within=20)
        lists = bench.operator.metric("resyncs_total")
        taken = [edit(bench, generation) for generation in range(2, 7)]
        eventually(lambda: bench.operator.metric("resyncs_total") >= lists + 2, within=40)

        for name in ill:
            plan = bench.history.last(PLAN, name)
            assert plan is not None
            said = plan.conditions["Ready"]["message"]
            if plan.ready[1] == "Quarantined":
                assert error_of(name).__name__ in said
                assert "Traceback" not in said
            assert set(plan.conditions) >= {"Ready", "Planned", "Published", "Suspended"}
            writes = [v for v in bench.history.of(name).ordered(PLAN) if v.change == "MODIFIED"]
            assert len(writes) <= 12, f"{name}: {len(writes)} writes"
        assert bench.operator.metric("quarantines_total") >= len(ill)
        assert sorted(taken)[2] <= CANARY
        named = {line.get("object") for line in bench.operator.lines()}
        assert {f"{bench.user.namespace}/{name}" for name in ill} <= named
        bench.judge("canary")


def edit(bench: Bench, generation: int) -> float:
    """Seconds of an edit of the plan that is well."""
    started = time.monotonic()
    bench.user.edit("canary", {"budgetPerHour": f"{8 + generation / 10:.1f}"})
    return bench.rest("canary", generation) - started


def _stranger(name: str) -> dict[str, object]:
    """A ConfigMap with our label whose reader fails."""
    labels = {"app.kubernetes.io/managed-by": "archipelago"}
    return {"metadata": {"name": name, "labels": labels}, "data": {}}
