"""A11: entries of a list belong to whoever applied them, by the keys that the definition states."""

import json
from typing import Any

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import eventually
from tests.e2e.operators import Plans, resource, small

pytestmark = pytest.mark.cluster

HARDWARE, RENTED = "hardware-team", "rented-capacity"
SPEC = small()
MODELS = {"models": SPEC["models"]}


def pool(name: str, accelerator: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """An entry of ``spec.pools``."""
    price = {"pricePerGPUHour": "2.00"}
    return {"name": name, "accelerator": accelerator, "count": 8, **price, **more}


H100, L40S = pool("h100", "H100"), pool("l40s", "L40S")


def apply(plans: Plans, manager: str, *, check: bool = True, **spec: Any) -> str:  # noqa: ANN401
    """Server-side apply of a part of the spec, as one of its owners."""
    return plans.kubectl(
        *("apply", "--server-side", f"--field-manager={manager}", "-f", "-"),
        input=json.dumps(resource("chat", spec)),
        check=check,
    )


def pools(plans: Plans) -> dict[str, dict[str, Any]]:
    return {found["name"]: found for found in plans.plan("chat")["spec"]["pools"]}


def test_two_owners_each_keep_a_pool_and_remove_only_their_own(team: Plans) -> None:
    apply(team, HARDWARE, **MODELS, pools=[H100])
    apply(team, RENTED, pools=[L40S])
    assert set(pools(team)) == {"h100", "l40s"}
    team.wait_ready("chat")

    # Each says its own part again, changed: the other's entry is neither moved nor taken.
    apply(team, HARDWARE, **MODELS, pools=[pool("h100", "H100", count=16)])
    apply(team, RENTED, pools=[pool("l40s", "L40S", count=24)])
    assert {name: found["count"] for name, found in pools(team).items()} == {
        "h100": 16,
        "l40s": 24,
    }

    # What is another's is not to be had without a word.
    said = apply(team, RENTED, check=False, pools=[pool("l40s", "L40S", count=24), H100])
    assert "conflict" in said
    assert HARDWARE in said
    assert pools(team)["h100"]["count"] == 16

    # An owner that leaves its entry out removes it, and nothing else.
    apply(team, HARDWARE, **MODELS, pools=[pool("h100", "H100", count=16)])
    rented = {**pool("spare", "L40S"), "count": 1}
    apply(team, RENTED, pools=[rented])
    assert set(pools(team)) == {"h100", "spare"}
    apply(team, HARDWARE, **MODELS)
    assert set(pools(team)) == {"spare"}

    # The operator's own writes are of the status: no entry became anybody else's.
    whole = json.loads(team.kubectl("get", "splan", "chat", "-o=json", "--show-managed-fields"))
    fields = whole["metadata"]["managedFields"]
    owners = {owner["manager"] for owner in fields if owner.get("subresource") != "status"}
    assert owners == {HARDWARE, RENTED}
    eventually(lambda: team.ready("chat")[2] == team.plan("chat")["metadata"]["generation"])
    table = team.table("chat")
    assert validate_table(table) == []
