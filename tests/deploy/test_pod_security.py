"""The pod under the ``restricted`` standard, judged by the API server's own admission."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.controlplane import Cluster, ControlPlane, eventually
from tests.controlplane.plane import CONTROLLERS
from tests.deploy.rendering import BASE, HOME, NAME, Object, kustomize, of_kind

pytestmark = pytest.mark.cluster

ENFORCE = "pod-security.kubernetes.io/enforce"


def template() -> dict[str, Any]:
    """The pod's spec in the deployment."""
    (deployment,) = of_kind(kustomize(BASE), "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace in which the standard is enforced."""
    with cluster.namespace("restricted") as name:
        cluster.kubectl("label", "namespace", name, f"{ENFORCE}=restricted")
        yield name


def answer(cluster: Cluster, namespace: str, spec: dict[str, Any]) -> str:
    """The API server's refusal of such a pod; empty where it is let in. Nothing is stored."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": spec | {"serviceAccountName": "default"},
    }
    done = cluster.kubectl(
        *("apply", "--dry-run=server", f"--namespace={namespace}", "-f", "-"),
        input=json.dumps(pod),
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("uid", [None, 12345, 1000680000], ids=["image's", "any", "random"])
def test_the_pod_is_let_in_under_any_uid(
    cluster: Cluster, restricted: str, uid: int | None
) -> None:
    """Some clusters give each namespace a range of its own; root is refused."""
    spec = template()
    assert "runAsUser" not in spec["securityContext"]
    if uid is not None:
        spec["securityContext"]["runAsUser"] = uid
    assert answer(cluster, restricted, spec) == ""
    spec["securityContext"]["runAsUser"] = 0
    assert "runAsUser=0" in answer(cluster, restricted, spec)


def without_non_root(spec: dict[str, Any]) -> None:
    del spec["securityContext"]["runAsNonRoot"]


def without_seccomp(spec: dict[str, Any]) -> None:
    del spec["securityContext"]["seccompProfile"]


def with_capabilities(spec: dict[str, Any]) -> None:
    del spec["containers"][0]["securityContext"]["capabilities"]


def with_one_capability(spec: dict[str, Any]) -> None:
    spec["containers"][0]["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]


def with_escalation(spec: dict[str, Any]) -> None:
    del spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"]


def on_the_host_network(spec: dict[str, Any]) -> None:
    spec["hostNetwork"] = True


def with_a_host_folder(spec: dict[str, Any]) -> None:
    spec["volumes"] = [{"name": "tmp", "hostPath": {"path": "/var/run"}}]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_non_root, "runAsNonRoot != true"),
        (without_seccomp, "seccompProfile"),
        (with_capabilities, "unrestricted capabilities"),
        (with_one_capability, "NET_ADMIN"),
        (with_escalation, "allowPrivilegeEscalation != false"),
        (on_the_host_network, "host namespaces"),
        (with_a_host_folder, "restricted volume types"),
    ],
)
def test_a_pod_that_asks_for_more_is_refused(
    cluster: Cluster, restricted: str, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    """Each line that the standard needs is needed: without it, the same pod stays out."""
    spec = copy.deepcopy(template())
    change(spec)
    refused = answer(cluster, restricted, spec)
    assert 'violates PodSecurity "restricted' in refused
    assert named in refused


@pytest.fixture
def plane(controlplane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that turns deployments into pods (which nothing runs)."""
    del controlplane  # skipped on kind
    makers = ("deployment-controller", "replicaset-controller")
    with ControlPlane.start(controllers=(*CONTROLLERS, *makers)) as plane:
        yield plane


def test_what_the_base_deploys_becomes_a_pod_and_a_looser_one_does_not(
    plane: ControlPlane,
) -> None:
    """All of it as installed: the base's own namespace, account, deployment."""
    objects = kustomize(BASE)
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"][ENFORCE] == "restricted"
    plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))

    def pods() -> list[Object]:
        found: list[Object] = json.loads(
            plane.kubectl("get", "pods", f"-n={HOME}", "-o=json").stdout
        )["items"]
        return found

    eventually(lambda: len(pods()) == 1, within=30)
    (pod,) = pods()
    assert pod["spec"]["serviceAccountName"] == NAME
    assert [volume["name"] for volume in pod["spec"]["volumes"]][:1] == ["tmp"]

    loose = '{"spec": {"template": {"spec": {"hostNetwork": true}}}}'
    plane.kubectl("patch", "deployment", NAME, f"-n={HOME}", "-p", loose)

    def failure() -> str:
        told = '-o=jsonpath={.status.conditions[?(@.type=="ReplicaFailure")].message}'
        return plane.kubectl("get", "deployment", NAME, f"-n={HOME}", told).stdout

    eventually(lambda: 'violates PodSecurity "restricted' in failure(), within=30)
