"""What a planner process is asked and what its reply means; values, no process.

A reply is one JSON object: ``planned``, ``failed`` or, about a live plan, ``live``. What is asked
about a live plan stands in ``live`` of the question (livejobs.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.conditions import Reason, bounded
from archipelago.operator.livefacts import Ask, Mark, Step, Until
from archipelago.operator.manifests import TABLE_BYTES
from archipelago.operator.verdict import Answer, Decided, Failed, Planned
from archipelago.planner.problem import TIME_LIMITS
from archipelago.planner.shards import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import SeenPlan

Reply: TypeAlias = dict[str, Any]

SHORT: Final = 12  # digits of a hash that tell tables apart at a glance


@dataclass(frozen=True)
class Job:
    """One question to the planner. ``time_limit`` [s] is what the plan allows its solver.

    ``urgent``: it comes before all that are not. ``returns``: how often a process ended before it
    read the question.
    """

    key: Key
    inputs_hash: str
    resource: dict[str, Any]
    time_limit: float
    urgent: bool = False
    returns: int = 0

    @classmethod
    def of(cls, plan: SeenPlan) -> Job:
        """The question that a ServingPlan asks."""
        return cls(plan.key, plan.inputs_hash, plan.to_resource(), time_limit(plan))


def time_limit(plan: SeenPlan) -> float:
    """What the plan allows its solver [s]."""
    planner = plan.spec.get("planner") or {}
    usual = TIME_LIMITS.get(planner.get("strategy", "exact"), TIME_LIMITS["exact"])
    return float(planner.get("timeLimitSeconds", usual))


def verdict_of(inputs_hash: str, reply: Reply, limit: int = TABLE_BYTES) -> Answer:
    """Read a reply of the planner process; content of more than ``limit`` bytes is for shards."""
    if "failed" in reply:
        failed = reply["failed"]
        return Failed(inputs_hash, Reason(failed["reason"]), failed["message"])
    if "live" in reply:
        return _decided(inputs_hash, reply["live"], limit)
    planned = reply["planned"]
    steps = _steps(planned.get("steps") or ({"content": planned["content"]},))
    first = planned_table(inputs_hash, steps[0].content, planned, limit)
    return replace(first, steps=steps[1:], nodes=steps[0].nodes)


def planned_table(
    inputs_hash: str, content: str, said: Mapping[str, Any], limit: int = TABLE_BYTES
) -> Planned:
    """A table with what is said of it (``summary``, ``message``); in shards above ``limit``."""
    raw = content.encode()
    digest = hashlib.sha256(raw).hexdigest()
    return Planned(
        inputs_hash=inputs_hash,
        summary={**said["summary"], "contentHash": digest, "shortHash": digest[:SHORT]},
        message=said["message"],
        content_hash=digest,
        content_bytes=len(raw),
        content=content,
        pieces=split(content, limit),
    )


def next_table(before: Planned, limit: int = TABLE_BYTES) -> Planned:
    """The next table of a roll-out; what is said of the whole stays said."""
    step, *rest = before.steps
    said = {"summary": before.summary, "message": before.message}
    table = planned_table(before.inputs_hash, step.content, said, limit)
    table = replace(table, steps=tuple(rest), mark=before.mark, seconds=before.seconds)
    return replace(table, nodes=step.nodes, base=before.content_hash)


def _decided(name: str, live: Mapping[str, Any], limit: int) -> Decided:
    """``planned`` still carries the question's name for its inputs: whoever asked knows them."""
    steps = _steps(live["steps"])
    first = None
    if steps:
        first = planned_table(name, steps[0].content, live, limit)
        first = replace(first, steps=steps[1:], nodes=steps[0].nodes, mark=Mark.REPLANNED)
    return Decided(
        inputs_hash=name,
        planned=first,
        wanted=_WANTED.get(live.get("wanted") or ""),
        memory=live.get("memory") or {},
        decision=_decision(live),
        facts={k: v for k, v in live.items() if k not in _LARGE},
        message=live["message"],
        reasons=tuple(live.get("reasons") or ()),
    )


_WANTED: Final = {"Reroute": Ask.WINDOW, "Reshape": Ask.SOLVE}
_LARGE: Final = frozenset({"steps", "memory"})
_TOLD: Final = ("rung", "trigger", "headroom", "headroomLow", "regret")
_OF_RUNG: Final = ("rung", "theta", "low", "gain", "note")
_OF_PROPOSAL: Final = ("hash", "rung", "trigger", "gain", "message")
_NOTE_BYTES: Final = 256


def _decision(live: Mapping[str, Any]) -> dict[str, Any]:
    """What the status says of a change, or of one that waits for approval; empty of a keep.

    Exactly the fields of its schema: the API server drops others, and would be told again.
    """
    proposal = live.get("proposal")
    if live["trigger"] == "None" and not proposal and not live.get("degraded"):
        return {}
    rungs = [_only(_OF_RUNG, rung) for rung in live.get("rungs") or ()]
    for rung in rungs:
        if "note" in rung:
            rung["note"] = bounded(rung["note"], _NOTE_BYTES)
    return {
        **_only(_TOLD, live),
        "message": bounded(live["message"]),
        **({"rungs": rungs} if rungs else {}),
        **({"proposal": _only(_OF_PROPOSAL, proposal)} if proposal else {}),
    }


def _only(names: tuple[str, ...], found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in names if found.get(name) not in (None, "")}


def _steps(raw: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(
        Step(
            step["content"],
            Until(step.get("wait", "None")),
            tuple(step.get("islands") or ()),
            step.get("message", ""),
            frozenset(step.get("nodes") or ()),
        )
        for step in raw
    )


def advised(verdict: Answer, memory_mib: int) -> Answer:
    """Say what to do about too little memory, wherever that was noticed."""
    if not isinstance(verdict, Failed) or verdict.reason is not Reason.PLANNER_OOM:
        return verdict
    remedy = (
        f"{verdict.message} ({memory_mib} MiB): use fewer ranges, pools or island sizes, or "
        "raise ARCHIPELAGO_PLANNER_MEMORY_MIB of the operator"
    )
    return replace(verdict, message=remedy)
