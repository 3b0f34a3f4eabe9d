"""A window of the schedule in real time: its plan is there before it begins, and goes after it."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.test_live import event_reasons
from tests.support.controlplane import eventually
from tests.support.e2e.operators import Operator, Plans
from tests.support.operator.fields import BASES

pytestmark = pytest.mark.cluster

AHEAD = timedelta(seconds=15)
"""From now until the plan of the window is due."""


def cost(plans: Plans) -> str:
    """What the reported plan costs [$/h]; empty before the first one."""
    return str(plans.plan("chat").get("status", {}).get("summary", {}).get("costPerHour", ""))


def traffic(plans: Plans) -> dict[str, str]:
    found: dict[str, str] = plans.plan("chat")["status"]["traffic"]
    return found


@pytest.mark.slow
def test_the_plan_of_a_window_comes_before_it_and_goes_after_it(
    plans: Plans, operator: Operator
) -> None:
    """Eight times 20 req/s for a minute; three minutes in all."""
    now = datetime.now(UTC)
    begins = now.replace(second=0, microsecond=0) + timedelta(minutes=2)
    window = {"start": f"{begins:%M %H} * * *", "durationSeconds": 60, "factor": "8"}
    lead = int((begins - now - AHEAD).total_seconds())
    schedule = {"schedule": [window], "leadSeconds": lead}
    plans.apply("chat", {**BASES["histogram"], "traffic": schedule})
    plans.wait_ready("chat")
    assert cost(plans) == "12.00"
    assert traffic(plans)["factor"] == "1"

    eventually(lambda: cost(plans) == "25.00", within=AHEAD.total_seconds() + 30)
    assert datetime.now(UTC) < begins
    assert traffic(plans) == {
        "factor": "8",
        "until": f"{begins + timedelta(seconds=60):%Y-%m-%dT%H:%M:%SZ}",
    }
    eventually(lambda: "Scheduled" in event_reasons(plans), within=10)

    eventually(lambda: cost(plans) == "12.00", within=lead + 120)
    assert datetime.now(UTC) >= begins + timedelta(seconds=60)
    assert traffic(plans)["factor"] == "1"
    assert plans.ready("chat") == ("True", "Published", 1)
    assert operator.is_running()


def test_a_start_that_only_the_planner_reads_is_refused_until_it_is_corrected(
    plans: Plans, operator: Operator
) -> None:
    """The definition has a pattern; that there is no minute 99 is found by the planner."""
    window = {"start": "99 8 * * *", "durationSeconds": 60, "factor": "8"}
    plans.apply("chat", {**BASES["histogram"], "traffic": {"schedule": [window]}})
    assert "spec.traffic.schedule[0].start: '99 8 * * *' is no schedule" in refusal(plans)

    plans.patch("chat", {"traffic": {"schedule": [{**window, "start": "59 8 * * *"}]}})
    plans.wait_ready("chat")

    # A budget is no input of a plan. One that cannot be read is.
    budget = {"islands": "1", "schedule": "99 8 * * *", "durationSeconds": 60}
    plans.patch("chat", {"replanning": {"budgets": [budget]}})
    assert "spec.replanning.budgets[0].schedule: '99 8 * * *' is no schedule" in refusal(plans)

    plans.patch("chat", {"replanning": {"budgets": [{**budget, "schedule": "59 8 * * *"}]}})
    plans.wait_ready("chat")
    assert operator.is_running()


def refusal(plans: Plans) -> str:
    eventually(lambda: plans.ready("chat")[:2] == ("False", "InvalidSpec"), within=30)
    return str(plans.conditions("chat")["Ready"]["message"])
