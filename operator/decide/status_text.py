"""The status in each situation: observation -> status; pure.

A status never claims more than what is stored: `published` takes the stored table.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from archipelago.planner.documents import EXACT, listed
from archipelago.planner.kubernetes.labels import PLAN_LABEL, label_value

from ..planning.messages import SHORT
from ..planning.result import PlanFailed, PlanOutcome, PlanReady
from ..resources import status
from ..resources.names import table_name, timestamp
from ..resources.released import RELEASED, in_status
from ..resources.status import ConditionStatus, ConditionType, Finding, Reason, Status, Summary
from .actions import EmitEvent, EventType
from .islands import NAMED
from .schedule import traffic_status

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
        ConditionType.READY: _served(plan, f"{result.message}; {where}"),
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
    summary = dict(_summary_of(plan, table))
    content = table.content_hash if table is not None else None
    if content and summary.get(PENDING) == content:  # stored since, and in use
        del summary[PENDING]
        summary |= {"contentHash": content, "shortHash": content[:SHORT]}
    return _settled(plan, findings, summary, result, now)


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
    """Return the status of a live plan whose table stays: new nodes, metrics, pods, decision."""
    findings = {
        ConditionType.INVENTORY_RESOLVED: _nodes(plan),
        ConditionType.METRICS_AVAILABLE: _metrics(plan),
    }
    ready = plan.status.condition(ConditionType.READY)
    planned = plan.status.condition(ConditionType.PLANNED)
    stored = plan.status.condition(ConditionType.PUBLISHED)
    if table is not None and ready and planned and stored:
        served = _served(plan, f"{planned.message}; {stored.message}")
        if served.reason is not ready.reason:
            findings[ConditionType.READY] = served
    return _status(plan, findings, _with_released(plan.status.summary, plan, table), now)


def _with_released(summary: Summary, plan: PlanObject, table: TableObject | None) -> Summary:
    """Return the summary with the GPUs that no island of the stored table needs any more."""
    rest = {name: value for name, value in summary.items() if name != RELEASED}
    nodes = {*plan.live.node_names.values()} if plan.live else set[str]()
    found = in_status(table.released, plan.spec, nodes) if table else []
    return {**rest, RELEASED: found} if found else rest


def is_served_at(status: Status, generation: int) -> bool:
    """Whether ``Ready`` is about a stored table of that generation, whose pods may be missing."""
    ready = status.condition(ConditionType.READY)
    reasons = (Reason.PUBLISHED, Reason.PODS_NOT_READY)
    return ready is not None and ready.observed_generation == generation and ready.reason in reasons


def _served(plan: PlanObject, message: str) -> Finding:
    """Return ``Ready`` of a stored table: False if it sends requests to pods that are not ready."""
    unready = plan.live.stuck if plan.live else ()
    if not unready:
        return Finding(ConditionStatus.TRUE, Reason.PUBLISHED, message)
    message = (
        f"{len(unready)} islands get requests and their pods are not ready, and no table serves "
        f"every range without them: {listed(unready, NAMED)}"
    )
    return Finding(ConditionStatus.FALSE, Reason.PODS_NOT_READY, message)


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


def decision_events(decision: Summary, before: Summary) -> tuple[EmitEvent, ...]:
    """Return the events of a decision about a live plan: what changes, and what is held back."""
    held = str(decision.get("held", ""))
    news = held and held != before.get("held")
    events = (EmitEvent(EventType.NORMAL, Reason.HELD_BACK, held),) if news else ()
    kept = decision.get("level") == "Keep" and decision.get("trigger") == "None"
    return events if held and kept else (_decision_event(decision), *events)


def _decision_event(decision: Summary) -> EmitEvent:
    message = str(decision.get("message", ""))
    if decision.get("trigger") == "Repair":
        return EmitEvent(EventType.WARNING, Reason.REPAIRED, message)
    if decision.get("trigger") == "Rollback":
        return EmitEvent(EventType.WARNING, Reason.ROLLED_BACK, message)
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
    decision = (plan.live.decision if plan.live else None) or plan.status.last_decision
    optional = {
        ConditionType.ISLANDS_READY: plan.live.islands if plan.live else None,
        ConditionType.TRANSITION_PENDING: _pending(plan, decision),
    }
    findings = {**findings, **{kind: found for kind, found in optional.items() if found}}
    before = [
        item
        for item in plan.status.conditions
        if item.type in findings or item.type not in status.OPTIONAL
    ]
    return Status(
        observed_generation=plan.generation,
        conditions=status.at(plan.generation, findings, before, now),
        summary=summary,
        traffic=traffic_status(plan),
        last_plan=plan.status.last_plan,
        last_decision=decision,
    )


def _pending(plan: PlanObject, decision: Summary) -> Finding | None:
    """Return ``TransitionPending``: a change of phases or islands that waits for a person."""
    proposal = decision.get("proposal") or {}
    islands = plan.islands
    carried = plan.owns_pods or islands.get("changedBy")
    if carried or proposal.get("level") not in ("Flip", "Reshape"):
        return None
    name, space = plan.key.name, plan.key.namespace
    patch = f'{{"spec":{{"replanning":{{"approve":"{proposal["hash"]}"}}}}}}'
    files = f"kubectl -n {space} get splan {name} -o yaml > splan.yaml"
    table = table_name(name)
    message = (
        f"a {proposal['level'].lower()} waits, as nobody changes the pods (spec.islands). Approve "
        f"it: kubectl -n {space} patch splan {name} --type=merge -p '{patch}' - and when the table "
        f"has changed: {files}; kubectl -n {space} get configmap {table} -o yaml > table.yaml; "
        "archipelago manifests splan.yaml --table table.yaml --pod-template TEMPLATE | kubectl "
        f"apply --prune -l {PLAN_LABEL}={label_value(name)} -f -"
    )
    return Finding(ConditionStatus.TRUE, Reason.HELD_BACK, message)


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
