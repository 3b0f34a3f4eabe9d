"""A plan and its table as they would be seen, with whatever a test wants to be different."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from archipelago.operator import report
from archipelago.operator.manifests import Identity, Key, Manifest, table_manifest
from archipelago.operator.observe import Observation, SeenPlan, SeenTable
from archipelago.operator.question import verdict_of
from archipelago.operator.state import Now, State
from archipelago.operator.verdict import Planned


class Static:
    """Around plans none of which is live."""

    def dress(self, seen: Observation, _state: State, _now: Now) -> Observation:
        return seen

    def forget(self, key: Key) -> None:
        """Nothing was known of it."""


NOT_LIVE = Static()
Spec: TypeAlias = dict[str, object]

KEY = Key("team", "chat")
T0 = datetime(2026, 1, 1, tzinfo=UTC)
NOW = Now(T0, 1000.0)
CONTENT = '{"models":[{"name":"llama"}]}'
OTHER_CONTENT = '{"models":[{"name":"qwen"}]}'


def later(seconds: float) -> Now:
    """NOW plus some seconds, on both clocks."""
    return Now(T0 + timedelta(seconds=seconds), 1000.0 + seconds)


def plan(generation: int = 1, uid: str = "uid-1", spec: Spec | None = None) -> SeenPlan:
    """A plan of which nothing has been said yet."""
    return SeenPlan.from_body(
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


def planned(seen: SeenPlan, content: str = CONTENT) -> Planned:
    """The planner's answer to the plan."""
    reply = {"summary": {"islands": 2}, "message": "2 islands", "content": content}
    verdict = verdict_of(seen.inputs_hash, {"planned": reply})
    assert isinstance(verdict, Planned)
    return verdict


def stored(
    seen: SeenPlan, content: str = CONTENT, sequence: int = 1, generation: int | None = None
) -> SeenTable:
    """The table as it lies there after we wrote it."""
    identity = Identity(seen.uid, generation or seen.generation, sequence)
    return SeenTable.from_body(as_stored(table_manifest(seen, None, identity, content, T0)))


def as_stored(manifest: Manifest) -> Manifest:
    """What the API server adds to a manifest."""
    body: Manifest = json.loads(json.dumps(manifest))
    body["metadata"] |= {"uid": "table-uid", "resourceVersion": "200"}
    return body


def ready(seen: SeenPlan, table: SeenTable) -> SeenPlan:
    """The plan after its table was stored and its status said so."""
    return replace(seen, status=report.published(seen, planned(seen), table, T0))


def edited(seen: SeenPlan, **spec: object) -> SeenPlan:
    """The same plan after its owner changed the spec; the status is still the old one."""
    fresh = plan(seen.generation + 1, seen.uid, spec)
    return replace(fresh, status=seen.status)


def observation(seen: SeenPlan | None, table: SeenTable | None = None) -> Observation:
    """What the operator sees."""
    return Observation(KEY, seen, table)


def answered(seen: SeenPlan, content: str = CONTENT) -> State:
    """The memory after the planner's answer came, the next sequence being promised."""
    reserved = int(seen.status.summary.get(report.SEQUENCE, 0))
    state = State().with_planning(seen.inputs_hash).with_verdict(planned(seen, content), NOW)
    return state.with_reserved(reserved)


def told(seen: SeenPlan, table: SeenTable | None = None) -> SeenPlan:
    """The plan after its first status, which promises a sequence to the table."""
    sequence = report.last_sequence(seen, table) + 1
    return replace(seen, status=report.planning(seen, sequence, T0))
