"""What outlives a process, and times that the plan's author gives: both in one planner process."""

import json
from typing import Any

import pytest

from archipelago.planner.documents import canonical
from archipelago.planner.service.knowledge import knowledge_document, knowledge_of
from tests.planner.service.test_learning import EXAMPLE, H100, after, going_on, rows, window
from tests.support.operator.live import answer, ask, plan_request, planned, request

WARM = 5
"""Windows after which a factor is in use."""


def given(factor: float, **entry: Any) -> str:  # noqa: ANN401
    """A calibration file that corrects decoding of the example's model on H100."""
    interval = {"low": 0.9, "high": 1.1, "level": 0.9, "groups": 2}
    row = {"model": "Llama-3.1-8B", "phase": "decode", "factor": factor, "interval": interval}
    calibration = {"accelerator": "H100", "engine": "vllm", "values": {}, "corrections": [row]}
    return json.dumps({"calibrations": [calibration | entry]})


def with_map(question: dict[str, Any], text: str) -> dict[str, Any]:
    resource = dict(question["resource"])
    resource["spec"] = {**resource["spec"], "calibration": {"configMap": "mine"}}
    return {**question, "resource": resource, "calibration": text}


def test_a_new_process_goes_on_as_the_old_one_would_have() -> None:
    """With what is kept, and nothing else: factors, intervals and the rates of the last window."""
    state = after(WARM)["state"]
    knowledge = knowledge_of(state)
    assert knowledge is not None
    kept = canonical(knowledge_document(knowledge))

    old = ask(request(EXAMPLE, window=window(WARM), state=state))
    new = ask(request(EXAMPLE, window=window(WARM), state=kept))

    assert rows(old)[H100]["used"] > 1.2
    assert {key: row["used"] for key, row in rows(new).items()} == {
        key: row["used"] for key, row in rows(old).items()
    }
    assert new["state"]["rates"] == old["state"]["rates"]
    assert kept["rates"] == canonical(state["rates"])


def test_islands_of_a_new_process_teach_once_they_are_warm() -> None:
    """How long they were there is not kept: they may have been started anew meanwhile."""
    state = after(WARM)["state"]
    knowledge = knowledge_of(state)
    assert knowledge is not None
    before = rows(after(WARM))[H100]["windows"]
    kept = knowledge_document(knowledge)

    cold = going_on(kept, 3, WARM)
    assert rows(cold)[H100]["windows"] == before
    assert rows(going_on(cold["state"], 1, WARM + 3))[H100]["windows"] > before


def test_given_times_change_the_plan_and_are_named() -> None:
    plain = answer(plan_request(EXAMPLE))
    mine = answer(with_map(plan_request(EXAMPLE), given(2.0)))

    assert float(mine["summary"]["headroom"]) < float(plain["summary"]["headroom"])
    assert "times of vllm on H100" in mine["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("calibrations: [", "line 2: not YAML"),
        ("kind: Pod", "no calibration file; `archipelago calibrate RUNS -c FILE` writes one"),
        (given(0.0), "calibrations[0].corrections[0].factor: 0"),
        (given(1.0, accelerator="H1000"), "calibrations[0].accelerator"),
        (given(1.0, accelerator="L4"), "the ServingPlan has pools of"),
        ("\x00" * 5, "control characters are not allowed"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_place_and_remedy(text: str, said: str) -> None:
    for question in (plan_request(EXAMPLE), request(EXAMPLE, window=window(0))):
        reply = answer(with_map(question, text))
        assert (reply["kind"], reply["reason"]) == ("failed", "InvalidSpec")
        assert reply["message"].startswith("ConfigMap mine, key calibration.yaml: ")
        assert said in reply["message"]


def test_lost_islands_leave_the_table_whatever_the_file_says() -> None:
    names = [each["name"] for each in json.loads(planned(EXAMPLE)[1])["islands"]]
    reply = ask(with_map(request(EXAMPLE, lost=[names[0]]), "nonsense: ["))
    assert (reply["kind"], reply["trigger"]) == ("replanned", "Repair")


def test_what_is_learnt_is_a_factor_on_the_times_that_are_given() -> None:
    """Of other times it says nothing: it is dropped, and learnt anew.

    The file is of any engine, as the windows are: nothing but its factor is between the times.
    """
    state = after(WARM)["state"]
    question = request(EXAMPLE, window=window(WARM), state=state)
    assert rows(ask(question))
    text = given(1.3, engine="*")
    reply = ask(with_map(question, text))
    assert rows(reply) == {}
    for number in range(WARM, 2 * WARM):
        reply = ask(with_map(request(EXAMPLE, window=window(number), state=reply["state"]), text))
    assert rows(reply)[H100]["factor"] == pytest.approx(1.0, abs=0.05)
