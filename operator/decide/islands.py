"""The pods of a plan whose islands the operator owns: what to change, and when; pure.

The stored table says which islands there are, so pods follow it and nothing else: an island that
changes has had no requests since the table before, and gets them again with the table after, once
its pods are ready. Before the first table the pods follow the plan that is to be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from archipelago.planner.documents import listed

from ..inventory.start_rules import StartLimit
from ..resources.live import TableIslands, TableOrigin
from ..resources.status import ConditionStatus, Finding, Reason
from .actions import StartIslands

if TYPE_CHECKING:
    from ..resources.objects import PlanObject, TableObject
    from ..resources.workloads import ListedWorkload, Workload
    from .state import Now, PlanState

AGAIN: Final = 30.0
"""Time after which workloads are compared with the table again [s]: no watch reports them."""
NAMED: Final = 5
"""Islands that a message names."""


@dataclass(frozen=True)
class WorkloadChanges:
    """What to do about the workloads of one plan.

    ``apply``: the wanted workloads, each with the stored one that it changes. ``problem``: why some
    are not changed; None if all are.
    """

    remove: tuple[ListedWorkload, ...] = ()
    apply: tuple[tuple[Workload, ListedWorkload | None], ...] = ()
    problem: Finding | None = None


def workload_changes(
    uid: str,
    wanted: Collection[Workload],
    stored: Sequence[ListedWorkload],
    limit: StartLimit,
    *,
    keep: bool,
) -> WorkloadChanges:
    """Return what leads from the stored workloads of a namespace to those of a plan.

    Args:
        uid: Of the plan.
        wanted: What its table wants.
        stored: All of the namespace with our label.
        limit: The most that all plans of the namespace may have.
        keep: Remove none: those on lost nodes wait for their nodes.
    """
    own = {(one.kind, one.key.name): one for one in stored if one.owner == uid}
    others = {(one.kind, one.key.name): one for one in stored if one.owner != uid}
    names = {(one.kind, one.name) for one in wanted}
    remove = (
        ()
        if keep
        else tuple(one for name, one in own.items() if name not in names and not one.deleting)
    )
    ending = [one for name, one in own.items() if name not in names and one not in remove]
    apply, problems = [], []
    for one in wanted:
        name = (one.kind, one.name)
        before, other = own.get(name), others.get(name)
        if other is not None:
            problems.append(in_the_way(one, other))
        elif before is None or (before.role not in one.roles and not before.deleting):
            apply.append((one, before))
    counted = [one.gpus for one in (*others.values(), *ending) if one.owner]
    counted += [one.gpus for one in wanted]
    if excess := limit.excess(len(counted), sum(counted)):
        message = (
            f"the islands of this namespace would be {excess} (startedIslands of the operator's "
            "administrator): none is started; lower the GPUs of the plan, or ask for more"
        )
        problems.insert(0, Finding(ConditionStatus.FALSE, Reason.QUOTA_EXCEEDED, message))
        apply = [(one, before) for one, before in apply if before and one.gpus <= before.gpus]
    return WorkloadChanges(remove, tuple(apply), problems[0] if problems else None)


def in_the_way(wanted: Workload, other: ListedWorkload | None) -> Finding:
    """Return the finding about an object with the name of a workload, which is not the plan's."""
    namespace = wanted.manifest["metadata"]["namespace"]
    if other is not None and (other.deleting or other.owner):
        message = f"{wanted.kind} {wanted.name} is another plan's, or a deleted one's: it stays"
        return Finding(ConditionStatus.FALSE, Reason.WAITING_FOR_COLLECTION, message)
    message = (
        f"{wanted.kind} {wanted.name} exists and is not this plan's, so it stays as it is: delete "
        f"it, and the operator makes its own: kubectl -n {namespace} delete "
        f"{wanted.kind.lower()} {wanted.name}"
    )
    return Finding(ConditionStatus.FALSE, Reason.NAME_CONFLICT, message)


def pods_due(
    plan: PlanObject, content_hash: str | None, state: PlanState, now: Now, *, stored: bool
) -> StartIslands | None:
    """Return the action that compares the workloads with a content, if that is due."""
    if not plan.owns_pods or content_hash is None:
        return None
    last = state.started
    if last.content_hash != content_hash or last.generation != plan.generation:
        return StartIslands("the pods are those of another table", stored)
    if now.monotonic >= last.at + AGAIN:
        return StartIslands("nobody reports who changes workloads", stored)
    return None


def keeps_pods(table: TableObject | None) -> bool:
    """Whether no workload is removed: the table lacks islands only until their nodes are back."""
    return table is not None and table.origin in (TableOrigin.REPAIRED, TableOrigin.OWED)


def ready_seconds(plan: PlanObject) -> float:
    """Return how long [s] pods may take until they are ready."""
    return float(plan.islands.get("readySeconds", 900))


def islands_finding(plan: PlanObject, islands: TableIslands, state: PlanState) -> Finding | None:
    """Return the condition ``IslandsReady``; None if nothing is known of pods."""
    live = plan.live
    if live is None or not (live.owned or live.pods) or not islands:
        return None
    if live.owned and state.started.problem is not None:
        return state.started.problem
    unready = sorted(live.unready(islands))
    if not unready:
        message = f"the pods of all {len(islands)} islands are ready as the table says"
        return Finding(ConditionStatus.TRUE, Reason.ACTIVE, message)
    message = (
        f"{len(unready)} of {len(islands)} islands are not ready as the table says: "
        f"{listed(unready, NAMED)}"
    )
    return Finding(ConditionStatus.FALSE, Reason.PODS_NOT_READY, message)


def stuck_islands(plan: PlanObject, table: TableObject | None, state: PlanState) -> tuple[str, ...]:
    """Return the islands that get requests and are not ready, if no table serves without them."""
    if plan.live is None or table is None or state.irreparable != table.content_hash:
        return ()
    unready = plan.live.unready(table.islands)
    return tuple(sorted(name for name in unready if table.islands[name].routed))
