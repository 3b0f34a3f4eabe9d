"""What may reach the operator and what it may reach, as both installers write it down.

Whether packets are dropped is up to the cluster's network plugin; ours enforces none.
"""

from typing import Any

import pytest

from tests.deploy.rendering import BASE, NAMESPACED, Object, chart, kustomize, of_kind

pytestmark = pytest.mark.cluster

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


def test_only_the_port_of_probes_and_metrics_is_reached(objects: list[Object]) -> None:
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    (rule,) = policy(objects)["ingress"]
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


def test_the_api_server_and_those_who_ask_for_metrics_can_be_named() -> None:
    address = {"ipBlock": {"cidr": "192.0.2.7/32"}}
    given = {"apiServer": {"to": [address], "ports": [6443]}, "ingressFrom": [MONITORING]}
    spec = policy(chart({"networkPolicy": given}))
    _, apiserver = spec["egress"]
    assert apiserver == {"ports": [{"protocol": "TCP", "port": 6443}], "to": [address]}
    (rule,) = spec["ingress"]
    assert rule["from"] == [MONITORING]


def test_without_dns_the_rule_is_gone_and_not_open() -> None:
    """An empty list of peers in a rule would mean everybody."""
    (apiserver,) = policy(chart({"networkPolicy": {"dns": {"to": []}}}))["egress"]
    assert ports(apiserver) == {("TCP", 443), ("TCP", 6443)}


def test_it_can_be_left_to_others() -> None:
    assert of_kind(chart({"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []
