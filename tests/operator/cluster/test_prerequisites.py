"""The permissions that are reviewed are those that the roles grant."""

import asyncio
from pathlib import Path

import pytest
import yaml

from archipelago.operator.cluster.client import ApiCluster
from archipelago.operator.cluster.prerequisites import (
    NEEDED,
    NODES,
    PODS,
    MissingPermission,
    PermissionCheck,
)
from archipelago.operator.metrics import Metrics
from archipelago.operator.resources.manifests import review_manifest
from archipelago.operator.resources.names import Permission

RBAC = Path(__file__).parents[3] / "deploy" / "base" / "rbac.yaml"


def test_permissions_reviewed_are_those_that_the_roles_grant() -> None:
    documents = yaml.safe_load_all(RBAC.read_text(encoding="utf-8"))
    here, of_nodes = (document for document in documents if document["kind"] == "ClusterRole")
    assert of_nodes["metadata"]["name"] == "archipelago-operator-nodes"
    for role, needed in ((here, (*NEEDED, *PODS)), (of_nodes, NODES)):
        granted = [
            Permission(verb, group, resource)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
        assert sorted(needed) == sorted(granted)


class Reviews(ApiCluster):
    """An API server that grants everything but ``refused``; ``reviews``: the requests."""

    def __init__(self, *refused: Permission) -> None:
        self.refused = set(refused)
        self.reviews: list[tuple[Permission, str | None]] = []

    async def may(self, right: Permission, namespace: str | None) -> bool:
        self.reviews.append((right, namespace))
        return right not in self.refused

    async def serves_plans(self) -> bool:
        return True


@pytest.mark.parametrize("inventory", [True, False])
async def test_permissions_of_nodes_are_reviewed_in_the_cluster_and_are_no_finding(
    inventory: bool,
) -> None:
    server, news = Reviews(*NODES), list[tuple[Permission, ...]]()
    rights = PermissionCheck(server, ("team",), Metrics(), inventory=inventory)
    rights.on_nodes = news.append
    task = asyncio.create_task(rights.run())
    await rights.reviewed.wait()
    task.cancel()

    assert rights.findings() == []
    assert rights.may_see_nodes is not inventory
    assert news == ([NODES] if inventory else [])
    here = [(right, "team") for right in (*NEEDED, *(PODS if inventory else ()))]
    assert server.reviews == [*here, *((right, None) for right in NODES if inventory)]


def test_a_missing_right_is_named_as_kubectl_names_it() -> None:
    status = Permission("patch", "archipelago.dev", "servingplans/status")

    assert str(MissingPermission(status, "team")) == (
        "patch servingplans.archipelago.dev/status in namespace team"
    )
    assert str(MissingPermission(Permission("create", "", "configmaps"), "")) == (
        "create configmaps in all namespaces"
    )


def test_a_subresource_has_its_own_field_in_a_review() -> None:
    right = Permission("patch", "archipelago.dev", "servingplans/status")

    assert review_manifest(right, "team")["spec"]["resourceAttributes"] == {
        "verb": "patch",
        "group": "archipelago.dev",
        "resource": "servingplans",
        "subresource": "status",
        "namespace": "team",
    }
    assert "namespace" not in review_manifest(right, None)["spec"]["resourceAttributes"]
