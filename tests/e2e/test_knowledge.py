"""What outlives the operator, and what its users give it, in ConfigMaps of a real API server."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_live import LIVE, MODEL, REPLANNING, engines, event_reasons
from tests.support.controlplane import eventually
from tests.support.e2e.operators import Operator, Plans, small
from tests.support.prometheus.server import Prometheus, scraping

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WINDOW = 5
RANGES = {"median": 1020, "sigma": 0.9, "max": 7000, "outputSigma": 0.5}
STEADY = [
    {"minutes": 10, "mix": {"logNormal": {**RANGES, "output": 211}}, "share": 0.6, "of": "reroute"}
]
"""The planned traffic, for longer than the test takes."""
TOO_FAST = 0.75
"""Given times of decoding, as a share of the catalogue's, which the engines keep."""


def calibration(factor: float, model: str = "Qwen3-32B") -> str:
    """A calibration file that corrects the time of a token."""
    interval = {"low": 0.9, "high": 1.1, "level": 0.9, "groups": 2}
    row = {"model": model, "phase": "decode", "factor": factor, "interval": interval}
    pools: list[dict[str, Any]] = [
        {"accelerator": name, "engine": "vllm", "values": {}, "corrections": [row]}
        for name in ("H100", "L40S")
    ]
    return yaml.safe_dump({"calibrations": pools})


def give(plans: Plans, text: str) -> None:
    """Write it as its user does."""
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine"},
        "data": {"calibration.yaml": text},
    }
    plans.kubectl("apply", "-f", "-", input=json.dumps(made))


def kept(plans: Plans) -> dict[str, Any]:
    """What the ConfigMap has; empty if there is none."""
    text = plans.get("configmap", "chat-learnt").get("data", {}).get("knowledge.json")
    content: dict[str, Any] = json.loads(text)["content"] if text else {}
    return content


def factors(plans: Plans) -> dict[tuple[str, str], float]:
    """Factors in use by accelerator and phase."""
    used = kept(plans).get("calibration", {}).get("used", ())
    return {(row["accelerator"], row["phase"]): row["factor"] for row in used}


def learnt(content: dict[str, Any]) -> dict[str, tuple[float, int]]:
    """Mean logarithm and number of windows by what it is about."""
    return {
        "/".join(row["key"]): (round(row["sums"][1] / row["sums"][0], 6), row["windows"])
        for row in content["calibration"]["learnt"]
    }


def test_what_was_learnt_is_the_same_after_a_kill(
    plans: Plans,
    observing: Operator,
    prometheus: Prometheus,
    tmp_path: Path,
) -> None:
    """Engines decode more slowly than the given times; the factor that shows it is not lost.

    What the second process knows is seen in what it writes if the ConfigMap is taken away: that
    comes from its memory, which began with nothing else.
    """
    spec = {
        **LIVE,
        "models": [MODEL],
        "replanning": {**REPLANNING, "windowSeconds": WINDOW, "mode": "Off"},
        "calibration": {"configMap": "mine"},
    }
    world = {"expected": {"level": "Keep", "why": "nothing may change"}, "plan": LIVE}
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**world, "traffic": STEADY, "seed": 2}))
    give(plans, calibration(TOO_FAST))
    plans.apply("chat", spec)
    plans.wait_ready("chat", 60)
    with engines(plans, "chat", file) as fleet, scraping(prometheus, fleet.url):
        eventually(lambda: kept(plans).get("rates"), within=60)
        eventually(lambda: ("H100", "decode") in factors(plans), within=150)
    # Without traffic nothing is learnt any more.
    before, used = kept(plans), factors(plans)
    assert used["H100", "decode"] == pytest.approx(1 / TOO_FAST, rel=0.15)
    stored = plans.get("configmap", "chat-learnt")
    assert stored["metadata"]["ownerReferences"][0]["kind"] == "ServingPlan"
    print(f"\nknowledge: {len(stored['data']['knowledge.json'])} bytes")  # noqa: T201

    observing.end(signal.SIGKILL)
    observing.start()
    eventually(lambda: "what was learnt is used again" in observing.log.read_text(), within=30)
    plans.kubectl("delete", "configmap", "chat-learnt")
    eventually(lambda: kept(plans), within=30)
    assert learnt(kept(plans)) == learnt(before)
    assert factors(plans) == used
    assert kept(plans)["rates"] == before["rates"]

    # A forgery is refused by name, and written over.
    broken = json.dumps({"data": {"knowledge.json": "{}"}})
    observing.end(signal.SIGKILL)
    plans.kubectl("patch", "configmap", "chat-learnt", "--type=merge", "-p", broken)
    observing.start()
    eventually(lambda: "KnowledgeRefused" in event_reasons(plans), within=30)
    (event,) = [e for e in plans.events("chat") if e["reason"] == "KnowledgeRefused"]
    assert "ConfigMap chat-learnt is not used: knowledge.json: " in event["note"]
    assert plans.ready("chat")[0] == "True"
    assert observing.is_running()


def test_a_calibration_file_is_read_checked_and_refused_by_place(
    plans: Plans, operator: Operator
) -> None:
    spec = small(calibration={"configMap": "mine"})
    plans.apply("chat", spec)
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=30)
    message = plans.conditions("chat")["Planned"]["message"]
    assert message.startswith("spec.calibration: ConfigMap mine, key calibration.yaml: ")
    assert f"kubectl -n {plans.namespace} create configmap mine --from-file" in message

    plans.apply("plain", small())
    plans.wait_ready("plain")
    give(plans, calibration(2.0, "Llama-3.1-8B"))
    plans.wait_ready("chat", 60)
    assert "times of vllm on H100" in plans.conditions("chat")["Planned"]["message"]
    slower, plain = (
        float(plans.plan(n)["status"]["summary"]["throughput"]) for n in ("chat", "plain")
    )
    assert slower < plain
    table = plans.table("chat")

    give(plans, calibration(-1.0, "Llama-3.1-8B"))
    eventually(lambda: plans.ready("chat")[1] == "InvalidSpec", within=90)
    message = plans.conditions("chat")["Planned"]["message"]
    assert "ConfigMap mine, key calibration.yaml: calibrations[0].corrections[0].factor" in message
    assert plans.conditions("chat")["Published"]["reason"] == "LastGoodKept"
    assert plans.table("chat") == table

    plans.kubectl("delete", "configmap", "mine")
    eventually(
        lambda: "no such ConfigMap" in plans.conditions("chat")["Planned"]["message"], within=60
    )
    assert plans.table("chat") == table
    give(plans, calibration(2.0, "Llama-3.1-8B"))
    plans.wait_ready("chat", 60)
    assert plans.table("chat") == table
    operator.end(signal.SIGKILL)
    operator.start()
    time.sleep(5)
    assert operator.metric("writes_total") == 0
    assert plans.table("chat") == table
