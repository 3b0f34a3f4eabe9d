"""``archipelago render``: a real API server takes what it writes, and twice changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from archipelago.planner.podtemplate import read_template
from archipelago.planner.spec import load_resource
from archipelago.planner.workloads import Wish, workloads
from tests.e2e.operators import ROOT
from tests.manifests.cases import good
from tests.planner.test_workloads import content, island

if TYPE_CHECKING:
    from pathlib import Path

    from tests.controlplane import Cluster

pytestmark = pytest.mark.cluster

TEMPLATE = ROOT / "examples" / "render" / "vllm.yaml"
PLAN = "archipelago.dev/plan"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first example, planned and rendered by the installed command."""
    plan: Path = tmp_path_factory.mktemp("render") / "plan.json"
    plan.write_text(_archipelago("plan", "-q", "-o", "json", "-f", str(_example())))
    return _archipelago("render", str(plan), "--pod-template", str(TEMPLATE))


def _example() -> Path:
    found: Path = ROOT / "examples" / "01-llama-on-two-pools.yaml"
    return found


def _archipelago(*arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "archipelago.planner", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_is_rendered_is_stored_as_it_is_and_applied_twice_changes_nothing(
    cluster: Cluster, namespace: str, manifests: str
) -> None:
    """Strict validation: a field that the API server does not know would be a warning."""
    wanted = list(yaml.safe_load_all(manifests))
    apply = ("apply", f"-n={namespace}", "--validate=strict", "-f", "-")
    first = cluster.kubectl(*apply, input=manifests).stdout
    assert first.count(" created") == len(wanted) >= 10
    second = cluster.kubectl(*apply, input=manifests).stdout
    assert second.count(" unchanged") == len(wanted)
    show = ("get", "deployments", f"-n={namespace}", "-l", f"{PLAN}=llama-on-two-pools", "-o=json")
    stored = {
        item["metadata"]["name"]: item
        for item in json.loads(cluster.kubectl(*show).stdout)["items"]
    }
    assert len(stored) == len(wanted)
    for document in wanted:
        pod = stored[document["metadata"]["name"]]["spec"]["template"]
        asked = document["spec"]["template"]
        assert pod["metadata"]["labels"] == asked["metadata"]["labels"]
        (has,), (given,) = pod["spec"]["containers"], asked["spec"]["containers"]
        assert has["args"] == given["args"]
        assert has["resources"]["limits"] == given["resources"]["limits"]


def test_a_phase_may_change_under_the_same_name(
    cluster: Cluster, namespace: str, manifests: str
) -> None:
    """A selector cannot be changed, hence the phase is not in it."""
    document = next(iter(yaml.safe_load_all(manifests)))
    apply = ("apply", f"-n={namespace}", "-f", "-")
    cluster.kubectl(*apply, input=yaml.safe_dump(document))
    pod = document["spec"]["template"]
    before = pod["metadata"]["labels"]["archipelago.dev/phase"]
    other = "prefill" if before == "decode" else "decode"
    for labels in (pod["metadata"]["labels"], document["metadata"]["labels"]):
        labels["archipelago.dev/phase"] = other
    assert " configured" in cluster.kubectl(*apply, input=yaml.safe_dump(document)).stdout


def test_pods_of_several_nodes_and_on_named_ones_are_pods_that_the_server_knows(
    cluster: Cluster, namespace: str
) -> None:
    """The LeaderWorkerSet itself is another project's; its two templates are pods like others."""
    spec = load_resource(yaml.safe_load(good()["nodes-found"])).spec
    template = read_template(yaml.safe_load(TEMPLATE.read_text()))
    there = content(
        island("one", "h100", 8, "ip-10-0-0-1.eu-central-1.compute.internal"),
        island("two", "h100", 16, "n1", "n2", split={"tp": 8, "pp": 2}),
    )
    one, two = workloads(there, spec, Wish("a.plan-of-any-name", {"": template}))
    cluster.kubectl(
        "create", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f", "-",
        input=json.dumps(one),
    )  # fmt: skip
    group: dict[str, Any] = two["spec"]["leaderWorkerTemplate"]
    for kind in ("leaderTemplate", "workerTemplate"):
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": kind.lower()}}
        text = json.dumps(pod | {"template": group[kind]})
        create = ("create", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f", "-")
        assert "created" in cluster.kubectl(*create, input=text).stdout


def test_the_example_of_a_template_is_one_that_the_server_takes(
    cluster: Cluster, namespace: str
) -> None:
    """By itself, before anything is added."""
    apply = ("apply", f"-n={namespace}", "--dry-run=server", "--validate=strict", "-f")
    assert "Warning" not in cluster.kubectl(*apply, TEMPLATE).stderr
