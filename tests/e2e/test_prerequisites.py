"""The definition of ServingPlans comes, goes and is newer than the operator (B30)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane import ControlPlane, eventually
from tests.e2e.operators import Operator, Plans, grant, running, seconds_until, small

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "crds" / "archipelago.dev_servingplans.yaml"
ABSENT = (
    "servingplans.archipelago.dev (archipelago.dev/v1alpha1) is not installed; waiting until crds/ "
    "is applied"
)


@pytest.fixture(scope="module")
def bare(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of this module alone, without our definition."""
    if request.config.getoption("kind"):
        pytest.skip("needs a control plane without the definition")
    with ControlPlane.start() as plane:
        yield plane


@pytest.fixture
def waiting(bare: ControlPlane, tmp_path: Path) -> Operator:
    """An operator that is not started yet."""
    settings = {"ARCHIPELAGO_PLANNERS": "1", "ARCHIPELAGO_RESYNC_SECONDS": "86400"}
    return Operator(grant(bare), tmp_path / "operator.log", settings)


@pytest.fixture
def team(bare: ControlPlane) -> Iterator[Plans]:
    with bare.namespace() as name:
        yield Plans(bare, name)


def said(operator: Operator) -> list[str]:
    """Lines about the definition."""
    return [line["message"] for line in operator.lines() if "installed" in line["message"]]


def test_a_definition_that_comes_late_is_waited_for(
    bare: ControlPlane, team: Plans, waiting: Operator
) -> None:
    """The watches work without a resync, and so they do after the definition was away."""
    waiting.begin()
    eventually(lambda: said(waiting) == [ABSENT], within=15)
    time.sleep(5)
    assert said(waiting) == [ABSENT]
    assert "servingplans.archipelago.dev is not installed" in waiting.answer("/readyz")[1]
    assert waiting.answer("/healthz") == (200, "ok\n")

    bare.install([CRD])
    try:
        came = seconds_until(waiting.is_ready, within=15)
        team.apply("chat", small())
        team.wait_ready("chat", within=15)
        bare.kubectl("delete", "-f", CRD)
        eventually(lambda: said(waiting).count(ABSENT) == 2, within=15)
        bare.install([CRD])
        again = seconds_until(waiting.is_ready, within=15)
        team.apply("chat", small())
        back = seconds_until(lambda: team.ready("chat")[:2] == ("True", "Published"), within=60)

        print(f"\nready {came:.1f} s after the definition, then {again:.1f} s")  # noqa: T201
        print(f"plan made after the definition came back: Ready in {back:.1f} s")  # noqa: T201
        assert waiting.is_running()
        assert len(said(waiting)) == 4
        assert not [line for line in waiting.lines() if "exception" in line]
        assert len(waiting.lines()) < 60, waiting.log.read_text()
    finally:
        assert waiting.end() == 0


def newer() -> dict[str, Any]:
    """The definition as a later release may have it: more fields, one of them with a default."""
    definition: dict[str, Any] = yaml.safe_load(CRD.read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["brandNew"] = {"type": "string", "maxLength": 20, "default": "now"}
    spec["models"]["items"]["properties"]["colour"] = {"type": "string", "maxLength": 20}
    return definition


def test_fields_of_a_newer_definition_are_left_alone_and_named(
    bare: ControlPlane, team: Plans, waiting: Operator
) -> None:
    bare.install([CRD])
    with running(waiting):
        team.apply("old", small())
        team.wait_ready("old")
        content = team.table("old")["content"]
        bare.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(newer()))
        spec = small()
        spec["models"][0]["colour"] = "red"

        def seen() -> bool:
            """Watches that began before the change go on for a moment without the new fields."""
            team.kubectl("delete", "splan", "new", "--ignore-not-found")
            team.apply("new", spec)
            eventually(lambda: team.ready("new") == ("True", "Published", 1), within=60)
            return "unknown" in team.conditions("new")["Planned"]["message"]

        eventually(seen, within=60)
        for kind in ("Ready", "Planned"):
            message = team.conditions("new")[kind]["message"]
            assert "spec.brandNew, spec.models[0].colour" in message, message
        plan = team.plan("new")
        assert plan["spec"]["brandNew"] == "now"
        assert plan["spec"]["models"][0]["colour"] == "red"
        assert "colour" not in json.dumps(team.table("new"))
        team.kubectl("label", "splan", "old", "touched=yes")
        eventually(lambda: team.ready("old")[:2] == ("True", "Published"))
        assert team.table("old")["content"] == content
