"""What to say in each situation: observation -> status; pure.

A status never promises more than what is stored: ``published`` is given the table that lies there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from archipelago.operator import conditions
from archipelago.operator.actions import EmitEvent, EventType
from archipelago.operator.conditions import ConditionType, Finding, Reason, Truth
from archipelago.operator.manifests import timestamp
from archipelago.operator.status import Status, Summary
from archipelago.operator.verdict import Failed, Planned, Verdict

if TYPE_CHECKING:
    from datetime import datetime

    from archipelago.operator.observe import SeenPlan, SeenTable

Findings: TypeAlias = dict[ConditionType, Finding]

SEQUENCE: Final = "tableSequence"

_NO_METRICS = Finding(
    Truth.UNKNOWN, Reason.NOT_CONFIGURED, "no metrics source is configured; the spec is planned for"
)
_FIRST_WINDOW = Finding(
    Truth.UNKNOWN, Reason.SIGNAL_MISSING, "the first window of traffic is not over yet"
)
_COUNTED = Finding(Truth.TRUE, Reason.STATIC_COUNT, "every pool states its GPUs in spec.pools")
_ACTIVE = Finding(Truth.FALSE, Reason.ACTIVE, "the plan is kept up to date")
_UNDER_WAY = Finding(Truth.UNKNOWN, Reason.PLANNING, "the planner is at work")


def planning(plan: SeenPlan, sequence: int, now: datetime) -> Status:
    """Before the planner answers. What holds for the last generation stays said about that one.

    ``sequence`` is promised to the table that may come of it.
    """
    before = plan.status
    kept = {ConditionType.INVENTORY_RESOLVED, ConditionType.PUBLISHED} | _ready_if_true(before)
    unknown = {
        kind: _UNDER_WAY
        for kind in ConditionType
        if kind not in kept or before.condition(kind) is None
    }
    fixed = {ConditionType.METRICS_AVAILABLE: _metrics(plan), ConditionType.SUSPENDED: _ACTIVE}
    return reserving(_status(plan, {**unknown, **fixed}, before.summary, now), sequence)


def reserving(status: Status, sequence: int) -> Status:
    """The same status with a sequence promised to the next table.

    Promised first and stored before the table is written, so that no sequence is ever given twice
    or goes back, whoever deletes the table and whenever the operator is killed.
    """
    return replace(status, summary={**status.summary, SEQUENCE: sequence})


def last_sequence(plan: SeenPlan, table: SeenTable | None) -> int:
    """The highest sequence that a table of the plan may have."""
    return max(_sequence(table), int(plan.status.summary.get(SEQUENCE, 0)))


def published(plan: SeenPlan, verdict: Planned, table: SeenTable, now: datetime) -> Status:
    """The table answers the plan."""
    where = f"ConfigMap {table.key.name}, sequence {_sequence(table)}"
    findings = {
        ConditionType.READY: Finding(Truth.TRUE, Reason.PUBLISHED, f"{verdict.message}; {where}"),
        ConditionType.PLANNED: Finding(Truth.TRUE, Reason.PLANNED, verdict.message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.PUBLISHED: Finding(Truth.TRUE, Reason.PUBLISHED, where),
    }
    return _settled(plan, findings, {**verdict.summary, **_pointer(plan, table)}, verdict, now)


def failed(plan: SeenPlan, verdict: Failed, table: SeenTable | None, now: datetime) -> Status:
    """There is no plan; the last good table stays and stays described."""
    why = Finding(Truth.FALSE, verdict.reason, verdict.message)
    findings = {
        ConditionType.READY: why,
        ConditionType.PLANNED: why,
        ConditionType.INVENTORY_RESOLVED: _inventory(plan, verdict),
        ConditionType.PUBLISHED: _last_good(plan, table),
    }
    return _settled(plan, findings, _summary_of(plan, table), verdict, now)


def unpublished(
    plan: SeenPlan,
    verdict: Planned,
    table: SeenTable | None,
    why: Finding,
    now: datetime,
) -> Status:
    """There is a plan, but its table cannot be stored."""
    findings = {
        ConditionType.READY: why,
        ConditionType.PLANNED: Finding(Truth.TRUE, Reason.PLANNED, verdict.message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.PUBLISHED: why,
    }
    return _settled(plan, findings, _summary_of(plan, table), verdict, now)


def suspended(plan: SeenPlan, table: SeenTable | None, now: datetime) -> Status:
    """Nothing is planned or written until ``spec.suspend`` is false again."""
    message = "spec.suspend is true: the stored table stays as it is"
    findings = {
        ConditionType.READY: Finding(Truth.FALSE, Reason.SUSPENDED, message),
        ConditionType.PLANNED: Finding(Truth.UNKNOWN, Reason.SUSPENDED, message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
        ConditionType.PUBLISHED: _last_good(plan, table),
        ConditionType.SUSPENDED: Finding(Truth.TRUE, Reason.SUSPENDED, message),
    }
    return _status(plan, findings, _summary_of(plan, table), now)


def refreshed(plan: SeenPlan, now: datetime) -> Status:
    """What is new of a live plan whose table stays: its nodes, its metrics, what was decided."""
    findings = {
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
    }
    return _status(plan, findings, plan.status.summary, now)


_DONE: Final = {
    "Reroute": Reason.REROUTED,
    "Flip": Reason.FLIPPED,
    "Reshape": Reason.RESHAPED,
}


def decision_event(decision: Summary) -> EmitEvent:
    """What people are told of a decision about a live plan."""
    message = str(decision.get("message", ""))
    if decision.get("trigger") == "Repair":
        return EmitEvent(EventType.WARNING, Reason.REPAIRED, message)
    if decision.get("proposal"):
        return EmitEvent(EventType.NORMAL, Reason.PROPOSED, message)
    if done := _DONE.get(str(decision.get("rung"))):
        return EmitEvent(EventType.NORMAL, done, message)
    return EmitEvent(EventType.WARNING, Reason.DEGRADED, message)


def _settled(
    plan: SeenPlan, findings: Findings, summary: Summary, verdict: Verdict, now: datetime
) -> Status:
    steady = {ConditionType.METRICS_AVAILABLE: _metrics(plan), ConditionType.SUSPENDED: _ACTIVE}
    status = _status(plan, {**findings, **steady}, summary, now)
    return replace(status, last_plan=_ended(plan, verdict, now))


def _ended(plan: SeenPlan, verdict: Verdict, now: datetime) -> Summary:
    """How the planner's last run ended."""
    outcome = verdict.reason if isinstance(verdict, Failed) else Reason.PLANNED
    return {
        "generation": plan.generation,
        "time": timestamp(now),
        "outcome": outcome.value,
        "planSeconds": f"{verdict.seconds:.3f}",
    }


