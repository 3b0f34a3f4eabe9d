"""The base and its overlays: objects, rights, network, and what the pod may do."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.rendering import BASE, HOME, NAME, NAMESPACED, Object, chart, kustomize, of_kind
from tests.support.controlplane import Cluster, ControlPlane, eventually
from tests.support.controlplane.plane import CONTROLLERS

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
    roles = {role["metadata"]["name"]: role for role in of_kind(base, "ClusterRole")}
    here, of_nodes = roles[NAME], roles[f"{NAME}-nodes"]
    (pods,) = (rule for rule in here["rules"] if "pods" in rule["resources"])
    (nodes,) = of_nodes["rules"]
    assert (pods["resources"], pods["verbs"]) == (["pods"], ["list", "watch"])
    assert (nodes["resources"], nodes["verbs"]) == (["nodes"], ["list", "watch"])


def test_the_pod_is_restricted(base: list[Object]) -> None:
    """No root, no writable root file system, one bounded /tmp."""
    (deployment,) = of_kind(base, "Deployment")
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
    bindings = of_kind(objects, "RoleBinding")
    (binding,) = (found for found in bindings if found["roleRef"]["name"] == NAME)
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


MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
DNS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


@pytest.fixture(params=["base", "namespaced", "chart"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What is installed by each of the three ways."""
    if request.param == "chart":
        return chart()
    return kustomize({"base": BASE, "namespaced": NAMESPACED}[request.param])


def test_one_of_two_replicas_is_always_there(objects: list[Object]) -> None:
    """Through updates and drains; on different nodes and zones where there are some."""
    (deployment,) = of_kind(objects, "Deployment")
    spec, pod = deployment["spec"], deployment["spec"]["template"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    assert budget["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"].values()  # preferred: one node will do
    (zones,) = pod["spec"]["topologySpreadConstraints"]
    assert apart[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert zones["whenUnsatisfiable"] == "ScheduleAnyway"
    for selector in (
        *(spec["selector"], budget["spec"]["selector"], zones["labelSelector"]),
        apart[0]["podAffinityTerm"]["labelSelector"],
    ):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (priority,) = of_kind(objects, "PriorityClass")
    assert pod["spec"]["priorityClassName"] == priority["metadata"]["name"]


def policy(objects: list[Object]) -> dict[str, Any]:
    """The one policy's spec."""
    (found,) = of_kind(objects, "NetworkPolicy")
    spec: dict[str, Any] = found["spec"]
    return spec


def ports(rule: dict[str, Any]) -> set[tuple[str, int]]:
    """(protocol, port) of a rule; it must name some, as none would be all."""
    assert rule["ports"]
    return {(port["protocol"], port["port"]) for port in rule["ports"]}


def test_everything_is_denied_to_the_operator_that_is_not_listed(objects: list[Object]) -> None:
    """A pod that is selected with both types may do what the rules say and no more."""
    spec = policy(objects)
    (deployment,) = of_kind(objects, "Deployment")
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    (found,) = of_kind(objects, "NetworkPolicy")
    assert found["metadata"]["namespace"] == deployment["metadata"]["namespace"]


def test_only_prometheus_reaches_it_and_only_the_port_of_metrics(objects: list[Object]) -> None:
    """Probes come from the pod's own node, which no policy keeps out."""
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    (rule,) = policy(objects)["ingress"]
    assert rule["from"] == [MONITORING]
    assert ports(rule) == {("TCP", port["containerPort"])} == {("TCP", 8080)}


def test_dns_and_the_api_server_are_all_it_reaches(objects: list[Object]) -> None:
    dns, apiserver = policy(objects)["egress"]
    assert dns["to"] == [DNS]
    assert ports(dns) == {("UDP", 53), ("TCP", 53)}
    assert "to" not in apiserver  # only the cluster's administrator knows its address
    assert ports(apiserver) == {("TCP", 443), ("TCP", 6443)}


def test_a_prometheus_is_reached_where_one_is_configured_and_there_alone() -> None:
    values = {"prometheus": {"to": [MONITORING], "port": 9091}}
    *others, added = policy(chart({"networkPolicy": values}))["egress"]
    assert others == policy(chart())["egress"]
    assert added["to"] == [MONITORING]
    assert ports(added) == {("TCP", 9091)}


def test_the_api_server_and_those_who_read_metrics_can_be_named() -> None:
    address = {"ipBlock": {"cidr": "192.0.2.7/32"}}
    given = {"apiServer": {"to": [address], "ports": [6443]}, "scrapers": [DNS]}
    spec = policy(chart({"networkPolicy": given}))
    _, apiserver = spec["egress"]
    assert apiserver == {"ports": [{"protocol": "TCP", "port": 6443}], "to": [address]}
    (rule,) = spec["ingress"]
    assert rule["from"] == [DNS]


def test_without_scrapers_nobody_is_let_in() -> None:
    """An empty list of peers in a rule would mean everybody."""
    assert "ingress" not in policy(chart({"networkPolicy": {"scrapers": []}}))


def test_without_dns_the_rule_is_gone_and_not_open() -> None:
    """An empty list of peers in a rule would mean everybody."""
    (apiserver,) = policy(chart({"networkPolicy": {"dns": {"to": []}}}))["egress"]
    assert ports(apiserver) == {("TCP", 443), ("TCP", 6443)}


def test_it_can_be_left_to_others() -> None:
    assert of_kind(chart({"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


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
        cluster.kubectl("apply", "--server-side", "-f", BASE / "priorityclass.yaml")
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


def test_what_the_base_deploys_becomes_a_pod_and_a_looser_one_does_not(plane: ControlPlane) -> None:
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

    eventually(lambda: len(pods()) == 2, within=30)
    for pod in pods():
        assert pod["spec"]["serviceAccountName"] == NAME
        assert pod["spec"]["priority"] == 1000000
        assert [volume["name"] for volume in pod["spec"]["volumes"]][:1] == ["tmp"]

    loose = '{"spec": {"template": {"spec": {"hostNetwork": true}}}}'
    plane.kubectl("patch", "deployment", NAME, f"-n={HOME}", "-p", loose)

    def failure() -> str:
        told = '-o=jsonpath={.status.conditions[?(@.type=="ReplicaFailure")].message}'
        return plane.kubectl("get", "deployment", NAME, f"-n={HOME}", told).stdout

    eventually(lambda: 'violates PodSecurity "restricted' in failure(), within=30)
