"""What a planner process is asked and what its reply means; values, no process.

A reply is one JSON object: ``planned`` or ``failed``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.conditions import Reason
from archipelago.operator.manifests import TABLE_BYTES
from archipelago.operator.verdict import Failed, Planned, Verdict
from archipelago.planner.problem import TIME_LIMITS
from archipelago.planner.shards import split

if TYPE_CHECKING:
    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import SeenPlan

Reply: TypeAlias = dict[str, Any]

SHORT: Final = 12  # digits of a hash that tell tables apart at a glance


@dataclass(frozen=True)
class Job:
    """One question to the planner. ``time_limit`` [s] is what the plan allows its solver.

    ``returns``: how often a process ended before it read the question.
    """

    key: Key
    inputs_hash: str
    resource: dict[str, Any]
    time_limit: float
    returns: int = 0

    @classmethod
    def of(cls, plan: SeenPlan) -> Job:
        """The question that a ServingPlan asks."""
        planner = plan.spec.get("planner") or {}
        usual = TIME_LIMITS.get(planner.get("strategy", "exact"), TIME_LIMITS["exact"])
        limit = float(planner.get("timeLimitSeconds", usual))
        return cls(plan.key, plan.inputs_hash, plan.to_resource(), limit)


def verdict_of(inputs_hash: str, reply: Reply, limit: int = TABLE_BYTES) -> Verdict:
    """Read a reply of the planner process; content of more than ``limit`` bytes is for shards."""
    if "failed" in reply:
        failed = reply["failed"]
        return Failed(inputs_hash, Reason(failed["reason"]), failed["message"])
    planned = reply["planned"]
    raw = planned["content"].encode()
    digest = hashlib.sha256(raw).hexdigest()
    return Planned(
        inputs_hash=inputs_hash,
        summary=planned["summary"] | {"contentHash": digest, "shortHash": digest[:SHORT]},
        message=planned["message"],
        content_hash=digest,
        content_bytes=len(raw),
        content=planned["content"],
        pieces=split(planned["content"], limit),
    )


def advised(verdict: Verdict, memory_mib: int) -> Verdict:
    """Say what to do about too little memory, wherever that was noticed."""
    if not isinstance(verdict, Failed) or verdict.reason is not Reason.PLANNER_OOM:
        return verdict
    remedy = (
        f"{verdict.message} ({memory_mib} MiB): use fewer ranges, pools or island sizes, or "
        "raise ARCHIPELAGO_PLANNER_MEMORY_MIB of the operator"
    )
    return replace(verdict, message=remedy)
