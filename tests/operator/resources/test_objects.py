"""What is read from objects, which may be anybody's."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from archipelago.operator.decide.status_text import last_sequence
from archipelago.operator.resources.objects import TableObject, inputs_hash
from archipelago.operator.resources.status import Status
from tests.support.operator.situations import CONTENT, T0, plan, planned, ready, stored

EXTREME: tuple[object, ...] = (
    math.inf,
    -math.inf,
    math.nan,
    1e308,
    1.5,
    -1,
    True,
    "1",
    None,
    [],
    {"": []},
)


def configmap(**meta: object) -> dict[str, Any]:
    base = {"namespace": "team", "name": "chat-routing", "uid": "u", "resourceVersion": "5"}
    return {"metadata": base | meta}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "not json",
        "[]",
        "7",
        '{"identity":{}}',
        '{"content":' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"content":NaN}',
    ],
    ids=["absent", "empty", "words", "list", "number", "no content", "deep", "nan"],
)
def test_whatever_lies_there_is_read_without_an_error(text: str | None) -> None:
    body = configmap() | {"data": None if text is None else {"table.json": text}}

    table = TableObject.from_body(body)

    assert table.content_hash is None
    assert not table.is_unmodified()
    assert not table.is_up_to_date(plan())


@pytest.mark.parametrize("number", [*EXTREME, 2**63, 2**63 - 1, 10**400])
@pytest.mark.parametrize("field", ["sequence", "generation"])
def test_an_identity_has_numbers_that_a_status_holds(field: str, number: object) -> None:
    """``Infinity`` once ended the operator, and 2^63 - 1 was counted on from."""
    identity = {"uid": "uid-1", "generation": 1, "sequence": 1} | {field: number}
    text = json.dumps({"identity": identity, "content": json.loads(CONTENT)})
    table = TableObject.from_body(configmap() | {"data": {"table.json": text}})

    assert table.identity is None
    assert last_sequence(plan(), table) == 0


@pytest.mark.parametrize("size", [*EXTREME, 2**63, 10**400])
def test_a_pointer_has_numbers_that_a_status_holds(size: object) -> None:
    shard = {"name": "a-0123456789abcdef", "hash": "0" * 64, "bytes": size}
    table = {"contentHash": "0" * 64, "contentBytes": 1, "shards": [shard]}
    body = configmap() | {"data": {"table.json": json.dumps(table)}}

    assert TableObject.from_body(body).shards == ()


def test_our_own_table_is_recognised() -> None:
    table = stored(plan())

    assert table.is_up_to_date(plan())
    assert table.content_hash == planned(plan()).content_hash


def test_spacing_and_order_of_keys_are_not_a_change_of_content() -> None:
    body = configmap(annotations={"archipelago.dev/content-hash": stored(plan()).content_hash})
    text = json.dumps({"identity": None, "content": json.loads(CONTENT)}, indent=2)

    assert TableObject.from_body(body | {"data": {"table.json": text}}).is_unmodified()


@pytest.mark.parametrize(
    "change",
    [
        {"stored_hash": "other"},
        {"inputs_hash": "other"},
        {"written_hash": None},
        {"labels": {}},
        {"identity": None},
        {"owner_reference": {"kind": "ServingPlan", "uid": "uid-1"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_table_answers_only_if_everything_is_as_we_wrote_it(change: dict[str, Any]) -> None:
    assert not replace(stored(plan()), **change).is_up_to_date(plan())


def test_labels_of_others_do_no_harm() -> None:
    table = stored(plan())

    assert replace(table, labels={**table.labels, "team": "x"}).is_up_to_date(plan())


def test_an_older_generation_does_not_answer() -> None:
    assert not stored(plan(), generation=1).is_up_to_date(plan(generation=2))
    assert stored(plan(), generation=3).is_up_to_date(plan(generation=2))


def test_inputs_are_what_a_table_depends_on() -> None:
    spec: dict[str, object] = {"models": [], "pools": []}
    same = inputs_hash("chat", spec)

    assert inputs_hash("chat", {"pools": [], "models": [], "suspend": True}) == same
    assert inputs_hash("chat", spec | {"budgetPerHour": "9"}) != same
    assert inputs_hash("other", spec) != same


def test_how_a_model_is_watched_and_switched_is_no_input_of_a_plan() -> None:
    """A plan stored before the fields existed gets them by default, and is not planned anew."""

    def hashed(**engine: object) -> str:
        model: dict[str, object] = {"name": "a"} | ({"engine": engine} if engine else {})
        return inputs_hash("chat", {"models": [model]})

    same = hashed()
    assert hashed(roleSwitch="Restart", metrics="vllm") == same
    assert hashed(roleSwitch="Restart", metrics="sglang", servedName="x") == same
    assert hashed(roleSwitch="None") == same
    assert inputs_hash("chat", {"models": [{"name": "a"}], "replanning": {"mode": "Off"}}) == same
    assert inputs_hash("chat", {"models": [{"name": "a"}], "accelerators": []}) == same
    assert hashed(prefixHitShares=[], attentionDataParallel="Allowed") == same


def test_how_an_engine_runs_is_an_input_of_a_plan() -> None:
    def hashed(engine: object) -> str:
        return inputs_hash("chat", {"models": [{"name": "a", "engine": engine}]})

    settings: list[dict[str, object]] = [
        {},
        {"name": "vllm"},
        {"kvDtype": "fp8"},
        {"chunkTokens": 4096},
        {"prefixHitShares": [{"upToTokens": 100, "share": "0.5"}]},
        {"attentionDataParallel": "Never"},
        {"parallelism": {"tensor": 8}},
    ]
    assert len({hashed(engine) for engine in settings}) == len(settings)


def test_a_field_that_does_not_fit_is_an_input_until_it_is_corrected() -> None:
    """A schedule that the pattern takes and cron refuses: the planner refuses the whole spec."""

    def hashed(schedule: str) -> str:
        budget = {"islands": "1", "schedule": schedule, "durationSeconds": 3600}
        return plan(spec={"replanning": {"budgets": [budget]}}).inputs_hash

    assert hashed("9 8 * * *") == hashed("10 8 * * *")
    assert hashed("99 8 * * *") != hashed("9 8 * * *")


def test_a_status_survives_storing_and_reading() -> None:
    splan = plan()
    status = ready(splan, stored(splan)).status

    reread = Status.from_body({"status": json.loads(json.dumps(status.to_manifest()))})

    assert reread == status
    assert reread.conditions[0].last_transition_time == T0


def test_conditions_of_others_are_ignored() -> None:
    raw = {"type": "Ready", "status": "True", "reason": "SomebodyElses", "observedGeneration": 1}

    status = Status.from_body({"status": {"conditions": [raw, {"type": "Nonsense"}]}})

    assert status.conditions == ()
    assert not status.is_complete


def test_values_that_the_api_server_gives_every_plan_make_none_live() -> None:
    """Its definition has a default for ``replanning``; a source or nodes are asked for."""
    usual = {"mode": "Auto", "drainSeconds": 10}
    assert not plan(spec={"replanning": usual}).is_live
    assert plan(spec={"replanning": usual | {"source": "main"}}).is_live
    pool = {"name": "p", "accelerator": "H100", "nodeSelector": {"pool": "p"}}
    assert plan(spec={"replanning": usual, "pools": [pool]}).is_live
