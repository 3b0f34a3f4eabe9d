"""The kustomize base: what it holds, what it grants, and the API server's word on it."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.controlplane import Cluster
from tests.deploy.rendering import BASE, NAMESPACED, Object, kustomize, of_kind

pytestmark = pytest.mark.cluster

# Minor versions of Kubernetes whose published schemas the objects are held to.
VERSIONS = ("1.35", "1.36", "1.37")


@pytest.fixture(scope="module")
def base() -> list[Object]:
    """The objects of deploy/base."""
    return kustomize(BASE)


def test_the_base_holds_what_the_operator_needs(base: list[Object]) -> None:
    """CRD, namespace, account, grants and one deployment, all of them named by us."""
    kinds = {found["kind"] for found in base}
    assert kinds >= {"CustomResourceDefinition", "Namespace", "ServiceAccount", "Deployment"}
    (account,) = of_kind(base, "ServiceAccount")
    subjects = [
        subject
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in of_kind(base, kind)
        for subject in binding["subjects"]
    ]
    assert subjects
    assert {(s["name"], s["namespace"]) for s in subjects} == {
        (account["metadata"]["name"], account["metadata"]["namespace"])
    }


def test_no_grant_has_a_wildcard_or_a_secret(base: list[Object]) -> None:
    """Least privilege: nothing that reads secrets, runs pods or hands out rights."""
    rules = [
        rule
        for kind in ("Role", "ClusterRole")
        for role in of_kind(base, kind)
        for rule in role["rules"]
    ]
    words = {word for rule in rules for words in rule.values() for word in words}
    assert rules
    assert words & {"*", "secrets", "pods/exec", "nodes/proxy", "escalate", "bind"} == set()


def test_nodes_and_pods_are_only_looked_at(base: list[Object]) -> None:
    """Nodes by a role of their own, which is bound in the cluster whatever is served."""
    here, of_nodes = sorted(of_kind(base, "ClusterRole"), key=lambda role: len(role["rules"]))[::-1]
    (pods,) = (rule for rule in here["rules"] if "pods" in rule["resources"])
    (nodes,) = of_nodes["rules"]
    assert (pods["resources"], pods["verbs"]) == (["pods"], ["list", "watch"])
    assert (nodes["resources"], nodes["verbs"]) == (["nodes"], ["list", "watch"])


def test_the_pod_is_restricted(base: list[Object]) -> None:
    """One replica, no root, no writable root file system, one bounded /tmp."""
    (deployment,) = of_kind(base, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 30
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "runAsUser" not in pod["securityContext"]  # any uid will do
    assert "runAsGroup" not in pod["securityContext"]  # containerd refuses a group without a user
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}]


def test_the_namespaced_overlay_gives_rights_in_one_namespace_only() -> None:
    """What it may see and what it looks at are written once."""
    objects = kustomize(NAMESPACED)
    (of_nodes,) = of_kind(objects, "ClusterRoleBinding")
    assert of_nodes["roleRef"]["name"] == "archipelago-operator-nodes"
    (binding,) = of_kind(objects, "RoleBinding")
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["ARCHIPELAGO_NAMESPACES"] == binding["metadata"]["namespace"]
    assert {"POD_ID", "HOME"} <= set(variables)


def test_the_api_server_accepts_the_base(cluster: Cluster, base: list[Object]) -> None:
    """Server-side dry run with strict validation: no unknown field, nothing invalid."""
    (namespace,) = of_kind(base, "Namespace")
    cluster.kubectl(
        "apply", "--server-side", "-f", "-", input=yaml.safe_dump(namespace)
    )  # what lies in it cannot be tried before it exists
    done = cluster.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", BASE),
        "--force-conflicts",  # with what others changed, where a cluster is reused
    )
    assert len(done.stdout.splitlines()) == len(base)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", [BASE, NAMESPACED], ids=lambda folder: folder.name)
def test_every_object_is_valid_in_three_minor_versions(folder: Path, version: str) -> None:
    """By the published schemas, strictly: a field that they do not know is refused."""
    objects = kustomize(folder)
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)
    (deployment,) = of_kind(objects, "Deployment")
    deployment["spec"]["template"]["spec"]["bogus"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="bogus"):
        kubernetes_validate.validate(deployment, version, strict=True)
