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
    told,
)

LIMIT = 12
OTHER = CONTENT.replace("llama", "quebec")  # the first shard stays the same
GRACE = 60.0


def planned(seen: PlanObject, content: str = CONTENT) -> PlanReady:
    reply = plan_reply(TableStep(content=content), islands=2)
    verdict = decode_result(seen.inputs_hash, reply, LIMIT)
    assert isinstance(verdict, PlanReady)
    return verdict


def answered(seen: PlanObject, content: str = CONTENT, reserved: int = 1) -> PlanState:
    state = PlanState().with_planning(seen.inputs_hash)
    return replace(state.with_result(planned(seen, content), NOW), reserved=reserved)


def shards(seen: PlanObject, content: str = CONTENT, sequence: int = 1) -> dict[str, ShardObject]:
    """All shards of a content as they lie there."""
    pieces = split(content, LIMIT)
    found = {}
    for shard, piece in zip(shards_of(KEY.name, pieces), pieces, strict=True):
        body = as_stored(shard_manifest(seen, None, shard, piece.of(content), sequence))
        found[shard.name] = ShardObject.from_body(body)
    return found


def stored(seen: PlanObject, content: str = CONTENT, sequence: int = 1) -> TableObject:
    """The pointer as it lies there."""
    verdict = planned(seen, content)
    identity = Identity(seen.uid, seen.generation, sequence)
    manifest = table_manifest(seen, None, identity, content, T0, pieces=verdict.pieces)
    found = TableObject.from_body(as_stored(manifest))
    assert found.content_hash == verdict.content_hash
    return found


def served(seen: PlanObject, content: str = CONTENT) -> PlanObject:
    """The plan after its status said that the pointer is stored."""
    verdict, table = planned(seen, content), stored(seen, content)
    return replace(seen, status=status_text.published(seen, verdict, table, T0))


def test_shards_are_stored_before_the_pointer_that_names_them() -> None:
    seen = told(plan())
    (write,) = actions_of(Observation(KEY, seen, None), answered(seen), NOW)
    assert isinstance(write, WriteShards)
    assert "".join(piece.of(write.content) for piece in write.pieces) == CONTENT

    here = Observation(KEY, seen, None, shards(seen))
    (pointed,) = actions_of(here, answered(seen), NOW)
    assert isinstance(pointed, WriteTable)
    assert pointed.pieces == write.pieces

    some = dict(list(here.shards.items())[1:])
    (missing,) = actions_of(replace(here, shards=some), answered(seen), NOW)
    assert isinstance(missing, WriteShards)
    assert missing.pieces == write.pieces[:1]


def test_a_shard_that_lay_there_unused_is_claimed_before_it_is_named() -> None:
    """Else another operator, which sees it spare, might remove it meanwhile."""
    seen = told(plan())
    old = Observation(KEY, seen, None, shards(seen, sequence=7))

    (write,) = actions_of(old, answered(seen), NOW)

    assert isinstance(write, WriteShards)
    assert write.sequence == 1


def test_a_shard_that_the_stored_pointer_names_is_not_written_again() -> None:
    seen = replace(
        told(plan(2)), status=replace(told(plan(2)).status, summary={"tableSequence": 2})
    )
    here = Observation(KEY, seen, stored(plan(1)), shards(seen))

    (write,) = actions_of(here, answered(seen, OTHER, reserved=2), NOW)

    assert isinstance(write, WriteShards)
    assert split(OTHER, LIMIT)[0] not in write.pieces
    assert write.pieces == split(OTHER, LIMIT)[1:]


def test_a_table_without_one_of_its_shards_is_made_whole_again() -> None:
    seen = served(plan())
    whole = Observation(KEY, seen, stored(seen), shards(seen))
    assert actions_of(whole, PlanState(), NOW) == ()

    some = replace(whole, shards=dict(list(whole.shards.items())[1:]))

    assert isinstance(actions_of(some, PlanState(), NOW)[0], StartPlanning)
    promised = replace(seen, status=replace(seen.status, summary={"tableSequence": 2}))
    (write,) = actions_of(replace(some, plan=promised), answered(seen, reserved=2), NOW)
    assert isinstance(write, WriteShards)
    full = replace(whole, plan=promised, table=replace(stored(seen), stored_hash=None))
    table, event = actions_of(full, answered(seen, reserved=2), NOW)
    assert isinstance(table, WriteTable)
    assert isinstance(event, EmitEvent)
    assert event.reason is Reason.TABLE_RESTORED


