"""Plans that are taken away under the operator's hands: their namespace (B29), their name (B28)."""

import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archipelago.planner.table import validate_table
from tests.controlplane import ControlPlane, eventually
from tests.controlplane.api import Api
from tests.e2e.operators import USER, Operator, Plans, resource, running, small

pytestmark = pytest.mark.cluster

QUIET = 4.0


@pytest.fixture
def everywhere(prepared: Operator) -> Iterator[Operator]:
    """The operator as it is deployed: for the whole cluster, its lists often."""
    prepared.settings = {"ARCHIPELAGO_RESYNC_SECONDS": "2"}
    with running(prepared) as operator:
        yield operator


def slow() -> dict[str, Any]:
    """A plan that is still being planned when its namespace goes."""
    spec = small()
    spec["models"][0] |= {"architecture": "DeepSeek-V3"}
    spec["models"][0]["workload"]["ranges"] = {"count": 128}
    spec["pools"] = [
        {"name": name, "accelerator": name.upper(), "count": 64, "gpusPerNode": 8}
        for name in ("h200", "h800", "h20")
    ]
    return spec


def test_a_namespace_that_goes_while_its_plans_are_planned_leaves_no_retries(
    controlplane: ControlPlane, everywhere: Operator
) -> None:
    name = f"going-{secrets.token_hex(4)}"
    controlplane.kubectl("create", "namespace", name)
    plans = Plans(controlplane, name)
    for number in range(4):
        plans.apply(f"plan-{number}", slow() if number % 2 else small())
    eventually(lambda: everywhere.metric("writes_total") >= 1)

    controlplane.kubectl("delete", "namespace", name)  # returns when it is gone

    def ours() -> list[tuple[str, str, str, int]]:
        return [
            (event.verb, event.resource, event.name, event.code)
            for event in controlplane.audit_events(USER)
            if event.namespace == name
        ]

    time.sleep(QUIET)
    before = ours()
    time.sleep(QUIET)

    # Each plan: early status, a table that is stored or refused, what is said of it, an event.
    print(f"\n{len(before)} requests for four plans of a namespace that went")  # noqa: T201
    assert len(before) <= 4 * 8, before
    assert ours() == before
    assert everywhere.is_ready()
    assert everywhere.metric("queue_depth") == 0
    assert f'namespace="{name}"' not in everywhere.get("/metrics")
    assert not [line for line in everywhere.lines() if "exception" in line]


def swap(controlplane: ControlPlane, plans: Plans, name: str, spec: dict[str, Any]) -> str:
    """Delete the plan and make its namesake, in 10 to 100 ms; returns the new uid."""
    api = Api.of(controlplane)
    path = f"/apis/archipelago.dev/v1alpha1/namespaces/{plans.namespace}/servingplans"
    started = time.monotonic()
    api("DELETE", f"{path}/{name}")
    made = api("POST", path, resource(name, spec))
    seconds = time.monotonic() - started
    print(f"\nnamesake made after {1000 * seconds:.0f} ms")  # noqa: T201
    assert seconds < 0.5  # on a machine that does much else, too
    return str(made["metadata"]["uid"])


@pytest.mark.parametrize("when", ["alive", "at rest", "killed before", "killed after"])
def test_a_namesake_made_at_once_gets_a_table_of_its_own(
    controlplane: ControlPlane, plans: Plans, prepared: Operator, tmp_path: Path, when: str
) -> None:
    """The predecessor's ConfigMap is not adopted, whatever the operator saw of the change."""
    operator = replace(prepared, log=tmp_path / "namesake.log")
    operator.start()
    try:
        plans.apply("chat", small())
        plans.wait_ready("chat")
        first = plans.get("configmap", "chat-routing")["metadata"]["uid"]
        if when == "killed before":
            operator.end(signal.SIGKILL)
        if when == "at rest":
            assert operator.process is not None
            operator.process.send_signal(signal.SIGSTOP)

        uid = swap(controlplane, plans, "chat", small(budgetPerHour="8"))

        if when == "killed after":
            operator.end(signal.SIGKILL)
        if when == "at rest":
            assert operator.process is not None
            operator.process.send_signal(signal.SIGCONT)
        if not operator.is_running():
            operator.start()
        eventually(lambda: plans.ready("chat") == ("True", "Published", 1), within=60)
        stored = plans.get("configmap", "chat-routing")
        table = plans.table("chat")
        assert stored["metadata"]["uid"] != first
        assert [owner["uid"] for owner in stored["metadata"]["ownerReferences"]] == [uid]
        assert table["identity"]["uid"] == uid
        assert table["identity"]["generation"] == 1
        assert validate_table(table) == []
        assert plans.plan("chat")["metadata"]["uid"] == uid
    finally:
        if operator.is_running():
            operator.end()
