"""What pages type at a cluster is typed at one: a real API server and the operator beside it.

Pages are gone through from top to bottom in one control plane of their own. The page about the
installation comes last: it removes the definition before it installs it in another way.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.deploy.rendering import helm
from tests.docs.blocks import REPO, Command, Page, pages
from tests.docs.documents import shown, to_apply
from tests.docs.listed import COMMANDS, MENTIONS
from tests.docs.workshop import Workshop, filled, needs_cluster, words
from tests.planner.kubernetes.test_pools import CLIQUE, H100, ZONE, node
from tests.support.controlplane import ControlPlane, binaries, eventually
from tests.support.controlplane.fixtures import CRDS
from tests.support.e2e.operators import Operator, grant, running

pytestmark = pytest.mark.cluster

INSTALL = "docs/how-to/install.md"
PLUGIN = "docs/reference/kubectl-splan.md"
METRICS = "docs/reference/metrics.md"
QUESTIONS = "docs/reference/cli.md"
FIRST = (
    "kubectl apply -f examples/01-llama-on-two-pools.yaml",
    "kubectl wait --for=condition=Ready splan/llama-on-two-pools --timeout=30s",
)
PAGES = {found.name: found for found in pages()}
# What there is before a page is typed; every other page finds the first example served.
BEFORE = {
    INSTALL: ("kubectl delete splan --all",),
    # The certificate that the page makes, which needs no cluster.
    METRICS: (*FIRST, *(c.text for c in PAGES[METRICS].commands if c.text.startswith("openssl"))),
    PLUGIN: (
        "kubectl apply -f examples/02-minimal.yaml",
        "sed 's/minimal/too-small/; s/count: 8/count: 1/' examples/02*.yaml > small.yaml",
        "kubectl apply -f small.yaml",
        "kubectl wait --for=condition=Ready splan/minimal --timeout=30s",
        "kubectl wait --for=condition=Ready=False splan/too-small --timeout=30s",
    ),
}


def typed(found: Page) -> list[Command]:
    """Lines of the blocks, then commands in code marks that say all that they need."""
    lines = [c for c in found.commands if needs_cluster(c.text) and c.text not in COMMANDS]
    mentions = [
        Command(found.name, 0, filled(mention))
        for mention in found.mentions
        if needs_cluster(mention) and mention not in MENTIONS and len(words(mention)) > 3
    ]
    known = {line.text for line in lines}
    return lines + [mention for mention in mentions if mention.text not in known]


def order() -> list[str]:
    """The plugin's page knows no nodes, so it comes before those that list them."""
    having = [name for name, found in PAGES.items() if typed(found)]
    return sorted(having, key=lambda name: (name == INSTALL, name != PLUGIN, name))


@dataclass(frozen=True)
class Site:
    """A control plane, the operator beside it, and the folder in which people type."""

    plane: ControlPlane
    workshop: Workshop
    operator: Operator

    def prepare(self, line: str) -> None:
        done = self.workshop.type(line)
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    if request.config.getoption("kind"):
        pytest.skip("pages begin at an empty cluster, which the one kind cluster is not")
    room = tmp_path_factory.mktemp("docs")
    with ControlPlane.start(manifests=sorted(CRDS.glob("*.yaml"))) as plane:
        workshop = Workshop.at(room / "repository")
        workshop.path = room / "bin"
        workshop.environment = {"KUBECONFIG": str(plane.kubeconfig), "KUBECTL_KUBERC": "false"}
        workshop.path.mkdir()
        (workshop.path / "kubectl").symlink_to(plane.kubectl_binary)
        if found := binaries.find(["helm"]).get("helm"):
            (workshop.path / "helm").symlink_to(found)
        with running(Operator(grant(plane), room / "operator.log")) as operator:
            yield Site(plane, workshop, operator)


@pytest.mark.parametrize("name", order())
def test_what_a_page_types_at_a_cluster_comes_true(name: str, site: Site) -> None:
    for line in BEFORE.get(name, FIRST):
        site.prepare(line)
    if name == QUESTIONS:
        site.prepare(f"kubectl apply --server-side -f - <<'EOF'\n{json.dumps(fleet())}\nEOF")
        for item in fleet()["items"]:
            patch = json.dumps({"status": item["status"]})
            about = f"kubectl patch node {item['metadata']['name']} --subresource=status"
            site.prepare(f"{about} --type=merge -p '{patch}'")
    for command in typed(PAGES[name]):
        assert problem(command, site) == ""


