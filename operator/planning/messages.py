"""Jobs for planner processes, and what their replies mean; values, no process.

Requests and replies themselves are ``archipelago.planner.service.messages``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from archipelago.planner.problem import TIME_LIMITS
from archipelago.planner.service.messages import (
    REPLY,
    FailureReply,
    PlanReply,
    PlanRequest,
    ReplanReply,
    Reply,
    Request,
)
from archipelago.planner.table.shards import split

from ..resources.live import ReplanKind, TableOrigin
from ..resources.names import TABLE_BYTES, Key
from ..resources.objects import PlanObject
from ..resources.status import Reason, bounded
from .result import PlanFailed, PlannerResult, PlanReady, ReplanResult

DEFAULT: Final = "exact"
"""Strategy of a plan that names none."""
FOREVER: Final = 86400.0
"""No planning takes longer [s]."""
SHORT: Final = 12
"""Digits of a hash that people compare."""


@dataclass(frozen=True)
class Job:
    """A request in the queue for a planner process.

    ``inputs_hash``: names the result; of a re-planning job the name of the request. ``time_limit``
    [s]: of the solver. ``urgent`` jobs go first. ``strategy``: that the request asks for.
    ``expected`` [s]: how long the plan took the last time, as far as its status says. ``requeues``:
    how often a process ended before it read the request. ``deaths``: how often one ended after it.
    """

    key: Key
    inputs_hash: str
    request: Request
    time_limit: float
    urgent: bool = False
    strategy: str = DEFAULT
    expected: float | None = None
    requeues: int = 0
    deaths: int = 0

    @classmethod
    def of(cls, plan: PlanObject, request: PlanRequest | None = None) -> Job:
        """Return the job that plans a ServingPlan; without a request, from nothing but its spec."""
        return cls(
            plan.key,
            plan.inputs_hash,
            request or PlanRequest(resource=plan.to_resource(), calibration=plan.calibration),
            time_limit(plan),
            strategy=(plan.spec.get("planner") or {}).get("strategy", DEFAULT),
            expected=_last_seconds(plan),
        )


def _last_seconds(plan: PlanObject) -> float | None:
    """Return how long the last planning took, as the status says it."""
    try:
        return min(float(plan.status.last_plan["planSeconds"]), FOREVER)
    except (KeyError, TypeError, ValueError):
        return None


def time_limit(plan: PlanObject) -> float:
    """Return the time limit of the plan's solver [s]."""
    planner = plan.spec.get("planner") or {}
    default = TIME_LIMITS.get(planner.get("strategy", DEFAULT), TIME_LIMITS[DEFAULT])
    return float(planner.get("timeLimitSeconds", default))


def decode_result(inputs_hash: str, reply: Reply, limit: int = TABLE_BYTES) -> PlannerResult:
    """Return what a reply means; content of more than ``limit`` bytes is cut into shards.

    ``inputs_hash``: of the plan; of a re-planning job its name.
    """
    if isinstance(reply, FailureReply):
        return PlanFailed(inputs_hash, Reason(reply.reason), reply.message)
    first = None
    if reply.steps:
        step, *rest = reply.steps
        first = plan_ready(inputs_hash, step.content, reply.summary, reply.message, limit)
        origin = TableOrigin.DRAINED if isinstance(reply, PlanReply) and reply.idle else None
        first = replace(first, steps=tuple(rest), nodes=frozenset(step.nodes), origin=origin)
        if isinstance(reply, PlanReply):
            first = replace(first, disrupts=frozenset(reply.disrupts))
    if isinstance(reply, ReplanReply):
        large = {"steps", "state"}
        facts = REPLY.dump_python(reply, mode="json", by_alias=True, exclude=large)
        return ReplanResult(
            inputs_hash=inputs_hash,
            table=first and replace(first, origin=TableOrigin.REPLANNED, change=reply.change),
            next_request=_NEXT_REQUEST.get(reply.requested_level or ""),
            state=reply.state,
            decision=_decision(reply, facts),
            facts=facts,
            message=reply.message,
        )
    return first or PlanFailed(inputs_hash, Reason.CHECK_FAILED, "the reply has no table")


def plan_ready(
    inputs_hash: str,
    content: str,
    summary: Mapping[str, Any],
    message: str,
    limit: int = TABLE_BYTES,
) -> PlanReady:
    """Return a table with its summary, in shards above ``limit`` bytes."""
    raw = content.encode()
    digest = hashlib.sha256(raw).hexdigest()
    return PlanReady(
        inputs_hash=inputs_hash,
        summary={**summary, "contentHash": digest, "shortHash": digest[:SHORT]},
        message=message,
        content_hash=digest,
        content_bytes=len(raw),
        content=content,
        pieces=split(content, limit),
    )


def next_table(before: PlanReady, limit: int = TABLE_BYTES) -> PlanReady:
    """Return the next table of a rollout, with the summary and message of the whole change."""
    step, *rest = before.steps
    table = plan_ready(before.inputs_hash, step.content, before.summary, before.message, limit)
    table = replace(table, steps=tuple(rest), origin=before.origin, seconds=before.seconds)
    table = replace(table, change=before.change, before=before.before)
    return replace(table, nodes=frozenset(step.nodes), base_hash=before.content_hash)


_NEXT_REQUEST: Final = {"Reroute": ReplanKind.WINDOW, "Reshape": ReplanKind.SOLVE}
_DECISION_FIELDS: Final = ("level", "trigger", "headroom", "headroomLow", "regret")
_LEVEL_FIELDS: Final = ("level", "theta", "low", "gain", "note")
_PROPOSAL_FIELDS: Final = ("hash", "level", "trigger", "gain", "message")
_NOTE_BYTES: Final = 256


def _decision(reply: ReplanReply, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status.lastDecision``: a change or a pending proposal; empty if nothing changes.

    Only fields of its schema: the API server drops others, which would cause another write.
    """
    if reply.trigger == "None" and not reply.proposal and not reply.degraded and not reply.held:
        return {}
    decision = _only(_DECISION_FIELDS, facts) | {"message": bounded(reply.message)}
    if facts["levels"]:
        decision["levels"] = [_only(_LEVEL_FIELDS, level) for level in facts["levels"]]
    for level in decision.get("levels", ()):
        if "note" in level:
            level["note"] = bounded(level["note"], _NOTE_BYTES)
    if reply.held:
        decision["held"] = bounded(reply.held)
    if facts["proposal"]:
        decision["proposal"] = _only(_PROPOSAL_FIELDS, facts["proposal"])
    return decision


def _only(names: tuple[str, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) not in (None, "")}
