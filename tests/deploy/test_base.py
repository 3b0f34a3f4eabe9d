"""What is deployed: the image's statements, the kustomize base, and the API server's word on it."""

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane import Cluster

REPO = Path(__file__).parents[1]
BASE = REPO / "deploy" / "base"


@cache
def statements() -> tuple[tuple[str, str], ...]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", (REPO / "Dockerfile").read_text()).splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return tuple((name, arguments) for name, arguments in words)


def arguments(instruction: str) -> list[str]:
    """Arguments of every statement of that name, in order."""
    return [given for name, given in statements() if name == instruction]


def test_the_image_runs_as_a_number_that_is_not_root() -> None:
    """RunAsNonRoot refuses a name: it cannot tell whether it is root."""
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert statements()[-1][0] == "ENTRYPOINT"


def test_the_image_installs_the_operator_extra_by_the_pins_and_nothing_else() -> None:
    """No torch, no plotting, no tests: what is not installed cannot be attacked."""
    build, _ = arguments("RUN")
    assert "--constraint constraints.txt" in build
    assert re.findall(r"\[([\w,]+)\]", build) == ["operator"]
    assert "torch" not in (REPO / "constraints.txt").read_text()


def test_the_image_needs_no_writable_root_file_system() -> None:
    """Byte code is compiled at build time, the base's too; HOME is the one writable folder."""
    (environment,) = arguments("ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "HOME=/tmp" in environment
    ours, base = arguments("RUN")
    assert "--compile" in ours
    assert "compileall" in base
    assert arguments("ENTRYPOINT") == [
        '["/opt/archipelago/bin/python", "-m", "archipelago.operator"]'
    ]


def test_every_copied_path_exists_and_is_sent_to_the_engine() -> None:
    """.dockerignore lets through exactly what the Dockerfile copies."""
    sent = {
        line[1:]
        for line in (REPO / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        path
        for given in arguments("COPY")
        if not given.startswith("--from")
        for path in given.split()[:-1]
    }
    assert copied == sent
    assert [path for path in copied if not (REPO / path).exists()] == []


def kustomize(cluster: Cluster, folder: Path) -> list[dict[str, Any]]:
    """The objects that kubectl's own kustomize makes of a folder."""
    built = subprocess.run(
        [cluster.kubectl_binary, "kustomize", folder],
        check=True,
        capture_output=True,
        text=True,
    )
    return list(yaml.safe_load_all(built.stdout))


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> list[dict[str, Any]]:
    """The objects of deploy/base."""
    return kustomize(cluster, BASE)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those objects of one kind."""
    return [found for found in objects if found["kind"] == kind]


@pytest.mark.cluster
def test_the_base_holds_what_the_operator_needs(base: list[dict[str, Any]]) -> None:
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


@pytest.mark.cluster
def test_no_grant_has_a_wildcard_or_a_secret(base: list[dict[str, Any]]) -> None:
    """Least privilege: nothing that reads secrets, runs pods or hands out rights."""
    rules = [
        rule
        for kind in ("Role", "ClusterRole")
        for role in of_kind(base, kind)
        for rule in role["rules"]
    ]
    words = {word for rule in rules for words in rule.values() for word in words}
    assert rules
    assert words & {"*", "secrets", "pods", "pods/exec", "nodes", "escalate", "bind"} == set()


@pytest.mark.cluster
def test_the_pod_is_restricted(base: list[dict[str, Any]]) -> None:
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


@pytest.mark.cluster
def test_the_namespaced_overlay_gives_rights_in_one_namespace_only(
    cluster: Cluster,
) -> None:
    """What it may see and what it looks at are written once."""
    objects = kustomize(cluster, BASE.parent / "overlays" / "namespaced")
    assert of_kind(objects, "ClusterRoleBinding") == []
    (binding,) = of_kind(objects, "RoleBinding")
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert variables["ARCHIPELAGO_NAMESPACES"] == binding["metadata"]["namespace"]
    assert {"POD_ID", "HOME"} <= set(variables)


@pytest.mark.cluster
def test_the_api_server_accepts_the_base(cluster: Cluster, base: list[dict[str, Any]]) -> None:
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


@pytest.mark.cluster
def test_the_pod_passes_the_restricted_standard(
    cluster: Cluster, base: list[dict[str, Any]]
) -> None:
    """The API server's own admission refuses the pod's like where it is looser."""
    (deployment,) = of_kind(base, "Deployment")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"},
    }
    with cluster.namespace("restricted") as name:
        label = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", name, label)
        dry_run = ("apply", "--dry-run=server", f"--namespace={name}", "-f", "-")
        cluster.kubectl(*dry_run, input=yaml.safe_dump(pod))
        loose = pod | {"spec": pod["spec"] | {"securityContext": {}}}
        refused = cluster.kubectl(*dry_run, input=yaml.safe_dump(loose), check=False)
        assert "runAsNonRoot" in refused.stderr
