"""The status in each situation: observation -> status; pure.

A status never claims more than what is stored: `published` takes the stored table.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from ..planning.result import PlanFailed, PlanOutcome, PlanReady
from ..resources import status
from ..resources.names import timestamp
from ..resources.status import ConditionStatus, ConditionType, Finding, Reason, Status, Summary
from .actions import EmitEvent, EventType

if TYPE_CHECKING:
    from ..resources.objects import PlanObject, TableObject


Findings: TypeAlias = dict[ConditionType, Finding]

SEQUENCE: Final = "tableSequence"

_NO_METRICS = Finding(
    ConditionStatus.UNKNOWN,
    Reason.NOT_CONFIGURED,
    "no metrics source is configured; the spec is planned for",
)
_FIRST_WINDOW = Finding(
    ConditionStatus.UNKNOWN, Reason.SIGNAL_MISSING, "the first window of traffic is not over yet"
)
_COUNTED = Finding(
    ConditionStatus.TRUE, Reason.STATIC_COUNT, "every pool states its GPUs in spec.pools"
)
_ACTIVE = Finding(ConditionStatus.FALSE, Reason.ACTIVE, "the plan is kept up to date")
_UNDER_WAY = Finding(ConditionStatus.UNKNOWN, Reason.PLANNING, "the planner is at work")


def planning(plan: PlanObject, sequence: int, now: datetime) -> Status:
    """Return the early status, while the planner works.

    Conditions that hold for the last generation keep that generation. ``sequence`` is reserved for
    the table that may follow.
    """
    before = plan.status
    stays = {ConditionType.INVENTORY_RESOLVED, ConditionType.PUBLISHED} | _ready_if_true(before)
    unknown = {
        kind: _UNDER_WAY
        for kind in ConditionType
        if kind not in stays or before.condition(kind) is None
    }
    fixed = {ConditionType.METRICS_AVAILABLE: _metrics(plan), ConditionType.SUSPENDED: _ACTIVE}
    return reserving(_status(plan, {**unknown, **fixed}, before.summary, now), sequence)


def reserving(status: Status, sequence: int) -> Status:
    """Return the status with a sequence reserved for the next table.

    It is stored before the table is written. So no sequence is used twice or goes back, whoever
    deletes the table and whenever the operator is killed.
    """
    return replace(status, summary={**status.summary, SEQUENCE: sequence})


def last_sequence(plan: PlanObject, table: TableObject | None) -> int:
    """Return the highest sequence that a table of the plan may have."""
    return max(_sequence(table), int(plan.status.summary.get(SEQUENCE, 0)))


def published(plan: PlanObject, result: PlanReady, table: TableObject, now: datetime) -> Status:
    """Return the status if the stored table is current."""
    where = f"ConfigMap {table.key.name}, sequence {_sequence(table)}"
    findings = {
        ConditionType.READY: Finding(
            ConditionStatus.TRUE, Reason.PUBLISHED, f"{result.message}; {where}"
        ),
        ConditionType.PLANNED: Finding(ConditionStatus.TRUE, Reason.PLANNED, result.message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.PUBLISHED: Finding(ConditionStatus.TRUE, Reason.PUBLISHED, where),
    }
    return _settled(plan, findings, {**result.summary, **_pointer(plan, table)}, result, now)


def failed(
    plan: PlanObject, result: PlanFailed, table: TableObject | None, now: datetime
) -> Status:
    """Return the status if there is no plan: the last good table stays."""
    why = Finding(ConditionStatus.FALSE, result.reason, result.message)
    findings = {
        ConditionType.READY: why,
        ConditionType.PLANNED: why,
        ConditionType.INVENTORY_RESOLVED: _inventory(plan, result),
        ConditionType.PUBLISHED: _last_good(plan, table),
    }
    return _settled(plan, findings, _summary_of(plan, table), result, now)


def unpublished(
    plan: PlanObject,
    result: PlanReady,
    table: TableObject | None,
    why: Finding,
    now: datetime,
) -> Status:
    """Return the status if there is a plan, but its table cannot be stored."""
    findings = {
        ConditionType.READY: why,
        ConditionType.PLANNED: Finding(ConditionStatus.TRUE, Reason.PLANNED, result.message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.PUBLISHED: why,
    }
    return _settled(plan, findings, _summary_of(plan, table), result, now)


def suspended(plan: PlanObject, table: TableObject | None, now: datetime) -> Status:
    """Return the status of a suspended plan."""
    message = "spec.suspend is true: the stored table stays as it is"
    findings = {
        ConditionType.READY: Finding(ConditionStatus.FALSE, Reason.SUSPENDED, message),
        ConditionType.PLANNED: Finding(ConditionStatus.UNKNOWN, Reason.SUSPENDED, message),
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
        ConditionType.PUBLISHED: _last_good(plan, table),
        ConditionType.SUSPENDED: Finding(ConditionStatus.TRUE, Reason.SUSPENDED, message),
    }
    return _status(plan, findings, _summary_of(plan, table), now)


def refreshed(plan: PlanObject, now: datetime) -> Status:
    """Return the status of a live plan whose table stays: new nodes, metrics, decision."""
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
    """Return the event of a decision about a live plan."""
    message = str(decision.get("message", ""))
    if decision.get("trigger") == "Repair":
        return EmitEvent(EventType.WARNING, Reason.REPAIRED, message)
    if decision.get("proposal"):
        return EmitEvent(EventType.NORMAL, Reason.PROPOSED, message)
    if done := _DONE.get(str(decision.get("level"))):
        return EmitEvent(EventType.NORMAL, done, message)
    return EmitEvent(EventType.WARNING, Reason.DEGRADED, message)


def _settled(
    plan: PlanObject, findings: Findings, summary: Summary, result: PlanOutcome, now: datetime
) -> Status:
    steady = {ConditionType.METRICS_AVAILABLE: _metrics(plan), ConditionType.SUSPENDED: _ACTIVE}
    status = _status(plan, {**findings, **steady}, summary, now)
    return replace(status, last_plan=_ended(plan, result, now))


def _ended(plan: PlanObject, result: PlanOutcome, now: datetime) -> Summary:
    """Return how the last run of the planner ended."""
    outcome = result.reason if isinstance(result, PlanFailed) else Reason.PLANNED
    return {
        "generation": plan.generation,
        "time": timestamp(now),
        "outcome": outcome.value,
        "planSeconds": f"{result.seconds:.3f}",
    }


def _status(plan: PlanObject, findings: Findings, summary: Summary, now: datetime) -> Status:
    before = plan.status.conditions
    return Status(
        observed_generation=plan.generation,
        conditions=status.at(plan.generation, findings, before, now),
        summary=summary,
        last_plan=plan.status.last_plan,
        last_decision=(plan.live.decision if plan.live else None) or plan.status.last_decision,
    )


def _ready_if_true(before: Status) -> set[ConditionType]:
    """Ready stays True, with its older generation, while that generation's table is in use."""
    ready = before.condition(ConditionType.READY)
    return {ConditionType.READY} if ready and ready.status is ConditionStatus.TRUE else set()


