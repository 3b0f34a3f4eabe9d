"""The status in each situation: observation -> status; pure.

A status never claims more than what is stored: `published` takes the stored table.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from archipelago.planner.documents import EXACT

from ..planning.result import PlanFailed, PlanOutcome, PlanReady
from ..resources import status
from ..resources.names import timestamp
from ..resources.released import RELEASED, in_status
from ..resources.status import ConditionStatus, ConditionType, Finding, Reason, Status, Summary
from .actions import EmitEvent, EventType

if TYPE_CHECKING:
    from ..resources.objects import PlanObject, TableObject


Findings: TypeAlias = dict[ConditionType, Finding]

SEQUENCE: Final = "tableSequence"
PENDING: Final = "pendingHash"
POINTER: Final = "pointerHash"
COUNTED: Final = EXACT // 2
"""Largest sequence of a stored table that the next one continues: far below what can be stored."""

ANSWER: Final = 400
"""Characters of the API server's refusal that a condition repeats."""
_KEPT: Final = ("table", "contentHash", "shortHash", SEQUENCE, PENDING, POINTER)
"""What the next process has to know of a plan."""

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


def reserving(status: Status, sequence: int, content_hash: str = "") -> Status:
    """Return the status with a sequence reserved for the next table, and its content if known.

    It is stored before the table is written. So no sequence is used twice or goes back, whoever
    deletes the table and whenever the operator is killed.
    """
    pending = {PENDING: content_hash} if content_hash else {}
    return replace(status, summary={**status.summary, SEQUENCE: sequence, **pending})


def last_sequence(plan: PlanObject, table: TableObject | None) -> int:
    """Return the highest sequence that a table of the plan may have."""
    return max(sequence_of(table), int(plan.status.summary.get(SEQUENCE, 0)))


def published(plan: PlanObject, result: PlanReady, table: TableObject, now: datetime) -> Status:
    """Return the status if the stored table is current."""
    where = f"ConfigMap {table.key.name}, sequence {sequence_of(table)}"
    findings = {
        ConditionType.READY: Finding(
            ConditionStatus.TRUE, Reason.PUBLISHED, f"{result.message}; {where}"
        ),
        ConditionType.PLANNED: Finding(ConditionStatus.TRUE, Reason.PLANNED, result.message),
        ConditionType.PUBLISHED: Finding(ConditionStatus.TRUE, Reason.PUBLISHED, where),
    }
    stored = {"table": table.key.name, SEQUENCE: last_sequence(plan, table)}
    stale = (PENDING, POINTER)
    fresh = {name: value for name, value in result.summary.items() if name not in stale}
    summary = {**_with_released(fresh, plan, table)}
    if table.shards:
        summary[POINTER] = table.stored_hash
    return _settled(plan, findings, {**summary, **stored}, result, now)


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


def refreshed(plan: PlanObject, table: TableObject | None, now: datetime) -> Status:
    """Return the status of a live plan whose table stays: new nodes, metrics, decision."""
    summary = _with_released(plan.status.summary, plan, table)
    findings = {
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
    }
    return _status(plan, findings, summary, now)


def _with_released(summary: Summary, plan: PlanObject, table: TableObject | None) -> Summary:
    """Return the summary with the GPUs that no island of the stored table needs any more."""
    rest = {name: value for name, value in summary.items() if name != RELEASED}
    nodes = {*plan.live.node_names.values()} if plan.live else set[str]()
    found = in_status(table.released, plan.spec, nodes) if table else []
    return {**rest, RELEASED: found} if found else rest


def checked(wanted: Status, now: datetime) -> tuple[Status, tuple[str, ...]]:
    """Return the status as its schema takes it, and the fields that had to be changed for that.

    If any, ``Planned`` names them: each is a defect of the operator, to be reported.
    """
    wanted, faults = wanted.checked()
    planned = wanted.condition(ConditionType.PLANNED)
    if not faults or planned is None:
        return wanted, faults
    message = f"left out of the status, report it: {'; '.join(faults)}. {planned.message}"
    finding = Finding(planned.status, Reason.STATUS_REFUSED, message)
    findings = {ConditionType.PLANNED: finding}
    conditions = status.at(planned.observed_generation, findings, wanted.conditions, now)
    return replace(wanted, conditions=conditions), faults


def is_again(wanted: Status, refused: Status | None) -> bool:
    """Whether a status says what was refused; its sequence is a new one each time."""
    if refused is None:
        return False
    wanted, refused = reserving(wanted, 0), reserving(refused, 0)
    return wanted.says_the_same(refused)


def refused(wanted: Status, answer: str, now: datetime) -> Status:
    """Return a status of few words instead of one that the API server refused."""
    words = "".join(char if char.isprintable() else " " for char in answer[:ANSWER])
    message = f"the API server refused the status, it is tried again later; report it: {words}"
    statuses = {item.type: item.status for item in wanted.conditions}
    statuses[ConditionType.READY] = ConditionStatus.FALSE
    findings = {
        kind: Finding(found, Reason.STATUS_REFUSED, message) for kind, found in statuses.items()
    }
    summary = {name: wanted.summary[name] for name in _KEPT if name in wanted.summary}
    conditions = status.at(wanted.observed_generation, findings, wanted.conditions, now)
    return Status(wanted.observed_generation, conditions, summary)


def set_aside(plan: PlanObject, why: str, now: datetime) -> Status:
    """Return the status of a plan whose handling failed: nobody knows whether its table fits."""
    findings = {
        ConditionType.READY: Finding(ConditionStatus.FALSE, Reason.QUARANTINED, why),
        ConditionType.PLANNED: Finding(ConditionStatus.UNKNOWN, Reason.QUARANTINED, why),
    }
    unknown = Finding(ConditionStatus.UNKNOWN, Reason.QUARANTINED, why)
    absent = {kind: unknown for kind in ConditionType if plan.status.condition(kind) is None}
    return _status(plan, {**absent, **findings}, plan.status.summary, now)


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
    if plan.over_quota is not None:
        return plan.over_quota
    if plan.live is None or plan.live.inventory is None:
        message = "every pool states its GPUs in spec.pools"
        return Finding(ConditionStatus.TRUE, Reason.STATIC_COUNT, message)
    return plan.live.inventory


def _metrics(plan: PlanObject) -> Finding:
    """Return the present finding; before the first window is over, the last reported one."""
    finding = plan.live.metrics if plan.live else None
    if finding is not None:
        return finding
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


def sequence_of(table: TableObject | None) -> int:
    """Return the table's sequence; 0 if nothing can be counted on from there: it is not ours."""
    sequence = table.identity.sequence if table and table.identity else 0
    return sequence if sequence <= COUNTED else 0
