"""B10: a wall clock that is wrong, or set while the operator runs, changes nothing but a probe."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.controlplane import eventually
from tests.e2e.operators import Operator, Plans, running, small

pytestmark = pytest.mark.cluster

HOUR = 3600
SHIM = Path(__file__).parent / "clockshift.c"


class Clock:
    """The wall clock of the processes that ``settings`` are given to."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: the wall clock of a process is shifted by a library")
        library = folder / "clockshift.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SHIM], check=True)
        self._file = folder / "shift"
        self.settings = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Ahead by so much from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def shifted(prepared: Operator, clock: Clock) -> Operator:
    """An operator, not started, that looks at every plan anew five times a second."""
    prepared.settings = {
        **prepared.settings, **clock.settings, "ARCHIPELAGO_RESYNC_SECONDS": "0.2"
    }  # fmt: skip
    return prepared


def traces(plans: Plans, operator: Operator) -> dict[str, object]:
    """Everything by which a re-plan, a write or a flap would show."""
    plan = plans.plan("chat")
    return {
        "version": plan["metadata"]["resourceVersion"],
        "since": [item["lastTransitionTime"] for item in plan["status"]["conditions"]],
        "table": plans.get("configmap", "chat-routing")["metadata"]["resourceVersion"],
        "events": len(plans.events("chat")),
        "writes": operator.metric("writes_total"),
        "plannings": operator.metric("plannings_total"),
    }


def looked_again(operator: Operator, times: int) -> None:
    """Wait until every plan was looked at so often."""
    before = operator.metric("resyncs_total")
    eventually(lambda: operator.metric("resyncs_total") >= before + times, within=30)


def test_a_step_of_the_wall_clock_is_told_and_changes_nothing(
    shifted: Operator, clock: Clock, plans: Plans
) -> None:
    with running(shifted) as operator:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        looked_again(operator, 2)
        before = traces(plans, operator)

        for step, direction in ((HOUR, "forward"), (-HOUR, "back")):
            clock.set(step)
            status, said = operator.answer("/healthz")
            assert status == 503
            assert said.startswith(f"the wall clock went {direction} by 36")
            assert said == f"{said.strip()}\n"
            assert abs(operator.metric("clock_skew_seconds") - step) < 1
            looked_again(operator, 5)
            assert traces(plans, operator) == before

        clock.set(240)
        assert operator.answer("/healthz") == (200, "ok\n")
        clock.set(-HOUR)
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=15)
        looked_again(operator, 3)
        settled = traces(plans, operator)
        looked_again(operator, 3)
        assert traces(plans, operator) == settled
        assert operator.is_running()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_an_operator_whose_wall_clock_is_an_hour_wrong_writes_nothing_anew(
    step: int, shifted: Operator, clock: Clock, plans: Plans
) -> None:
    """Started anew with the wrong clock, which it cannot know: a served plan stays as it is."""
    with running(shifted) as operator:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        looked_again(operator, 2)
        before = traces(plans, operator)
    clock.set(step)
    with running(shifted) as operator:
        looked_again(operator, 5)
        after = traces(plans, operator)
        assert operator.answer("/healthz") == (200, "ok\n")
    # It counts its writes from 0; one planning of the inputs that it knows nothing of is allowed.
    counted = {"writes": 0.0, "plannings": after["plannings"]}
    assert after == before | counted
    assert after["plannings"] in (0.0, 1.0)
