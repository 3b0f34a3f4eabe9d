"""Models and accelerators that the catalogue lacks, against a real API server."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.controlplane import eventually
from tests.support.e2e.nodes import Nodes
from tests.support.e2e.operators import Operator, Plans, running, small
from tests.support.faults.ground import nodes_under
from tests.support.perfmodel import LLAMA_1B

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def mine(**config: object) -> dict[str, Any]:
    """A plan for a model and a GPU of its own."""
    spec = small(accelerators=[{"name": "My GPU", "like": "H100", "memoryGibibytes": "64"}])
    spec["models"][0] |= {"architecture": "my-org/My-1B", "config": config}
    spec["pools"][0] |= {"accelerator": "My GPU"}
    return spec


def give(plans: Plans, text: str) -> None:
    """Write the ConfigMap as its user does."""
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine"},
        "data": {"config.json": text},
    }
    plans.kubectl("apply", "-f", "-", input=json.dumps(made))


def test_a_model_and_a_gpu_of_ones_own_are_planned_from_what_the_api_server_stores(
    plans: Plans, operator: Operator
) -> None:
    inline = {**LLAMA_1B, "rope_scaling": {"factor": 32.0, "rope_type": "llama3"}}
    plans.apply("inline", mine(inline={**inline, "head_dim": None}))  # null counts as absent
    plans.wait_ready("inline", 60)
    assert plans.plan("inline")["spec"]["models"][0]["config"]["inline"] == inline

    plans.apply("chat", mine(configMap="mine"))
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=30)
    message = plans.conditions("chat")["Planned"]["message"]
    assert message.startswith("spec.models[0].config: ConfigMap mine, key config.json: ")
    assert f"kubectl -n {plans.namespace} create configmap mine --from-file" in message

    give(plans, json.dumps(LLAMA_1B))
    plans.wait_ready("chat", 60)
    table = plans.table("chat")
    figures = [plans.plan(n)["status"]["summary"]["throughput"] for n in ("chat", "inline")]
    assert figures[0] == figures[1]

    give(plans, json.dumps({**LLAMA_1B, "hidden_size": "wide"}))
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=90)
    message = plans.conditions("chat")["Planned"]["message"]
    assert "spec.models[0].config" in message
    assert "hidden_size" in message
    assert plans.table("chat") == table

    give(plans, json.dumps({**LLAMA_1B, "num_hidden_layers": 32}))
    plans.wait_ready("chat", 90)
    slower = plans.plan("chat")["status"]["summary"]["throughput"]
    assert float(slower) < float(figures[0])
    assert operator.is_running()


def test_the_administrators_gpu_is_found_by_its_label_and_followed_in_the_file(
    plans: Plans, prepared: Operator, nodes: Nodes, tmp_path: Path
) -> None:
    names = nodes.names(2)
    nodes.create(names, {"nvidia.com/gpu.product": "Quantum-9000"})
    file = tmp_path / "admin.yaml"
    gpu = {"name": "Quantum 9000", "like": "H100", "productLabels": ["Quantum-9000"]}
    file.write_text(yaml.safe_dump({"catalogue": {"accelerators": [gpu]}}))
    spec = small()
    (pool,) = spec["pools"]
    del pool["count"]
    spec["pools"] = [{**pool, "accelerator": "Quantum 9000", "nodeSelector": nodes.labels}]
    plans.apply("chat", spec)
    with running(
        replace(prepared, settings={**prepared.settings, "ARCHIPELAGO_ADMIN_FILE": str(file)})
    ):
        plans.wait_ready("chat", 60)
        assert nodes_under(plans.table("chat")) <= set(names)
        before = float(plans.plan("chat")["status"]["summary"]["throughput"])
        slower = {**gpu, "memoryGigabytesPerSecond": "500"}
        file.write_text(yaml.safe_dump({"catalogue": {"accelerators": [slower]}}))

        def throughput() -> float:
            return float(plans.plan("chat")["status"]["summary"]["throughput"])

        eventually(lambda: throughput() < 0.9 * before, within=60)
