"""What a planner process is asked about a live plan: values, no process.

The answers are ``operator/liveanswer.py``; both sides of the pipe are JSON.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from archipelago.operator.livefacts import Ask
from archipelago.operator.observe import islands_of
from archipelago.operator.question import Job, time_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.livefacts import SeenIsland
    from archipelago.operator.livestate import LiveState
    from archipelago.operator.observe import SeenPlan, SeenTable

SECONDS: Final = 30.0
"""Of a question that needs no planner: it takes a fraction of one."""


def live_job(
    plan: SeenPlan, content: Mapping[str, Any], state: LiveState, ask: tuple[Ask, float]
) -> Job:
    """The question under way; ``ask``: its kind and the time [monotonic s].

    Named by the state that has it under way, so that an answer which nobody waits for is known.
    """
    kind, now = ask
    question = {
        **_standing(plan, islands_of(content), content),
        **_remembered(state, now),
        "window": None if kind is Ask.REPAIR else _traffic(plan),
        "solve": kind is Ask.SOLVE,
        "approved": plan.replanning.get("approve"),
        "inputs": plan.inputs_hash,
        "seed": _seed(plan, state),
    }
    limit = time_limit(plan) + SECONDS if kind is Ask.SOLVE else SECONDS
    urgent = kind is Ask.REPAIR
    return Job(plan.key, state.asking or "", {"live": question}, limit, urgent=urgent)


def plan_job(
    plan: SeenPlan, content: Mapping[str, Any] | None, remembered: tuple[LiveState, float]
) -> Job:
    """Plan anew, beside what runs: the answer keeps what it can and says in which order.

    ``content`` None: nothing runs. ``remembered``: until the time [monotonic s]; what islands
    taught of times is used, and never a reason to plan.
    """
    islands = islands_of(content) if content else {}
    question = {**_standing(plan, islands, content), **_remembered(*remembered), "plan": True}
    return Job(plan.key, plan.inputs_hash, {"live": question}, time_limit(plan))


def lost_islands(plan: SeenPlan, table: SeenTable) -> list[str]:
    """Islands of the table that stand on a node which is gone."""
    return lost_of(plan, table.islands)


def lost_of(plan: SeenPlan, islands: Mapping[str, SeenIsland]) -> list[str]:
    """Those of the islands that stand on a node which is gone."""
    lost = plan.live.lost if plan.live else frozenset()
    return sorted(name for name, island in islands.items() if lost & set(island.nodes))


def _standing(
    plan: SeenPlan, islands: Mapping[str, SeenIsland], content: Mapping[str, Any] | None
) -> dict[str, Any]:
    live = plan.live
    return {
        "resource": plan.to_resource(),
        "content": content,
        "nodes": dict(live.names) if live else {},
        "lost": lost_of(plan, islands),
        "unready": sorted(live.unready(islands)) if live else [],
    }


def _remembered(state: LiveState, now: float) -> dict[str, Any]:
    age = max(0.0, now - state.answered) if state.memory else 0.0
    return {"memory": dict(state.memory), "age": age}


def _traffic(plan: SeenPlan) -> Mapping[str, Any] | None:
    traffic = plan.live.traffic if plan.live else None
    return traffic.document if traffic else None


def _seed(plan: SeenPlan, state: LiveState) -> int:
    """Of the draws: another for each question, the same whenever the same one is asked."""
    named = f"{plan.uid} {state.asked}".encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:4], "big")