def _inventory(plan: PlanObject, result: PlanFailed) -> Finding:
    if result.reason is Reason.UNKNOWN_ACCELERATOR:
        return Finding(ConditionStatus.FALSE, result.reason, result.message)
    return _nodes(plan)


def _nodes(plan: PlanObject) -> Finding:
    if plan.live is None or plan.live.inventory is None:
        return _COUNTED
    return _or_reported(plan, ConditionType.INVENTORY_RESOLVED, plan.live.inventory)


def _or_reported(plan: PlanObject, kind: ConditionType, finding: Finding) -> Finding:
    """Keep what another operator reported: two operators may see different things."""
    before = plan.status.condition(kind)
    if before is None or plan.live is None or finding not in plan.live.reported:
        return finding
    return Finding(before.status, before.reason, before.message)


def _metrics(plan: PlanObject) -> Finding:
    """Return the present finding; before the first window is over, the last reported one."""
    finding = plan.live.metrics if plan.live else None
    if finding is not None:
        return _or_reported(plan, ConditionType.METRICS_AVAILABLE, finding)
    if not plan.replanning.get("source"):
        return _NO_METRICS
    before = plan.status.condition(ConditionType.METRICS_AVAILABLE)
    if before is None or before.reason in (Reason.NOT_CONFIGURED, Reason.SOURCE_UNKNOWN):
        return _FIRST_WINDOW
    return Finding(before.status, before.reason, before.message)


def _last_good(plan: PlanObject, table: TableObject | None) -> Finding:
    if table is None or not table.belongs_to(plan):
        return Finding(ConditionStatus.FALSE, Reason.NOT_PLANNED, "no table has been stored yet")
    if not table.is_unmodified() or table.identity is None:
        message = f"ConfigMap {table.key.name} was changed and no plan is at hand to restore it"
        return Finding(ConditionStatus.FALSE, Reason.NOT_PLANNED, message)
    generation, sequence = table.identity.generation, table.identity.sequence
    message = f"the table of generation {generation} stays in use, sequence {sequence}"
    return Finding(ConditionStatus.TRUE, Reason.LAST_GOOD_KEPT, message)


def _summary_of(plan: PlanObject, table: TableObject | None) -> Summary:
    """Return the summary of the stored table; if none is stored, only the last sequence."""
    ours = table is not None and table.belongs_to(plan)
    last = last_sequence(plan, table if ours else None)
    return {**(plan.status.summary if ours else {}), SEQUENCE: last}


def _sequence(table: TableObject | None) -> int:
    return table.identity.sequence if table and table.identity else 0


def _pointer(plan: PlanObject, table: TableObject) -> Summary:
    """Return which table the summary is about."""
    return {"table": table.key.name, SEQUENCE: last_sequence(plan, table)}
