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

_ACTIVE = Finding(ConditionStatus.FALSE, Reason.ACTIVE, "the plan is kept up to date")


def planning(plan: PlanObject, sequence: int, now: datetime) -> Status:
    """Return the early status, while the planner works.

    Conditions that hold for the last generation keep that generation. ``sequence`` is reserved for
    the table that may follow.
    """
    before = plan.status
    stays = {ConditionType.INVENTORY_RESOLVED, ConditionType.PUBLISHED}
    ready = before.condition(ConditionType.READY)
    if ready and ready.status is ConditionStatus.TRUE:
        stays.add(ConditionType.READY)  # that generation's table is in use
    under_way = Finding(ConditionStatus.UNKNOWN, Reason.PLANNING, "the planner is at work")
    unknown = {
        kind: under_way
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
        ConditionType.PUBLISHED: Finding(ConditionStatus.TRUE, Reason.PUBLISHED, where),
    }
    stored = {"table": table.key.name, SEQUENCE: last_sequence(plan, table)}
    return _settled(plan, findings, {**result.summary, **stored}, result, now)


def failed(
    plan: PlanObject, result: PlanFailed, table: TableObject | None, now: datetime
) -> Status:
    """Return the status if there is no plan: the last good table stays."""
    finding = Finding(ConditionStatus.FALSE, result.reason, result.message)
    findings = {
        ConditionType.READY: finding,
        ConditionType.PLANNED: finding,
        ConditionType.PUBLISHED: _last_good(plan, table),
    }
    if result.reason is Reason.UNKNOWN_ACCELERATOR:
        findings[ConditionType.INVENTORY_RESOLVED] = finding
    return _settled(plan, findings, _summary_of(plan, table), result, now)


def unpublished(
    plan: PlanObject,
    result: PlanReady,
    table: TableObject | None,
    finding: Finding,
    now: datetime,
) -> Status:
    """Return the status if there is a plan, but its table cannot be stored."""
    findings = {
        ConditionType.READY: finding,
        ConditionType.PLANNED: Finding(ConditionStatus.TRUE, Reason.PLANNED, result.message),
        ConditionType.PUBLISHED: finding,
    }
    return _settled(plan, findings, _summary_of(plan, table), result, now)


def suspended(plan: PlanObject, table: TableObject | None, now: datetime) -> Status:
    """Return the status of a suspended plan."""
    message = "spec.suspend is true: the stored table stays as it is"
    findings = {
        ConditionType.READY: Finding(ConditionStatus.FALSE, Reason.SUSPENDED, message),
        ConditionType.PLANNED: Finding(ConditionStatus.UNKNOWN, Reason.SUSPENDED, message),
        ConditionType.PUBLISHED: _last_good(plan, table),
        ConditionType.SUSPENDED: Finding(ConditionStatus.TRUE, Reason.SUSPENDED, message),
    }
    return _settled(plan, findings, _summary_of(plan, table), None, now)


def refreshed(plan: PlanObject, now: datetime) -> Status:
    """Return the status of a live plan whose table stays: new nodes, metrics, decision."""
    findings = {
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
    }
    return _status(plan, findings, plan.status.summary, now)


def decision_event(decision: Summary) -> EmitEvent:
    """Return the event of a decision about a live plan."""
    message = str(decision.get("message", ""))
    if decision.get("trigger") == "Repair":
        return EmitEvent(EventType.WARNING, Reason.REPAIRED, message)
    changes = {"Reroute": Reason.REROUTED, "Flip": Reason.FLIPPED, "Reshape": Reason.RESHAPED}
    change = Reason.PROPOSED if decision.get("proposal") else changes.get(decision.get("level", ""))
    if change is None:
        return EmitEvent(EventType.WARNING, Reason.DEGRADED, message)
    return EmitEvent(EventType.NORMAL, change, message)


def _settled(
    plan: PlanObject,
    findings: Findings,
    summary: Summary,
    result: PlanOutcome | None,
    now: datetime,
) -> Status:
    """Return a status with every condition; ``result``: of the planner's last run, if it is new."""
    steady = {
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
        ConditionType.SUSPENDED: _ACTIVE,
    }
    status = _status(plan, {**steady, **findings}, summary, now)
    if result is None:
        return status
    outcome = result.reason if isinstance(result, PlanFailed) else Reason.PLANNED
    last_plan = {
        "generation": plan.generation,
        "time": timestamp(now),
        "outcome": outcome.value,
        "planSeconds": f"{result.seconds:.3f}",
    }
    return replace(status, last_plan=last_plan)


def _status(plan: PlanObject, findings: Findings, summary: Summary, now: datetime) -> Status:
    before = plan.status.conditions
    return Status(
        observed_generation=plan.generation,
        conditions=status.at(plan.generation, findings, before, now),
        summary=summary,
        last_plan=plan.status.last_plan,
        last_decision=(plan.live.decision if plan.live else None) or plan.status.last_decision,
    )


def _nodes(plan: PlanObject) -> Finding:
    if plan.live is None or plan.live.inventory is None:
        message = "every pool states its GPUs in spec.pools"
        return Finding(ConditionStatus.TRUE, Reason.STATIC_COUNT, message)
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
        message = "spec.replanning.source is not set: the spec's rates are used"
        return Finding(ConditionStatus.UNKNOWN, Reason.NOT_CONFIGURED, message)
    before = plan.status.condition(ConditionType.METRICS_AVAILABLE)
    if before is None or before.reason in (Reason.NOT_CONFIGURED, Reason.SOURCE_UNKNOWN):
        message = "the first window of traffic is not over yet"
        return Finding(ConditionStatus.UNKNOWN, Reason.SIGNAL_MISSING, message)
    return Finding(before.status, before.reason, before.message)


def _last_good(plan: PlanObject, table: TableObject | None) -> Finding:
    if table is None or not table.belongs_to(plan):
        return Finding(ConditionStatus.FALSE, Reason.NOT_PLANNED, "no table has been stored yet")
    if not table.is_unmodified() or table.identity is None:
        message = f"ConfigMap {table.key.name} was changed by someone else: fix what Planned names"
        return Finding(ConditionStatus.FALSE, Reason.NOT_PLANNED, message)
    where = f"ConfigMap {table.key.name}, sequence {table.identity.sequence}"
    message = f"the table of generation {table.identity.generation} stays in use: {where}"
    return Finding(ConditionStatus.TRUE, Reason.LAST_GOOD_KEPT, message)


def _summary_of(plan: PlanObject, table: TableObject | None) -> Summary:
    """Return the summary of the stored table; if none is stored, only the last sequence."""
    owned = table is not None and table.belongs_to(plan)
    last = last_sequence(plan, table if owned else None)
    return {**(plan.status.summary if owned else {}), SEQUENCE: last}


def _sequence(table: TableObject | None) -> int:
    return table.identity.sequence if table and table.identity else 0
