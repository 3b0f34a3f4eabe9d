"""Who may do what, as installed for one namespace: roles and policies at a real API server.

The rendered objects are renamed, so that nothing of another test's installation helps or hinders.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import HOME, NAME, NAMESPACED, Object, kustomize, of_kind
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import Operator, Plans, resource, running, small

pytestmark = pytest.mark.cluster

# People, and the role of Kubernetes' own that a RoleBinding of the namespace gives them.
PEOPLE = {"vera": "view", "edward": "edit", "ada": "admin", "otto": "cluster-admin"}


@dataclass(frozen=True)
class Installation:
    """The overlay for one namespace under another name; ``account`` is the operator's user."""

    cluster: Cluster
    namespace: str
    name: str
    objects: list[Object]

    @property
    def account(self) -> str:
        return f"system:serviceaccount:{HOME}:{self.name}"

    def refusal(self, user: str, *args: str | Path, of: Object | None = None) -> str:
        """What the API server says to the user's request; empty where it does it."""
        done = self.cluster.kubectl(
            *(f"--as={user}", f"-n={self.namespace}", *args),
            *(["-f", "-"] if of else []),
            input=json.dumps(of) if of else None,
            check=False,
        )
        return done.stderr if done.returncode else ""

    def may(self, user: str, verb: str, what: str, where: str | None = None) -> bool:
        """Whether the user has a right, by default in the installation's namespace."""
        kind, _, part = what.partition("/")
        done = self.cluster.kubectl(
            *("auth", "can-i", verb, kind, f"--subresource={part}", f"--as={user}"),
            "-A" if where == "" else f"-n={where or self.namespace}",
            check=False,
        )
        return done.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Installation]:
    with cluster.namespace("tenants") as namespace:
        name = f"operator-{namespace}"
        rendered = yaml.safe_dump(kustomize(NAMESPACED))
        rendered = rendered.replace(NAME, name).replace(": serving\n", f": {namespace}\n")
        rendered = rendered.replace("- serving\n", f"- {namespace}\n")
        objects: list[Object] = yaml.safe_load(rendered)
        applied = [found for found in objects if found["kind"] != "CustomResourceDefinition"]
        for user, role in PEOPLE.items():
            about = {"name": user, "namespace": namespace}
            group = "rbac.authorization.k8s.io"
            applied.append(
                {
                    "apiVersion": f"{group}/v1",
                    "kind": "RoleBinding",
                    "metadata": about,
                    "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                    "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
                }
            )
        cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(applied))
        made = Installation(cluster, namespace, name, objects)
        # Roles are aggregated, and policies are in force, a moment after they are stored.
        eventually(lambda: made.may("vera", "get", "servingplans.archipelago.dev"), within=30)
        eventually(lambda: made.may("edward", "create", "servingplans.archipelago.dev"), within=30)
        forged = ("create", "--dry-run=server")
        eventually(
            lambda: "ValidatingAdm" in made.refusal("edward", *forged, of=table()), within=30
        )
        yield made
        kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy")
        for kind in (*kinds, "ValidatingAdmissionPolicyBinding"):
            cluster.kubectl(
                "delete", kind, *(found["metadata"]["name"] for found in of_kind(objects, kind))
            )


def table(**metadata: object) -> Object:
    """A ConfigMap that the operator would take for one of its tables."""
    labels = {"app.kubernetes.io/managed-by": "archipelago"}
    about = {"name": "forged-routing", "labels": labels, **metadata}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "data": {"table.json": "{}"},
    }


@pytest.mark.parametrize(
    ("user", "verbs"),
    [
        ("vera", {"get", "list", "watch"}),
        ("edward", {"get", "list", "watch", "create", "update", "patch", "delete"}),
        ("ada", {"get", "list", "watch", "create", "update", "patch", "delete"}),
        ("nobody", set()),
    ],
)
def test_kubernetes_own_roles_include_plans(
    installed: Installation, user: str, verbs: set[str]
) -> None:
    every = ("get", "list", "watch", "create", "update", "patch", "delete")
    plans = "servingplans.archipelago.dev"
    assert {verb for verb in every if installed.may(user, verb, plans)} == verbs
    reads = bool(verbs)
    assert installed.may(user, "get", plans + "/status") == reads
    assert installed.may(user, "get", "configmaps") == reads  # the tables
    assert not installed.may(user, "patch", plans + "/status")
    assert not installed.may(user, "get", plans, "default")


def test_the_operator_of_one_namespace_has_rights_there_alone(installed: Installation) -> None:
    """In the cluster it sees nodes, and nothing else."""
    for verb, what in (("list", "pods"), ("get", "configmaps"), ("watch", "configmaps")):
        assert installed.may(installed.account, verb, what)
        assert not installed.may(installed.account, verb, what, "default")
        assert not installed.may(installed.account, verb, what, "")
    assert installed.may(installed.account, "list", "nodes", "")
    bound = of_kind(installed.objects, "ClusterRoleBinding")
    assert [binding["roleRef"]["name"] for binding in bound] == [f"{installed.name}-nodes"]


