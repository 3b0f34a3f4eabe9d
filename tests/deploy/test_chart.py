"""The Helm chart: the same objects as the kustomize base, and no value that it does not know."""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.operator.admin_file import read_admin_file
from archipelago.operator.settings import Settings
from archipelago.operator.traffic.config import MetricSource
from tests.deploy.rendering import (
    BASE,
    CHART,
    DEPLOY,
    HOME,
    NAME,
    NAMESPACED,
    Object,
    by_name,
    chart,
    helm,
    kustomize,
    of_kind,
    refusal,
)
from tests.support.controlplane import Cluster, ControlPlane
from tests.support.e2e.operators import resource, small

pytestmark = pytest.mark.cluster

KEEP = {"helm.sh/resource-policy": "keep"}
CRD = ("CustomResourceDefinition", "", "servingplans.archipelago.dev")
# What stands in the container already or follows from another value.
NO_SETTING = {"namespaces", "http_host", "http_port", "admin_file"}
NO_SETTING |= {"metrics_certificate", "metrics_port"}
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
SOURCE = {"name": "one", "kind": "prometheus", "address": "https://prometheus:9090"}
PROMETHEUS = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
]


def kustomized(folder: Path) -> dict[tuple[str, str, str], Object]:
    """Kustomize's objects, less the namespace, which Helm makes or finds by itself."""
    objects = kustomize(folder)
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["name"] == HOME
    objects.remove(namespace)
    return by_name(objects)


def charted(**values: object) -> dict[tuple[str, str, str], Object]:
    """Helm's objects, less the one annotation that is Helm's own."""
    objects = by_name(chart(values))
    assert objects[CRD]["metadata"].pop("annotations") == KEEP
    return objects


def test_without_a_value_the_chart_is_the_base() -> None:
    assert charted() == kustomized(BASE)


def test_for_one_namespace_the_chart_is_the_overlay() -> None:
    objects = kustomized(NAMESPACED)
    (namespace,) = {
        place
        for kind, place, name in objects
        if (kind, name) == ("RoleBinding", "archipelago-operator")
    }
    assert charted(namespaces=[namespace]) == objects


def test_with_a_prometheus_the_chart_is_the_component(tmp_path: Path) -> None:
    """Also that the component works in somebody's overlay, with resources by relative path."""
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components" / "prometheus", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    assert charted(networkPolicy={"prometheus": {"to": PROMETHEUS}}) == kustomized(tmp_path)


def test_with_the_address_of_the_api_server_the_chart_is_the_component(tmp_path: Path) -> None:
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components" / "apiserver", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    to = [{"ipBlock": {"cidr": cidr}} for cidr in ("10.96.0.1/32", "192.0.2.0/28")]
    assert charted(networkPolicy={"apiServer": {"to": to}}) == kustomized(tmp_path)


