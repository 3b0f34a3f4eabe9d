"""Tables in shards: what is written in which order, and what is removed when; no cluster."""

import json
from dataclasses import replace

import pytest

from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import (
    EmitEvent,
    ReadTable,
    RemoveShards,
    Requeue,
    StartPlanning,
    WriteShards,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.shard_gc import dues
from archipelago.operator.decide.state import PlanState
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.result import PlanReady
from archipelago.operator.resources.manifests import shard_manifest, table_manifest
from archipelago.operator.resources.names import NAME_LENGTH, Identity, table_name
from archipelago.operator.resources.objects import (
    Observation,
    PlanObject,
    ShardObject,
    TableObject,
    read_config_map,
)
from archipelago.operator.resources.shards import shards_of, stem_of
from archipelago.operator.resources.status import ConditionType, Reason
from archipelago.planner.service.messages import TableStep
from archipelago.planner.table.shards import split
from archipelago.planner.table.validate import validate_table
from tests.support.operator.situations import (
    CONTENT,
    KEY,
    NOW,
    T0,
    actions_of,
    as_stored,
    later,
    plan,
    plan_reply,
    with_early_status,
)

LIMIT = 12
OTHER = CONTENT.replace("llama", "quebec")  # the first shard stays the same
GRACE = 60.0


def planned(splan: PlanObject, content: str = CONTENT) -> PlanReady:
    reply = plan_reply(TableStep(content=content), islands=2)
    result = decode_result(splan.inputs_hash, reply, LIMIT)
    assert isinstance(result, PlanReady)
    return result


def planned_state(splan: PlanObject, content: str = CONTENT, reserved: int = 1) -> PlanState:
    state = PlanState().with_planning(splan.inputs_hash)
    return replace(state.with_result(planned(splan, content), NOW), reserved=reserved)


def shards(splan: PlanObject, content: str = CONTENT, sequence: int = 1) -> dict[str, ShardObject]:
    """All shards of a content as they lie there."""
    pieces = split(content, LIMIT)
    by_name = {}
    for shard, piece in zip(shards_of(KEY.name, pieces), pieces, strict=True):
        body = as_stored(shard_manifest(splan, None, shard, piece.of(content), sequence))
        by_name[shard.name] = ShardObject.from_body(body)
    return by_name


def stored(splan: PlanObject, content: str = CONTENT, sequence: int = 1) -> TableObject:
    """The pointer as it lies there."""
    result = planned(splan, content)
    identity = Identity(splan.uid, splan.generation, sequence)
    manifest = table_manifest(splan, None, identity, content, T0, pieces=result.pieces)
    table = TableObject.from_body(as_stored(manifest))
    assert table.content_hash == result.content_hash
    return table


def served(splan: PlanObject, content: str = CONTENT) -> PlanObject:
    """The plan after its status said that the pointer is stored."""
    result, table = planned(splan, content), stored(splan, content)
    return replace(splan, status=status_text.published(splan, result, table, T0))


def test_shards_are_stored_before_the_pointer_that_names_them() -> None:
    splan = with_early_status(plan())
    (write,) = actions_of(Observation(KEY, splan, None), planned_state(splan), NOW)
    assert isinstance(write, WriteShards)
    assert "".join(piece.of(write.content) for piece in write.pieces) == CONTENT

    observed = Observation(KEY, splan, None, shards(splan))
    (pointed,) = actions_of(observed, planned_state(splan), NOW)
    assert isinstance(pointed, WriteTable)
    assert pointed.pieces == write.pieces

    some = dict(list(observed.shards.items())[1:])
    (missing,) = actions_of(replace(observed, shards=some), planned_state(splan), NOW)
    assert isinstance(missing, WriteShards)
    assert missing.pieces == write.pieces[:1]


def test_a_shard_that_lay_there_unused_is_claimed_before_it_is_named() -> None:
    """Else another operator, which sees it spare, might remove it meanwhile."""
    splan = with_early_status(plan())
    old = Observation(KEY, splan, None, shards(splan, sequence=7))

    (write,) = actions_of(old, planned_state(splan), NOW)

    assert isinstance(write, WriteShards)
    assert write.sequence == 1


def test_a_shard_that_the_stored_pointer_names_is_not_written_again() -> None:
    splan = replace(
        with_early_status(plan(2)),
        status=replace(with_early_status(plan(2)).status, summary={"tableSequence": 2}),
    )
    observed = Observation(KEY, splan, stored(plan(1)), shards(splan))

    (write,) = actions_of(observed, planned_state(splan, OTHER, reserved=2), NOW)

    assert isinstance(write, WriteShards)
    assert split(OTHER, LIMIT)[0] not in write.pieces
    assert write.pieces == split(OTHER, LIMIT)[1:]


def test_a_table_without_one_of_its_shards_is_made_whole_again() -> None:
    splan = served(plan())
    whole = Observation(KEY, splan, stored(splan), shards(splan))
    assert actions_of(whole, PlanState(), NOW) == ()

    some = replace(whole, shards=dict(list(whole.shards.items())[1:]))

    assert isinstance(actions_of(some, PlanState(), NOW)[0], StartPlanning)
    acknowledged = replace(splan, status=replace(splan.status, summary={"tableSequence": 2}))
    (write,) = actions_of(replace(some, plan=acknowledged), planned_state(splan, reserved=2), NOW)
    assert isinstance(write, WriteShards)
    full = replace(whole, plan=acknowledged, table=replace(stored(splan), stored_hash=None))
    table, event = actions_of(full, planned_state(splan, reserved=2), NOW)
    assert isinstance(table, WriteTable)
    assert isinstance(event, EmitEvent)
    assert event.reason is Reason.TABLE_RESTORED


def test_spare_shards_go_after_the_grace_period_and_no_sooner() -> None:
    splan = served(plan(), OTHER)
    both = {**shards(splan), **shards(splan, OTHER)}
    observed = Observation(KEY, splan, stored(splan, OTHER), both)
    spare = set(shards(splan)) - set(shards(splan, OTHER))
    first = PlanState(spare=dues(observed, PlanState(), NOW.monotonic, GRACE))

    (wait,) = actions_of(observed, first, later(10))
    assert isinstance(wait, Requeue)
    assert wait.seconds == GRACE - 10
    (remove,) = actions_of(observed, first, later(GRACE))
    assert isinstance(remove, RemoveShards)
    assert {shard.key.name for shard in remove.shards} == spare

    name = min(spare)
    renewed = {**both, name: replace(both[name], resource_version="999")}
    again = dues(replace(observed, shards=renewed), first, later(50).monotonic, GRACE)
    assert again[name].at == later(50).monotonic + GRACE


def test_nothing_is_spare_while_the_table_is_not_whole_or_a_plan_is_under_way() -> None:
    splan = plan()
    both = {**shards(splan), **shards(splan, OTHER)}
    observed = Observation(KEY, splan, stored(splan, OTHER), both)
    first = next(iter(shards(splan, OTHER)))
    broken = replace(observed, shards={n: s for n, s in both.items() if n != first})
    foreign = replace(observed, table=replace(stored(splan), owner_reference=None))

    assert dues(observed, PlanState(), 0.0, GRACE)
    for state, case in (
        (PlanState().with_planning("x"), observed),
        (planned_state(splan), observed),  # its shards are wanted
        (PlanState(), broken),
        (PlanState(), foreign),
        (PlanState(), replace(observed, table=None)),
    ):
        assert dues(case, state, 0.0, GRACE) == {}


@pytest.mark.parametrize("change", [{"labels": {}}, {"owner_reference": None}, {"deleting": True}])
def test_what_is_not_ours_is_never_spare(change: dict[str, object]) -> None:
    splan = plan()
    foreign = {n: replace(s, **change) for n, s in shards(splan).items()}  # type: ignore[arg-type]
    others = {**foreign, **shards(splan, OTHER)}
    observed = Observation(KEY, splan, stored(splan, OTHER), others)

    assert dues(observed, PlanState(), 0.0, GRACE) == {}


def test_a_stranger_under_a_shard_s_name_is_left_alone_and_named() -> None:
    splan = with_early_status(plan())
    name, shard = next(iter(shards(splan).items()))
    observed = Observation(KEY, splan, None, {name: replace(shard, owner_reference=None)})

    actions, state = decide(observed, planned_state(splan), NOW)
    assert actions == (ReadTable("the name is taken", name),)
    status, _, wait = actions_of(observed, state, NOW)
    assert isinstance(status, WriteStatus)
    condition = status.status.condition(ConditionType.PUBLISHED)
    assert condition is not None
    assert (condition.reason, name in condition.message) == (Reason.NAME_CONFLICT, True)
    assert isinstance(wait, Requeue)


def test_names_of_shards_are_short_and_tell_tables_apart() -> None:
    pieces = split(CONTENT, LIMIT)
    for name in ("chat", "x" * 253, "a.b", "chat-0123456789abcdef"):
        named = shards_of(name, pieces)
        assert all(len(shard.name) <= NAME_LENGTH for shard in named)
        assert {stem_of(shard.name) for shard in named} == {stem_of(named[0].name)}
        assert stem_of(table_name(name)) is None
    stems = {shards_of(n, pieces)[0].name for n in ("x" * 253, "x" * 252, "x.x", "x-x")}
    assert len(stems) == 4


def test_a_stored_pointer_is_valid_and_notices_an_edit() -> None:
    splan = plan()
    identity, pieces = Identity(splan.uid, 1, 1), planned(splan).pieces
    body = as_stored(table_manifest(splan, None, identity, CONTENT, T0, pieces=pieces))
    text = body["data"]["table.json"]
    assert validate_table(json.loads(text)) == []

    body["data"]["table.json"] = text.replace('"bytes":12', '"bytes":11', 1)

    table = read_config_map(body)
    assert isinstance(table, TableObject)
    assert not table.is_unmodified()
