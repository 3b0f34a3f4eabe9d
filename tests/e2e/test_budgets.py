"""Changes that a budget or an annotation holds back, in the whole loop in real time."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.test_live import (
    CALM,
    EXPECTED,
    LIVE,
    REPLANNING,
    TRAFFIC,
    decision,
    engines,
    event_reasons,
    phases,
)
from tests.support.controlplane import eventually
from tests.support.e2e.operators import Operator, Plans
from tests.support.prometheus.server import Prometheus, scraping

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_flip_waits_for_its_budget(
    plans: Plans, observing: Operator, prometheus: Prometheus, tmp_path: Path
) -> None:
    budgets = [{"islands": "0"}]
    file = tmp_path / "scenario.yaml"
    file.write_text(
        yaml.safe_dump({"expected": EXPECTED, "plan": LIVE, "traffic": TRAFFIC, "seed": 2})
    )
    plans.apply("chat", {**LIVE, "replanning": {**REPLANNING, "budgets": budgets}})
    plans.wait_ready("chat")
    first = phases(plans)
    with engines(plans, "chat", file) as fleet, scraping(prometheus, fleet.url):
        eventually(lambda: decision(plans).get("held"), within=CALM + 60)
        assert decision(plans)["held"] == (
            "Flip for Safety: spec.replanning.budgets[0] allows 0 to change"
        )
        eventually(lambda: "HeldBack" in event_reasons(plans), within=5)
        assert phases(plans) == first

        plans.patch("chat", {"replanning": {"budgets": []}})
        eventually(lambda: phases(plans) != first, within=90)
    assert observing.is_running()
