"""Metrics over TLS as the component installs them: who gets them, by a real API server."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.rendering import DEPLOY, HOME, NAME
from tests.operator.test_endpoints import certify
from tests.support.controlplane import Cluster, eventually
from tests.support.e2e.operators import Operator, running

pytestmark = pytest.mark.cluster

SERVER = f"{NAME}.{HOME}.svc"
ROLES = DEPLOY / "components" / "metrics-tls" / "roles.yaml"


@pytest.fixture
def secured(prepared: Operator, tmp_path: Path) -> Operator:
    """An operator, not started, that has a certificate as the page on metrics makes it."""
    certify(tmp_path, SERVER)
    prepared.settings = {
        **prepared.settings,
        "ARCHIPELAGO_METRICS_CERTIFICATE": str(tmp_path),
        "ARCHIPELAGO_METRICS_PORT": "0",
    }
    return prepared


@pytest.fixture
def reviews(cluster: Cluster) -> Iterator[None]:
    """The component's roles, until the end of the test."""
    cluster.kubectl("apply", "--server-side", "-f", ROLES)
    yield
    cluster.kubectl("delete", "-f", ROLES)


def scraped(operator: Operator, folder: Path, token: str) -> tuple[int, str]:
    """Status and page that Prometheus gets, which checks the certificate and the server's name."""
    started = [line for line in operator.lines() if line["message"] == "started"][-1]
    trust = ssl.create_default_context(cafile=folder / "tls.crt")
    trust.check_hostname = False  # by address here
    request = urllib.request.Request(
        f"https://127.0.0.1:{started['metrics_port']}/metrics",
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.usefixtures("reviews")
def test_an_account_with_the_readers_role_gets_metrics_and_no_other(
    cluster: Cluster, secured: Operator, namespace: str, tmp_path: Path
) -> None:
    for account in ("prometheus", "curious"):
        cluster.kubectl("create", "serviceaccount", account, f"-n={namespace}")
    reader = f"{namespace}-reader"
    cluster.kubectl(
        *("create", "clusterrolebinding", reader, f"--clusterrole={NAME}-metrics-reader"),
        f"--serviceaccount={namespace}:prometheus",
    )

    def token(account: str) -> str:
        return cluster.kubectl("create", "token", account, f"-n={namespace}").stdout.strip()

    with running(secured):
        status, page = scraped(secured, tmp_path, token("prometheus"))
        assert status == 200
        assert "archipelago_queue_depth" in page
        status, page = scraped(secured, tmp_path, token("curious"))
        assert status == 403
        assert page.startswith(f"system:serviceaccount:{namespace}:curious needs a ClusterRole")
        assert scraped(secured, tmp_path, "made-up")[0] == 401
        assert secured.answer("/metrics")[0] == 404
        assert secured.answer("/readyz") == (200, "ok\n")
    cluster.kubectl("delete", "clusterrolebinding", reader)


def test_without_the_roles_it_says_so_and_shows_nothing(
    cluster: Cluster, secured: Operator, namespace: str, tmp_path: Path
) -> None:
    cluster.kubectl("create", "serviceaccount", "prometheus", f"-n={namespace}")
    token = cluster.kubectl("create", "token", "prometheus", f"-n={namespace}").stdout.strip()
    rights = [
        (rule["verbs"][0], f"{rule['resources'][0]}.{rule['apiGroups'][0]}")
        for role in yaml.safe_load_all(ROLES.read_text())
        for rule in role.get("rules", [])
        if "resources" in rule
    ]
    secured.begin()
    try:
        wanted = {f"missing right: {verb} {what} in all namespaces" for verb, what in rights}
        eventually(lambda: wanted <= set(secured.answer("/readyz")[1].splitlines()), within=60)
        assert len(wanted) == 2
        status, page = scraped(secured, tmp_path, token)
        assert status == 503
        assert "archipelago_" not in page
    finally:
        assert secured.end() == 0
