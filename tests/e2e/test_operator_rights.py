"""An operator that may not do all that it has to (B33): it says what is missing, and stays."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archipelago.operator.manifests import Right
from archipelago.operator.rights import NEEDED, PODS
from tests.controlplane import eventually
from tests.e2e.operators import Operator, Plans, running, seconds_until, small

pytestmark = pytest.mark.cluster

ROLE = "some-of-it"
ALL = (*NEEDED, *PODS)


def allow(plans: Plans, rights: set[Right]) -> Path:
    """Grant the namespace's default account exactly that, there; returns its kubeconfig."""
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
        for right in sorted(rights)
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ROLE}}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": plans.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE}
    apply(plans, {**role, "kind": "Role", "rules": rules})
    apply(plans, {**role, "kind": "RoleBinding", "subjects": [account], "roleRef": reference})
    return plans.cluster.service_account_kubeconfig(plans.namespace, "default")


def apply(plans: Plans, manifest: dict[str, Any]) -> None:
    plans.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def named(operator: Operator) -> list[str]:
    """What the log says is missing, line by line."""
    return [line["message"] for line in operator.lines() if "missing right" in line["message"]]


@pytest.fixture
def lone(prepared: Operator) -> Iterator[Operator]:
    """An operator that is ended at the end, ready or not."""
    prepared.settings = {
        **prepared.settings,
        "ARCHIPELAGO_PLANNERS": "1",
        "ARCHIPELAGO_RESYNC_SECONDS": "1",
    }
    yield prepared
    if prepared.is_running():
        assert prepared.end(within=30) == 0  # without a list there is nothing to finish


@pytest.mark.parametrize("dropped", ALL, ids=lambda right: str(right).replace("/", " "))
def test_a_missing_right_is_named_and_nothing_ends(
    plans: Plans, lone: Operator, dropped: Right
) -> None:
    lone.kubeconfig = allow(plans, set(ALL) - {dropped})
    plans.apply("chat", small())
    lone.begin()

    seconds = seconds_until(lambda: named(lone), within=30)

    print(f"\nwithout {dropped}: named after {seconds:.1f} s")  # noqa: T201
    missing = f"missing right: {dropped} in namespace {plans.namespace}"
    assert named(lone) == [f"{missing}; grant what deploy/base/rbac.yaml grants"]
    assert missing in lone.answer("/readyz")[1].splitlines()
    assert lone.answer("/readyz")[0] == 503
    assert lone.answer("/healthz") == (200, "ok\n")
    assert lone.metric("missing_rights") == 1
    time.sleep(1)
    assert lone.is_running()
    if dropped.resource == "configmaps" and dropped.verb in {"create", "patch"}:
        eventually(lambda: plans.ready("chat")[:2] == ("False", "WriteRefused"))
    assert not [line for line in lone.lines() if "exception" in line]
    assert len(lone.lines()) < 40


def test_a_right_that_is_taken_away_is_noticed_and_one_that_comes_back_too(
    plans: Plans, lone: Operator
) -> None:
    lone.kubeconfig = allow(plans, set(ALL))
    with running(lone):
        plans.apply("chat", small())
        plans.wait_ready("chat")
        assert named(lone) == []
        allow(plans, set(ALL) - {Right("list", "", "configmaps")})
        taken = seconds_until(lambda: named(lone), within=30)
        assert not lone.is_ready()

        allow(plans, set(ALL))
        back = seconds_until(lone.is_ready, within=30)

        print(f"\nnoticed after {taken:.1f} s, well again after {back:.1f} s")  # noqa: T201
        assert lone.metric("missing_rights") == 0
        assert [line["message"] for line in lone.lines()].count("every right is granted now") == 1