def test_spare_shards_go_after_the_grace_period_and_no_sooner() -> None:
    seen = served(plan(), OTHER)
    both = {**shards(seen), **shards(seen, OTHER)}
    here = Observation(KEY, seen, stored(seen, OTHER), both)
    spare = set(shards(seen)) - set(shards(seen, OTHER))
    first = PlanState(spare=dues(here, PlanState(), NOW.monotonic, GRACE))

    (wait,) = actions_of(here, first, later(10))
    assert isinstance(wait, Requeue)
    assert wait.seconds == GRACE - 10
    (remove,) = actions_of(here, first, later(GRACE))
    assert isinstance(remove, RemoveShards)
    assert {shard.key.name for shard in remove.shards} == spare

    name = min(spare)
    wanted = {**both, name: replace(both[name], resource_version="999")}
    again = dues(replace(here, shards=wanted), first, later(50).monotonic, GRACE)
    assert again[name].at == later(50).monotonic + GRACE


def test_nothing_is_spare_while_the_table_is_not_whole_or_a_plan_is_under_way() -> None:
    seen = plan()
    both = {**shards(seen), **shards(seen, OTHER)}
    here = Observation(KEY, seen, stored(seen, OTHER), both)
    first = next(iter(shards(seen, OTHER)))
    broken = replace(here, shards={n: s for n, s in both.items() if n != first})
    foreign = replace(here, table=replace(stored(seen), owner_reference=None))

    assert dues(here, PlanState(), 0.0, GRACE)
    for state, case in (
        (PlanState().with_planning("x"), here),
        (answered(seen), here),  # its shards are wanted
        (PlanState(), broken),
        (PlanState(), foreign),
        (PlanState(), replace(here, table=None)),
    ):
        assert dues(case, state, 0.0, GRACE) == {}


@pytest.mark.parametrize("change", [{"labels": {}}, {"owner_reference": None}, {"deleting": True}])
def test_what_is_not_ours_is_never_spare(change: dict[str, object]) -> None:
    seen = plan()
    foreign = {n: replace(s, **change) for n, s in shards(seen).items()}  # type: ignore[arg-type]
    others = {**foreign, **shards(seen, OTHER)}
    here = Observation(KEY, seen, stored(seen, OTHER), others)

    assert dues(here, PlanState(), 0.0, GRACE) == {}


def test_a_stranger_under_a_shard_s_name_is_left_alone_and_named() -> None:
    seen = told(plan())
    name, taken = next(iter(shards(seen).items()))
    here = Observation(KEY, seen, None, {name: replace(taken, owner_reference=None)})

    actions, state = decide(here, answered(seen), NOW)
    assert actions == (ReadTable("the name is taken", name),)
    status, _, wait = actions_of(here, state, NOW)
    assert isinstance(status, WriteStatus)
    found = status.status.condition(ConditionType.PUBLISHED)
    assert found is not None
    assert (found.reason, name in found.message) == (Reason.NAME_CONFLICT, True)
    assert isinstance(wait, Requeue)


def test_names_of_shards_are_short_and_tell_tables_apart() -> None:
    pieces = split(CONTENT, LIMIT)
    for name in ("chat", "x" * 253, "a.b", "chat-0123456789abcdef"):
        found = shards_of(name, pieces)
        assert all(len(shard.name) <= NAME_LENGTH for shard in found)
        assert {stem_of(shard.name) for shard in found} == {stem_of(found[0].name)}
        assert stem_of(table_name(name)) is None
    stems = {shards_of(n, pieces)[0].name for n in ("x" * 253, "x" * 252, "x.x", "x-x")}
    assert len(stems) == 4


def test_a_stored_pointer_is_valid_and_notices_an_edit() -> None:
    seen = plan()
    identity, pieces = Identity(seen.uid, 1, 1), planned(seen).pieces
    body = as_stored(table_manifest(seen, None, identity, CONTENT, T0, pieces=pieces))
    text = body["data"]["table.json"]
    assert validate_table(json.loads(text)) == []

    body["data"]["table.json"] = text.replace('"bytes":12', '"bytes":11', 1)

    found = read_config_map(body)
    assert isinstance(found, TableObject)
    assert not found.is_unmodified()