def test_with_devices_of_dra_the_chart_is_the_component(tmp_path: Path) -> None:
    for folder, values in ((BASE, {}), (NAMESPACED, {"namespaces": ["serving"]})):
        overlay = {
            "resources": [os.path.relpath(folder, tmp_path)],
            "components": [os.path.relpath(DEPLOY / "components" / "dra", tmp_path)],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
        assert charted(dra=True, **values) == kustomized(tmp_path)


def test_with_a_certificate_of_the_metrics_the_chart_is_the_component(tmp_path: Path) -> None:
    """Rights, port, network and the monitor turn together."""
    components = [DEPLOY / "components" / name for name in ("servicemonitor", "metrics-tls")]
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(component, tmp_path) for component in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    values = {"certificateSecret": "archipelago-operator-metrics"}
    made = charted(metrics=values, monitoring={"scrape": "ServiceMonitor"})
    assert mounts_in_any_order(made) == mounts_in_any_order(kustomized(tmp_path))

    issuer = {"kind": "ClusterIssuer", "name": "cluster-ca"}
    (certificate,) = of_kind(chart({"metrics": {**values, "issuer": issuer}}), "Certificate")
    (monitor,) = (found for (kind, _, _), found in made.items() if kind == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert certificate["spec"]["issuerRef"] == issuer
    assert certificate["spec"]["secretName"] == endpoint["tlsConfig"]["ca"]["secret"]["name"]
    assert certificate["spec"]["dnsNames"] == [endpoint["tlsConfig"]["serverName"]]
    said = refusal({"metrics": values, "monitoring": {"scrape": "PodMonitor"}})
    assert "use ServiceMonitor, or leave metrics.certificateSecret empty" in said


def test_an_image_is_named_by_the_digest_that_was_verified() -> None:
    digest = f"sha256:{'0a' * 32}"
    (deployment,) = of_kind(chart({"image": {"repository": "r/i", "digest": digest}}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"r/i:0.1.0@{digest}"


def test_rights_and_rules_that_are_not_needed_are_left_out() -> None:
    """Without an inventory no nodes and pods; roles, policies and classes that others have."""
    objects = chart(
        {
            "settings": {"inventory": "Off"},
            "userRoles": False,
            "admissionPolicies": False,
            "priorityClass": {"name": "their-own"},
            "replicas": 1,
        }
    )
    (role,) = of_kind(objects, "ClusterRole")
    assert {name for rule in role["rules"] for name in rule["resources"]} == {
        *("servingplans", "servingplans/status", "configmaps", "events")
    }
    kinds = {found["kind"] for found in objects}
    assert kinds & {"PodDisruptionBudget", "PriorityClass", "ValidatingAdmissionPolicy"} == set()
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == "their-own"


def test_with_metric_sources_the_chart_is_the_component(tmp_path: Path) -> None:
    """The list as the operator's file, and secrets as folders that cannot be written to."""
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components" / "sources", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    wanted = mounts_in_any_order(kustomized(tmp_path))
    file = wanted["ConfigMap", HOME, f"{NAME}-sources"]["data"]["sources.yaml"]
    (tmp_path / "sources.yaml").write_text(file)
    (source,) = read_admin_file(tmp_path / "sources.yaml").sources
    assert source.name == "cluster"

    given = yaml.safe_load(file)["sources"]
    made = charted(metricSources=given, metricSourceSecrets=["prometheus-reader"])
    assert mounts_in_any_order(made) == wanted


def test_with_islands_of_its_own_the_chart_is_the_component(tmp_path: Path) -> None:
    """Rights and a policy; more for LeaderWorkerSets, and none outside the served namespaces."""
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components" / "islands", tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    made = charted(settings={"islands": "Deployments"})
    assert made == kustomized(tmp_path)
    islands = [key for key in made if key[2] == f"{NAME}-islands"]
    assert len(islands) == len(made) - len(charted()) == 4

    values = {"settings": {"islands": "LeaderWorkerSets"}, "namespaces": ["blue"]}
    (role,) = (found for found in of_kind(chart(values), "Role") if "islands" in str(found))
    assert role["metadata"]["namespace"] == "blue"
    assert {rule["apiGroups"][0] for rule in role["rules"]} == {"apps", "leaderworkerset.x-k8s.io"}


def mounts_in_any_order(
    objects: dict[tuple[str, str, str], Object],
) -> dict[tuple[str, str, str], Object]:
    """Kustomize puts what it adds before what was there; that has no meaning."""
    for kind, _, name in objects:
        if kind == "Deployment":
            pod = objects[kind, HOME, name]["spec"]["template"]["spec"]
            pod["volumes"].sort(key=lambda volume: volume["name"])
            pod["containers"][0]["volumeMounts"].sort(key=lambda mount: mount["name"])
    return objects


def test_secrets_are_mounted_for_sources_only_and_never_to_be_written() -> None:
    assert by_name(chart({"metricSourceSecrets": ["spare"]})) == by_name(chart())
    objects = chart({"metricSources": [SOURCE], "metricSourceSecrets": ["one", "two"]})
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    added = [mount for mount in container["volumeMounts"] if mount["name"] != "tmp"]
    assert [(mount["mountPath"], mount["readOnly"]) for mount in added] == [
        ("/etc/archipelago/sources", True),
        ("/etc/archipelago/secrets/one", True),
        ("/etc/archipelago/secrets/two", True),
    ]
    file = Path(variables(objects)["ARCHIPELAGO_ADMIN_FILE"])
    assert str(file.parent) == "/etc/archipelago/sources"
    (config,) = of_kind(objects, "ConfigMap")
    assert file.name in config["data"]


def test_a_source_has_the_fields_that_the_operator_reads() -> None:
    read = {field.alias or name for name, field in MetricSource.model_fields.items()}
    assert set(SCHEMA["definitions"]["source"]["properties"]) == read


@pytest.mark.parametrize(
    ("component", "values"),
    [
        ("alerts", {"rules": True}),
        ("servicemonitor", {"scrape": "ServiceMonitor"}),
        ("podmonitor", {"scrape": "PodMonitor"}),
    ],
)
def test_what_is_monitored_is_the_component(
    component: str, values: dict[str, Any], tmp_path: Path
) -> None:
    overlay = {
        "resources": [os.path.relpath(BASE, tmp_path)],
        "components": [os.path.relpath(DEPLOY / "components" / component, tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    assert charted(monitoring=values) == kustomized(tmp_path)
    assert len(charted(monitoring=values)) > len(charted())


def test_two_namespaces_are_two_bindings_and_no_right_elsewhere() -> None:
    objects = chart({"namespaces": ["blue", "green"]})
    (of_nodes,) = of_kind(objects, "ClusterRoleBinding")
    assert of_nodes["roleRef"]["name"] == "archipelago-operator-nodes"
    places = {binding["metadata"]["namespace"] for binding in of_kind(objects, "RoleBinding")}
    assert places == {"blue", "green", "archipelago-system"}  # the last one: its Lease
    assert variables(objects)["ARCHIPELAGO_NAMESPACES"] == "blue,green"


def test_two_installations_share_no_name() -> None:
    """The CRD apart, which is one for the cluster: the second leaves it out."""
    first, second = by_name(chart()), by_name(chart({"name": "blue", "crds": {"install": False}}))
    assert set(first) & set(second) == set()
    (policy,) = (found for key, found in second.items() if key[0] == "NetworkPolicy")
    (deployment,) = (found for key, found in second.items() if key[0] == "Deployment")
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected == {"app.kubernetes.io/name": "blue"}
    assert selected.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_values_that_yaml_could_take_for_something_else_arrive_as_they_are() -> None:
    """A namespace called null, and a number that Go would write as 1.048576e+06."""
    objects = chart(
        {
            "name": "true",
            "namespaces": ["null", "1e3"],
            "settings": {"plannerMemoryMib": 1048576, "resyncSeconds": 0.5, "logLevel": "DEBUG"},
        },
        namespace="123",
    )
    assert variables(objects).items() >= {
        ("ARCHIPELAGO_NAMESPACES", "null,1e3"),
        ("ARCHIPELAGO_PLANNER_MEMORY_MIB", "1048576"),
        ("ARCHIPELAGO_RESYNC_SECONDS", "0.5"),
        ("ARCHIPELAGO_LOG_LEVEL", "DEBUG"),
    }
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["metadata"]["name"] == "true"
    assert deployment["metadata"]["namespace"] == "123"
    Settings.from_environment(variables(objects))


def variables(objects: list[Object]) -> dict[str, str]:
    """The operator's environment, as far as it is written down."""
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


def closed(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every object of the values that has named keys: each must refuse any other."""
    if "properties" in schema:
        yield path
        for name, inner in schema["properties"].items():
            yield from closed(inner, (*path, name))


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The value under that path of keys."""
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("path", list(closed(SCHEMA)), ids=lambda path: ".".join(path) or "top")
def test_a_key_that_nobody_knows_is_refused(path: tuple[str, ...]) -> None:
    assert "additional properties 'bogus' not allowed" in refusal(nested((*path, "bogus"), 1))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"namespaces": ["Upper"]}, "does not match pattern"),
        ({"namespaces": ["a", "a"]}, "items at 0 and 1 are equal"),
        ({"image": {"pullPolicy": "Sometimes"}}, "value must be one of"),
        ({"image": {"digest": "sha256:latest"}}, "does not match pattern"),
        ({"settings": {"planners": 0}}, "minimum"),
        ({"networkPolicy": {"dns": {"to": [{"podSelektor": {}}]}}}, "podSelektor"),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, "minItems"),
        ({"tolerations": [{"kee": "gpu"}]}, "kee"),
        ({"metricSources": [{"name": "one"}]}, "missing properties"),
        ({"metricSources": [{**SOURCE, "tokn": "/t"}]}, "tokn"),
        ({"metricSources": [{**SOURCE, "address": "https://me@host"}]}, "does not match pattern"),
        ({"metricSourceSecrets": ["../up"]}, "does not match pattern"),
        ({"monitoring": {"scrape": "Both"}}, "value must be one of"),
        ({"monitoring": {"runbook": "file:///etc"}}, "does not match pattern"),
    ],
)
def test_a_value_that_cannot_be_is_refused(values: dict[str, Any], said: str) -> None:
    assert said in refusal(values)


def test_every_value_is_in_the_schema_and_every_setting_can_be_given() -> None:
    def keys(values: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        if isinstance(values, dict) and path in set(closed(SCHEMA)):
            yield path
            for name, value in values.items():
                yield from keys(value, (*path, name))

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(keys(values)) == set(closed(SCHEMA))
    assert set(SCHEMA["properties"]) == {*values, "global"}  # Helm's own
    known = {field.name for field in fields(Settings)} - NO_SETTING
    settings = SCHEMA["properties"]["settings"]["properties"]
    assert {re.sub("([A-Z])", r"_\1", name).lower() for name in settings} == known


CLAIMS = [
    {"namespaces": ["chat", "team-*"], "nodeSelector": {"on": "1e3"}, "maxGpus": {"H100": 2000000}},
    {"namespaces": ["*"], "maxGpus": 10000000, "maxPriority": 7},
]
STARTED = [{"namespaces": ["team-*"], "maxIslands": 8, "maxGpus": 2000000}]
CATALOGUE = {
    "accelerators": [{"name": "H100-64GB", "like": "H100", "memoryGibibytes": "64"}],
    "models": [{"name": "me/M", "config": {"inline": {"hidden_size": 4096, "rope_theta": 1e6}}}],
}
CHOICES: list[list[dict[str, Any]]] = [
    [{}, {"replicas": 1}, {"replicas": 9}],
    [{}, {"image": {"variant": "bayes"}}, {"image": {"digest": f"sha256:{'0a' * 32}"}}],
    [{}, {"namespaces": ["default", "kube-public"]}],
    [{}, {"nodeClaims": CLAIMS}, {"nodeClaims": CLAIMS, "tellNamespaces": False}],
    [{}, {"startedIslands": STARTED}],
    [{}, {"catalogue": CATALOGUE}],
    [{}, {"settings": {"islands": "LeaderWorkerSets"}}],
    [{}, {"metricSources": [SOURCE], "metricSourceSecrets": ["one"]}],
    [{}, {"metrics": {"certificateSecret": "of-metrics"}}],
    [{}, {"networkPolicy": {"enabled": False}}, {"networkPolicy": {"scrapers": []}},
     {"networkPolicy": {"apiServer": {"to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]}}}],
    [{}, {"settings": {"inventory": "Off"}}, {"settings": {"leaderLeaseDuration": 30}}],
    [{}, {"userRoles": False, "admissionPolicies": False}, {"priorityClass": {"name": "other"}}],
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_values_in_any_combination_give_objects_that_the_api_server_takes(
    seed: int, cluster: Cluster, tmp_path: Path
) -> None:
    """And an operator reads its settings and its administrator's file."""
    drawn = random.Random(seed)  # noqa: S311  # tests
    values: dict[str, Any] = {"crds": {"install": False}, "name": f"drawn-{seed}"}
    for choices in CHOICES:
        values |= drawn.choice(choices)
    objects = chart(values, namespace="default")
    Settings.from_environment(variables(objects))
    for config in of_kind(objects, "ConfigMap"):
        (tmp_path / "sources.yaml").write_text(config["data"]["sources.yaml"])
        read = read_admin_file(tmp_path / "sources.yaml")
        assert len(read.sources) == len(values.get("metricSources", ()))
        assert len(read.node_claims) == len(values.get("nodeClaims", ()))
        assert len(read.started_islands) == len(values.get("startedIslands", ()))
        assert len(read.catalogue.models) == len(values.get("catalogue", {}).get("models", ()))
    cluster.kubectl(
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"),
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )


def test_two_replicas_without_a_leader_are_refused() -> None:
    assert "set replicas to 1" in refusal({"settings": {"leaderElection": "Off"}})
    assert chart({"settings": {"leaderElection": "Off"}, "replicas": 1})


def test_the_definition_is_a_template_that_can_be_left_out() -> None:
    """Helm never upgrades what lies in crds/."""
    assert not (CHART / "crds").exists()
    assert of_kind(chart({"crds": {"install": False}}), CRD[0]) == []
    (loose,) = of_kind(chart({"crds": {"keep": False}}), CRD[0])
    assert "annotations" not in loose["metadata"]


def test_helm_finds_nothing_to_complain_about() -> None:
    done = subprocess.run(
        [helm(), "lint", "--strict", CHART], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of its own: in the shared one our CRD is there already, and not Helm's."""
    helm()
    request.getfixturevalue("controlplane")  # skipped on kind
    with ControlPlane.start() as plane:
        yield plane


def test_the_chart_installs_upgrades_and_leaves_the_plans_behind(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Helm's own life cycle on a real API server; uninstalling takes no plan away."""

    def run(*arguments: str | Path) -> str:
        homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [helm(), *arguments, f"--namespace={HOME}", f"--kubeconfig={plane.kubeconfig}"],
            env=os.environ | homes,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    definition = older / "files" / "archipelago.dev_servingplans.yaml"
    definition.write_text(definition.read_text().replace("    shortNames:\n    - splan\n", ""))
    said = run("install", "archipelago", older, "--create-namespace")
    assert "2 replicas, of which one leads" in said
    assert f"kubectl -n {HOME} rollout status deployment/{NAME}" in said
    plane.wait_established(f"crd/{CRD[2]}")
    plane.kubectl("apply", "-f", "-", input=json.dumps(resource("chat", small())))
    uid = ("get", "servingplan", "chat", "-o=jsonpath={.metadata.uid}")
    made = plane.kubectl(*uid).stdout

    run("upgrade", "archipelago", CHART, "--set=settings.planners=1")

    crd = json.loads(plane.kubectl("get", "crd", CRD[2], "-o=json").stdout)
    assert crd["spec"]["names"]["shortNames"] == ["splan"]  # upgraded, unlike crds/
    variable = "-o=jsonpath={.spec.template.spec.containers[0].env[*].name}"
    names = plane.kubectl("get", "deploy", NAME, f"-n={HOME}", variable).stdout
    assert "ARCHIPELAGO_PLANNERS" in names
    run("uninstall", "archipelago")
    assert plane.kubectl("get", "deploy", f"-n={HOME}", "-o=name").stdout == ""
    assert plane.kubectl(*uid).stdout == made
    run("install", "archipelago", CHART)  # finds its own CRD again
    assert plane.kubectl(*uid).stdout == made
