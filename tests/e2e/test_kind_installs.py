"""The other ways to install, on real nodes: for one namespace, by Helm, with another token."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controlplane import Cluster, eventually
from tests.controlplane.kind import NAME
from tests.deploy.rendering import BASE, CHART, NAMESPACED, helm, kustomize, of_kind
from tests.e2e.deployments import Deployment, installed, on_node
from tests.e2e.operators import HOME, Plans, begin_a_life, refused, small

pytestmark = pytest.mark.cluster

MOST_REFUSED = 5.0  # requests a second; without a pause it is 35
QUIET = 3.0  # seconds in which an operator that sees a plan has long written to it
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
def served(kind: Cluster) -> Iterator[Plans]:
    """The namespace that the overlay names."""
    (binding,) = of_kind(kustomize(NAMESPACED), "RoleBinding")
    name = binding["metadata"]["namespace"]
    kind.kubectl("create", "namespace", name)
    yield Plans(kind, name)
    kind.kubectl("delete", "namespace", name)


def test_with_rights_in_one_namespace_everything_works_there(
    kind: Cluster, image: str, served: Plans, plans: Plans, tmp_path: Path
) -> None:
    """B32: no right in the cluster at all, and nothing is missing."""
    kind.kubectl("delete", "clusterrolebinding", "archipelago-operator", "--ignore-not-found")
    plans.apply("elsewhere", small())

    with installed(kind, NAMESPACED, image, tmp_path) as deployment:
        account = f"--as=system:serviceaccount:{HOME}:archipelago-operator"
        may = ("auth", "can-i", "list", "configmaps", account)
        assert kind.kubectl(*may, check=False).stdout.strip() == "no"
        walk_through_life(served)
        assert deployment.metric("missing_rights") == 0
        time.sleep(QUIET)

    assert "status" not in plans.plan("elsewhere")


def walk_through_life(plans: Plans) -> None:
    """Table, edit, infeasible with the last good one kept, foreign name, event, collection."""
    begin_a_life(plans)
    good = plans.get("configmap", "chat-routing")
    plans.patch("chat", {"budgetPerHour": "0.5"})
    eventually(lambda: plans.ready("chat") == ("False", "Infeasible", 3))
    assert plans.get("configmap", "chat-routing") == good
    eventually(lambda: {"Infeasible"} <= {event["reason"] for event in plans.events("chat")})
    plans.kubectl("delete", "configmap", "chat-routing")
    plans.patch("chat", {"budgetPerHour": "8"})
    eventually(lambda: plans.ready("chat") == ("True", "Published", 4))
    plans.kubectl("delete", "splan", "chat")
    eventually(lambda: not plans.get("configmap", "chat-routing"), within=60)


def test_installed_by_helm_it_serves_and_leaves_the_tables(
    kind: Cluster, image: str, namespace: str, plans: Plans, tmp_path: Path
) -> None:
    """The chart's Deployment runs, beside a CRD that is not Helm's, for one namespace."""
    repository, _, tag = image.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "crds": {"install": False},
        "name": "archipelago-by-helm",
        "namespaces": [plans.namespace],
    }

    def run(*arguments: str | Path) -> None:
        homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        where = (f"--namespace={HOME}", f"--kubeconfig={kind.kubeconfig}")
        subprocess.run(
            [helm(), *arguments, *where],
            input=json.dumps(values),
            env=os.environ | homes,
            check=True,
            text=True,
            timeout=180,
        )

    assert namespace == plans.namespace
    kind.kubectl("apply", "--server-side", "-f", BASE / "namespace.yaml")
    try:
        run("install", "by-helm", CHART, "--values=-", "--wait", "--timeout=120s")
        plans.apply("chat", small())
        plans.wait_ready("chat")
        assert Deployment(kind, "archipelago-by-helm").container()["restartCount"] == 0
    finally:
        run("uninstall", "by-helm", "--wait")
    assert plans.table("chat")
    assert plans.ready("chat")[0] == "True"


def test_a_token_that_ended_is_replaced_by_the_new_one_without_a_restart(
    kind: Cluster, image: str, plans: Plans, tmp_path: Path, report: Callable[[str, float], None]
) -> None:
    """The kubelet writes a new token into the pod before the old one ends, and tells nobody.

    Here the old one ends first: until the new one is there, the API server refuses everything. It
    is killed as well, so that it forgets whom it let in and every watch has to begin anew.
    """
    with installed(kind, BASE, image, tmp_path) as deployment:
        store_token(deployment, "first")
        deployment.patch(with_token_of("operator-token"))
        before = deployment.container()["containerID"]
        plans.apply("chat", small())
        plans.wait_ready("chat")

        deployment.kubectl("delete", "secret", "first")  # which ends the token
        on_node(f"{NAME}-control-plane", "pkill", "-9", "kube-apiserver")
        ended = time.monotonic()
        eventually(lambda: answers(kind), within=120)
        store_token(deployment, "second")
        plans.patch("chat", {"budgetPerHour": "8"})
        eventually(lambda: plans.ready("chat") == ("True", "Published", 2), within=240)

        took = time.monotonic() - ended
        report("token ended to the next table", took)
        assert refused(kind) < MOST_REFUSED * took
        eventually(deployment.is_ready, within=90)
        assert deployment.container()["containerID"] == before
        deployment.kubectl("delete", "secret", "second", "operator-token")


def answers(cluster: Cluster) -> bool:
    """Whether the API server is there."""
    return cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0


def store_token(deployment: Deployment, bound_to: str) -> None:
    """A token of the operator's account that ends with a secret of that name, in another secret."""
    deployment.kubectl("create", "secret", "generic", bound_to)
    bound = ("--bound-object-kind=Secret", f"--bound-object-name={bound_to}")
    token = deployment.kubectl("create", "token", "archipelago-operator", *bound).strip()
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "operator-token"},
        "stringData": {"token": token},
    }
    deployment.kubectl("apply", "-f", "-", input=json.dumps(manifest))


def with_token_of(secret: str) -> dict[str, object]:
    """The pod with the secret's token in place of the kubelet's."""
    certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    mount = {"name": "account", "mountPath": ACCOUNT_FOLDER, "readOnly": True}
    sources = [{"secret": {"name": secret}}, {"configMap": certificate}]
    return {
        "automountServiceAccountToken": False,
        "volumes": [{"name": "account", "projected": {"sources": sources}}],
        "containers": [{"name": "operator", "volumeMounts": [mount]}],
    }