def test_the_operator_works_with_the_rights_of_one_namespace(
    installed: Installation, tmp_path: Path
) -> None:
    """From a plan of somebody with `edit` to its table, and back to it after a forgery."""
    (deployment,) = of_kind(installed.objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    kubeconfig = installed.cluster.service_account_kubeconfig(HOME, installed.name)
    plans = Plans(installed.cluster, installed.namespace)
    operator = Operator(kubeconfig, tmp_path / "log", settings | {"ARCHIPELAGO_PLANNERS": "1"})
    with running(operator):
        assert installed.refusal("edward", "apply", of=resource("chat", small())) == ""
        plans.wait_ready("chat")
        stored = plans.get("configmap", "chat-routing")

        # Somebody who may do everything in the namespace may not do this.
        for change in (
            ["label", "configmap", "chat-routing", "app.kubernetes.io/managed-by-"],
            ["annotate", "configmap", "chat-routing", "note=mine"],
            ["patch", "configmap", "chat-routing", "-p", '{"data": {"table.json": "{}"}}'],
            ["patch", "configmap", "chat-routing", "-p", '{"immutable": true}'],
            ["patch", "configmap", "chat-routing", "-p", '{"metadata": {"finalizers": ["a/b"]}}'],
        ):
            said = installed.refusal("otto", *change)
            assert (
                "otto is not the operator: change the ServingPlan, or delete chat-routing" in said
            )
        status = '{"status": {"observedGeneration": 9}}'
        said = installed.refusal(
            *(
                "otto",
                "patch",
                "splan",
                "chat",
                "--subresource=status",
                "--type=merge",
                "-p",
                status,
            )
        )
        assert "only the operator writes the status of a ServingPlan, and otto is not" in said
        assert "change the spec of chat instead" in said
        assert plans.get("configmap", "chat-routing") == stored

        # Deleting is no forgery, and the operator writes it anew.
        assert installed.refusal("edward", "delete", "configmap", "chat-routing") == ""
        eventually(lambda: plans.get("configmap", "chat-routing").get("data") is not None)
        assert operator.metric("missing_rights") == 0
        plans.clear()


@pytest.mark.parametrize(
    ("user", "made", "said"),
    [
        ("edward", table(), "edward is not the operator"),
        ("otto", table(), "otto is not the operator"),
        ("ada", table(generateName="x-", name=None), "ada is not the operator"),
        ("edward", table(labels={"app.kubernetes.io/managed-by": "Helm"}), ""),
        ("edward", table(labels=None), ""),
        ("system:admin", table(), "cannot create"),  # no such user: RBAC says so, not we
    ],
    ids=["edit", "everything", "generated", "of-others", "no-label", "nobody"],
)
def test_nobody_but_the_operator_makes_a_table(
    installed: Installation, user: str, made: Object, said: str
) -> None:
    answer = installed.refusal(user, "create", "--dry-run=server", of=made)
    assert said in answer
    assert bool(answer) == bool(said)


def test_administrators_of_the_cluster_may_still_repair_a_table(installed: Installation) -> None:
    """Those who may write any status, as Kubernetes' own controllers may."""
    found = installed.cluster.kubectl(
        *("create", "--dry-run=server", f"-n={installed.namespace}", "-f", "-"),
        input=json.dumps(table()),
    )
    assert "forged-routing created" in found.stdout


SOURCES, NODES = "archipelago.dev/metric-sources", "archipelago.dev/node-selector"


def following(*selectors: dict[str, str]) -> dict[str, Any]:
    """A spec whose pools follow nodes."""
    pool = {name: value for name, value in small()["pools"][0].items() if name != "count"}
    pools = [
        pool | {"name": f"p{number}", "nodeSelector": found}
        for number, found in enumerate(selectors)
    ]
    return small(pools=pools)


@pytest.mark.parametrize(
    ("annotations", "spec", "said"),
    [
        ({}, small(replanning={"source": "any"}), ""),
        ({SOURCES: "main, spare"}, small(replanning={"source": "spare"}), ""),
        ({SOURCES: "main, spare"}, small(), ""),
        ({SOURCES: "main, spare"}, small(replanning={"source": "par"}), "sources [main, spare]"),
        ({SOURCES: ""}, small(replanning={"source": "main"}), "may use the metric sources []"),
        ({NODES: "team=a"}, small(), ""),
        ({NODES: "team=a"}, following({"team": "a", "gpu": "h100"}), ""),
        ({NODES: "team=a"}, following({"team": "b"}), "nodes with team=a"),
        ({NODES: "team=a"}, following({"team": "a"}, {"gpu": "h100"}), "add these labels"),
        ({NODES: "team=a, zone=x/y"}, following({"team": "a"}), "team=a, zone=x/y"),
        ({NODES: "team=a, zone="}, following({"team": "a", "zone": ""}), ""),
    ],
)
def test_a_namespace_says_what_its_plans_may_name(
    installed: Installation, annotations: dict[str, str], spec: dict[str, Any], said: str
) -> None:
    """Its users cannot change the annotations: a namespace is the cluster's."""
    known = [f"{name}={annotations[name]}" if name in annotations else f"{name}-"
             for name in (SOURCES, NODES)]  # fmt: skip
    installed.cluster.kubectl("annotate", "--overwrite", "namespace", installed.namespace, *known)
    answer = ""

    def as_expected() -> bool:  # the API server's admission sees namespaces a moment later
        nonlocal answer
        answer = installed.refusal("edward", "create", "--dry-run=server", of=resource("p", spec))
        return said in answer and bool(answer) == bool(said)

    eventually(as_expected, within=10)
    for user in ("edward", "ada"):
        assert "cannot patch" in installed.refusal(
            user, "annotate", "ns", installed.namespace, "a=b"
        )
