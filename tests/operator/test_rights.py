"""What the operator asks for is what is granted to it."""

from pathlib import Path

import yaml

from archipelago.operator.manifests import Right, review_manifest
from archipelago.operator.rights import NEEDED, Missing

RBAC = Path(__file__).parents[2] / "deploy" / "base" / "rbac.yaml"


def test_every_granted_right_is_asked_for_and_no_other() -> None:
    documents = yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
    (role,) = (document for document in documents if document["kind"] == "ClusterRole")
    granted = {
        Right(verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(NEEDED) == granted
    assert len(NEEDED) == len(granted)


def test_a_missing_right_is_named_as_kubectl_names_it() -> None:
    status = Right("patch", "archipelago.dev", "servingplans/status")

    assert str(Missing(status, "team")) == (
        "patch servingplans.archipelago.dev/status in namespace team"
    )
    assert str(Missing(Right("create", "", "configmaps"), "")) == (
        "create configmaps in all namespaces"
    )


def test_a_subresource_is_asked_for_by_its_own_field() -> None:
    right = Right("patch", "archipelago.dev", "servingplans/status")

    assert review_manifest(right, "team")["spec"]["resourceAttributes"] == {
        "verb": "patch",
        "group": "archipelago.dev",
        "resource": "servingplans",
        "subresource": "status",
        "namespace": "team",
    }
    assert "namespace" not in review_manifest(right, None)["spec"]["resourceAttributes"]
