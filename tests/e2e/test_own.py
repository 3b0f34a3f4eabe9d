"""Models and accelerators that the catalogue lacks, against a real API server."""

import json
from typing import Any

import pytest

from tests.support.controlplane import eventually
from tests.support.e2e.operators import Operator, Plans, small

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}


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
    inline = {**CONFIG, "rope_scaling": {"factor": 32.0, "rope_type": "llama3"}, "head_dim": None}
    plans.apply("inline", mine(inline=inline))
    plans.wait_ready("inline", 60)
    assert plans.plan("inline")["spec"]["models"][0]["config"]["inline"] == inline

    plans.apply("chat", mine(configMap="mine"))
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=30)
    message = plans.conditions("chat")["Planned"]["message"]
    assert message.startswith("spec.models[0].config: ConfigMap mine, key config.json: ")
    assert f"kubectl -n {plans.namespace} create configmap mine --from-file" in message

    give(plans, json.dumps(CONFIG))
    plans.wait_ready("chat", 60)
    table = plans.table("chat")
    figures = [plans.plan(n)["status"]["summary"]["throughput"] for n in ("chat", "inline")]
    assert figures[0] == figures[1]

    give(plans, json.dumps({**CONFIG, "hidden_size": "wide"}))
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=90)
    message = plans.conditions("chat")["Planned"]["message"]
    assert "spec.models[0].config" in message
    assert "hidden_size" in message
    assert plans.table("chat") == table

    give(plans, json.dumps({**CONFIG, "num_hidden_layers": 32}))
    plans.wait_ready("chat", 90)
    slower = plans.plan("chat")["status"]["summary"]["throughput"]
    assert float(slower) < float(figures[0])
    assert operator.is_running()