def problem(command: Command, site: Site) -> str:
    """What does not come true of a line."""
    if command.text.startswith("helm "):
        helm()  # skipped with the reason where there is none
        site.operator.end()  # its rights and its definition go
        site.prepare("kubectl delete -k deploy/base")
    if " up --kubeconfig " in command.text:
        return until_ctrl_c(command, site)
    return site.workshop.problem(command)


def until_ctrl_c(command: Command, site: Site) -> str:
    """Type it, wait for its word, press Ctrl-C."""
    at = site.workshop.folder
    first, *rest = words(command.text)
    assert first == "python"
    with subprocess.Popen(
        [sys.executable, *rest],
        cwd=at,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as running_:
        assert running_.stdout is not None
        told = running_.stdout.readline()
        running_.send_signal(signal.SIGINT)
        status = running_.wait(30)
    if not told.startswith("export KUBECONFIG=") or status:
        return f"{command.place}: {command.text}\nended with {status} after {told!r}"
    return ""


def fleet() -> dict[str, Any]:
    """The nodes that the inventory of the page shows: two zones, a cordoned node, a Tesla."""
    l40s = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
    items = [
        *(
            node(f"h-{n}", {**H100, ZONE: zone})
            for n, zone in enumerate(("eu-1a", "eu-1a", "eu-1b"))
        ),
        node("l-0", l40s, 4),
        node("l-1", l40s, 4, cordoned=True),
        node("t-0", {"nvidia.com/gpu.product": "Tesla-P100-SXM2-16GB"}, 4),
        node("cpu-0", gpus=None),
    ]
    assert CLIQUE not in json.dumps(items)
    return {"apiVersion": "v1", "kind": "List", "items": items}


def test_examples_and_what_pages_show_as_yaml_is_taken_by_the_api_server(site: Site) -> None:
    """By server-side dry run; a part of a spec stands in the smallest example."""
    site.prepare("kubectl wait --for=condition=Established crd/servingplans.archipelago.dev")
    site.prepare("kubectl apply --dry-run=server -f examples/")
    objects = [
        applied
        for _, document in shown(PAGES.values())
        if (applied := to_apply(document)) is not None
    ]
    for item in objects:
        site.plane.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(item))
    part = to_apply({"spec": {"budgetPerHour": "0"}})
    refused = site.plane.kubectl(
        "apply", "--dry-run=server", "-f", "-", input=json.dumps(part), check=False
    )
    assert "budgetPerHour must be larger than 0" in refused.stderr


def test_kubectl_has_the_verbs_that_pages_name(site: Site) -> None:
    named = {
        words(mention)[1]
        for found in PAGES.values()
        for mention in found.mentions
        if mention.startswith("kubectl ")
    } - {"splan"}
    assert {"apply", "wait"} <= named
    for verb in named:
        site.prepare(f"kubectl {verb} --help")


def test_the_block_of_the_control_planes_page_is_a_test_that_passes(site: Site) -> None:
    """The README of the control plane, with the ConfigMap that its operator would write."""
    (block,) = [
        b for b in PAGES["tests/support/controlplane/README.md"].blocks if b.language == "python"
    ]
    names: dict[str, Any] = {
        "pytest": pytest, "ControlPlane": ControlPlane, "eventually": eventually
    }  # fmt: skip
    exec(block.text, names)  # noqa: S102  # ours
    (test,) = re.findall(r"^def (\w+)", block.text, re.MULTILINE)
    with site.plane.namespace() as namespace:
        site.plane.kubectl("create", "configmap", "table", f"-n={namespace}")
        names[test](controlplane=site.plane, namespace=namespace)


def test_every_line_for_a_cluster_is_typed_here() -> None:
    """Nothing falls between this file and test_pages.py."""
    lines = {c.text for f in PAGES.values() for c in f.commands if needs_cluster(c.text)}
    done = {c.text for name in order() for c in typed(PAGES[name])}
    assert lines - done - COMMANDS.keys() == set()
    assert (REPO / INSTALL).is_file()
