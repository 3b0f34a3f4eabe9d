"""ServiceMonitor, PodMonitor and PrometheusRule, held to prometheus-operator's own definitions.

They come from its published Go module, whose version and hashes ``definitions/`` pins; ``make
setup`` gets it, and no test does.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import HOME, Object, chart, of_kind
from tests.support.controlplane import Cluster

pytestmark = pytest.mark.cluster

MODULE = Path(__file__).parent / "definitions"
PACKAGE = "github.com/prometheus-operator/prometheus-operator"
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
REMEDY = (
    "get prometheus-operator's definitions once: cd tests/deploy/definitions && go mod download"
)


def definitions() -> list[Path]:
    """Its definitions of our kinds, from Go's cache, whose content is compared with ``go.sum``."""
    if not shutil.which("go"):
        pytest.skip(f"no `go`; {REMEDY}")
    version = (MODULE / "go.mod").read_text().split()[-1]
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{PACKAGE}@{version}"],
        cwd=MODULE,
        env={**os.environ, "GOPROXY": "off", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(REMEDY)
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind.lower()}s.yaml" for kind in KINDS]


@pytest.fixture(scope="module")
def defined(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster in which prometheus-operator's definitions of our kinds are established."""
    files = [argument for path in definitions() for argument in ("-f", path)]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.wait_established(*files)
    cluster.kubectl("create", "namespace", HOME, check=False)
    yield cluster
    cluster.kubectl("delete", "--wait=false", *files)


def ours(**monitoring: object) -> list[Object]:
    """What the chart adds for monitoring with these values."""
    made = chart({"monitoring": monitoring, "crds": {"install": False}})
    return [found for found in made if found["kind"] in (*KINDS, "Service")]


def tried(cluster: Cluster, found: Object) -> tuple[int, str]:
    """What the API server says of creating it: by server-side dry run, with strict validation."""
    done = cluster.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "-f", "-"),
        input=json.dumps(found),
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_by_default_nothing_is_there_that_needs_their_definitions() -> None:
    assert ours() == []
    assert [found for found in chart() if "monitoring.coreos.com" in found["apiVersion"]] == []


@pytest.mark.parametrize("scrape", ["ServiceMonitor", "PodMonitor"])
def test_a_monitor_excludes_the_other_and_is_valid_by_their_definition(
    scrape: str, defined: Cluster
) -> None:
    """A48."""
    made = ours(scrape=scrape, rules=True, interval="15s", labels={"release": "main"})
    kinds = {found["kind"] for found in made}
    assert kinds & {"ServiceMonitor", "PodMonitor"} == {scrape}
    for found in made:
        assert tried(defined, found)[0] == 0, tried(defined, found)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_their_definition_would_refuse_a_field_that_is_wrong(kind: str, defined: Cluster) -> None:
    scrape = kind if kind.endswith("Monitor") else "None"
    (found,) = of_kind(ours(scrape=scrape, rules=True), kind)
    found["spec"]["bogus"] = 1
    status, said = tried(defined, found)
    assert (status, "bogus" in said) == (1, True), said


def test_the_service_of_the_monitor_selects_the_operator_and_the_monitor_the_service() -> None:
    """Labels and port of the pod, the Service, and what is scraped, are one chain."""
    made = chart({"monitoring": {"scrape": "ServiceMonitor"}, "name": "blue"})
    (deployment,), (service,), (monitor,) = (
        of_kind(made, kind) for kind in ("Deployment", "Service", "ServiceMonitor")
    )
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    selected = monitor["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    (port,), (endpoint,) = service["spec"]["ports"], monitor["spec"]["endpoints"]
    assert endpoint["port"] == port["name"]
    assert port["targetPort"] in {named["name"] for named in container["ports"]}
    assert endpoint["honorLabels"] is True


def test_links_lead_where_the_values_say() -> None:
    (rule,) = of_kind(ours(rules=True, runbook="https://wiki.example/ops"), "PrometheusRule")
    links: list[Any] = [
        item["annotations"]["runbook_url"] for item in rule["spec"]["groups"][0]["rules"]
    ]
    assert len(links) == 10
    assert all(link.startswith("https://wiki.example/ops#archipelago") for link in links)
    assert yaml.safe_dump(rule).count("archipelago.dev/docs") == 0
