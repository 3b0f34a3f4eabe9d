"""A plan and its table as they would be seen, with whatever a test wants to be different."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, cast

from archipelago.operator.apply.observation import ObservationBuilder
from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import Action
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.state import Now, PlanState
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.result import PlanReady
from archipelago.operator.resources.manifests import table_manifest
from archipelago.operator.resources.names import Identity, Key, Manifest
from archipelago.operator.resources.objects import Observation, PlanObject, TableObject
from archipelago.planner.service.messages import PlanReply, TableStep


class Static:
    """Observations of plans none of which is live."""

    def build(self, objects: Observation, _state: PlanState, _wall: datetime) -> Observation:
        return objects

    def refresh(self, key: Key) -> None:
        raise AssertionError(f"{key} is not live")

    def forget(self, key: Key) -> None:
        """Nothing was known of it."""


NOT_LIVE = cast("ObservationBuilder", Static())
Spec: TypeAlias = dict[str, object]

KEY = Key("team", "chat")
T0 = datetime(2026, 1, 1, tzinfo=UTC)
NOW = Now(T0, 1000.0)
CONTENT = '{"models":[{"name":"llama"}]}'
OTHER_CONTENT = '{"models":[{"name":"qwen"}]}'


def later(seconds: float) -> Now:
    """NOW plus some seconds, on both clocks."""
    return Now(T0 + timedelta(seconds=seconds), 1000.0 + seconds)


def plan(generation: int = 1, uid: str = "uid-1", spec: Spec | None = None) -> PlanObject:
    """A plan of which nothing has been said yet."""
    return PlanObject.from_body(
        {
            "metadata": {
                "namespace": KEY.namespace,
                "name": KEY.name,
                "uid": uid,
                "resourceVersion": "100",
                "generation": generation,
            },
            "spec": {"models": [], "pools": [], **(spec or {})},
        }
    )


def plan_reply(*steps: TableStep, islands: int = 2) -> PlanReply:
    """A planner process's reply with these tables."""
    message = "1 island" if islands == 1 else f"{islands} islands"
    return PlanReply(summary={"islands": islands}, message=message, steps=steps)


def planned(splan: PlanObject, content: str = CONTENT) -> PlanReady:
    """The planner's answer to the plan."""
    reply = plan_reply(TableStep(content=content), islands=2)
    result = decode_result(splan.inputs_hash, reply)
    assert isinstance(result, PlanReady)
    return result


def stored(
    splan: PlanObject, content: str = CONTENT, sequence: int = 1, generation: int | None = None
) -> TableObject:
    """The table as it lies there after we wrote it."""
    identity = Identity(splan.uid, generation or splan.generation, sequence)
    return TableObject.from_body(as_stored(table_manifest(splan, None, identity, content, T0)))


def as_stored(manifest: Manifest) -> Manifest:
    """What the API server adds to a manifest."""
    body: Manifest = json.loads(json.dumps(manifest))
    body["metadata"] |= {"uid": "table-uid", "resourceVersion": "200"}
    return body


def ready(splan: PlanObject, table: TableObject) -> PlanObject:
    """The plan after its table was stored and its status said so."""
    return replace(splan, status=status_text.published(splan, planned(splan), table, T0))


def edited(splan: PlanObject, **spec: object) -> PlanObject:
    """The same plan after its owner changed the spec; the status is still the old one."""
    fresh = plan(splan.generation + 1, splan.uid, spec)
    return replace(fresh, status=splan.status)


def observation(splan: PlanObject | None, table: TableObject | None = None) -> Observation:
    """What the operator sees."""
    return Observation(KEY, splan, table)


def planned_state(splan: PlanObject, content: str = CONTENT) -> PlanState:
    """The memory after the planner's answer came, the next sequence being promised."""
    reserved = int(splan.status.summary.get(status_text.SEQUENCE, 0))
    state = PlanState().with_planning(splan.inputs_hash).with_result(planned(splan, content), NOW)
    return replace(state, reserved=reserved)


def actions_of(observed: Observation, state: PlanState, now: Now) -> tuple[Action, ...]:
    """What is decided, without the memory that comes with it."""
    return decide(observed, state, now)[0]


def with_early_status(splan: PlanObject, table: TableObject | None = None) -> PlanObject:
    """The plan after its first status, which promises a sequence to the table."""
    sequence = status_text.last_sequence(splan, table) + 1
    return replace(splan, status=status_text.planning(splan, sequence, T0))