def _status(plan: SeenPlan, findings: Findings, summary: Summary, now: datetime) -> Status:
    before = plan.status.conditions
    return Status(
        observed_generation=plan.generation,
        conditions=conditions.at(plan.generation, findings, before, now),
        summary=summary,
        last_plan=plan.status.last_plan,
        last_decision=(plan.live.decision if plan.live else None) or plan.status.last_decision,
    )


def _ready_if_true(before: Status) -> set[ConditionType]:
    """Ready stays True, of its older generation, while that generation's table is in use."""
    ready = before.condition(ConditionType.READY)
    return {ConditionType.READY} if ready and ready.status is Truth.TRUE else set()


def _inventory(plan: SeenPlan, verdict: Failed) -> Finding:
    if verdict.reason is Reason.UNKNOWN_ACCELERATOR:
        return Finding(Truth.FALSE, verdict.reason, verdict.message)
    return _nodes(plan)


def _nodes(plan: SeenPlan) -> Finding:
    if plan.live is None or plan.live.inventory is None:
        return _COUNTED
    return _or_others(plan, ConditionType.INVENTORY_RESOLVED, plan.live.inventory)


def _or_others(plan: SeenPlan, kind: ConditionType, found: Finding) -> Finding:
    """What was said already is not insisted on: two operators may have found different things."""
    before = plan.status.condition(kind)
    if before is None or plan.live is None or found not in plan.live.said:
        return found
    return Finding(before.status, before.reason, before.message)


def _metrics(plan: SeenPlan) -> Finding:
    """Before the first window is over, what was said by the process before this one."""
    found = plan.live.metrics if plan.live else None
    if found is not None:
        return _or_others(plan, ConditionType.METRICS_AVAILABLE, found)
    if not plan.replanning.get("source"):
        return _NO_METRICS
    before = plan.status.condition(ConditionType.METRICS_AVAILABLE)
    if before is None or before.reason in (Reason.NOT_CONFIGURED, Reason.SOURCE_UNKNOWN):
        return _FIRST_WINDOW
    return Finding(before.status, before.reason, before.message)


def _last_good(plan: SeenPlan, table: SeenTable | None) -> Finding:
    if table is None or not table.belongs_to(plan):
        return Finding(Truth.FALSE, Reason.NOT_PLANNED, "no table has been stored yet")
    if not table.is_untouched() or table.identity is None:
        message = f"ConfigMap {table.key.name} was changed and no plan is at hand to restore it"
        return Finding(Truth.FALSE, Reason.NOT_PLANNED, message)
    kept = f"the table of generation {table.identity.generation} stays in use"
    return Finding(Truth.TRUE, Reason.LAST_GOOD_KEPT, f"{kept}, sequence {table.identity.sequence}")


def _summary_of(plan: SeenPlan, table: SeenTable | None) -> Summary:
    """The summary describes the stored table; where none is stored only its sequence is left."""
    ours = table is not None and table.belongs_to(plan)
    last = last_sequence(plan, table if ours else None)
    return {**(plan.status.summary if ours else {}), SEQUENCE: last}


def _sequence(table: SeenTable | None) -> int:
    return table.identity.sequence if table and table.identity else 0


def _pointer(plan: SeenPlan, table: SeenTable) -> Summary:
    """Which stored table the status speaks about."""
    return {"table": table.key.name, SEQUENCE: last_sequence(plan, table)}
