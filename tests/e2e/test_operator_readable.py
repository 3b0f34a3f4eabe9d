"""What people read stays short: the status of a large plan (A19), `kubectl describe` (A22)."""

import json

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import eventually
from tests.e2e.operators import Plans, small

pytestmark = pytest.mark.cluster

STATUS_BYTES = 32_000
LINES = 80
KINDS = ("H100", "L40S", "A100-80GB", "H20")


def pools(number: int, count: int) -> list[dict[str, object]]:
    return [
        {
            "name": f"pool-{n}",
            "accelerator": KINDS[n % len(KINDS)],
            "count": count,
            "islandSizes": [1],
        }
        for n in range(number)
    ]


def test_the_status_of_a_plan_of_64_pools_and_500_islands_is_small(team: Plans) -> None:
    """A19: the details are in the ConfigMap that the status names by name and hash."""
    team.apply("large", small(pools=pools(64, 8), planner={"timeLimitSeconds": 20}))
    team.wait_ready("large", 60)

    status = team.plan("large")["status"]
    table = team.table("large")

    size = len(json.dumps(status))
    print(f"\n{len(table['content']['islands'])} islands, status of {size} bytes")  # noqa: T201
    assert len(table["content"]["islands"]) >= 500
    assert validate_table(table) == []
    assert size < STATUS_BYTES
    assert status["summary"]["table"] == "large-routing"
    assert len(status["summary"]["contentHash"]) == 64


def test_describe_is_short_and_its_newest_event_says_the_last_decision(team: Plans) -> None:
    """A22, of what is ours to say: the owner's spec is printed as long as it is."""
    team.apply("eight", small(pools=pools(8, 8)))
    team.wait_ready("eight", 60)
    team.patch("eight", {"routing": {"unknownLength": "Shortest"}})
    eventually(lambda: team.ready("eight")[2] == 2 and team.ready("eight")[1] != "Planning")
    eventually(lambda: len(team.events("eight")) >= 2)

    text = team.kubectl("describe", "splan", "eight").rstrip("\n")
    lines = text.splitlines()
    spec = lines[lines.index("Spec:") : lines.index("Status:")]
    _, _, told = text.partition("\nEvents:\n")

    print(f"\n{len(lines)} lines, {len(spec)} of them the spec")  # noqa: T201
    assert len(lines) - len(spec) <= LINES
    newest = told.splitlines()[-1]
    assert team.conditions("eight")["Ready"]["message"] in newest
