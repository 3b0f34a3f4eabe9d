"""When what a plan has learnt is written down, and when it is used again; pure.

It is written rarely: at most once a minute if a factor in use has moved, else every ten minutes,
and only if it is news. It is used by a process that knows nothing yet: after a restart, or if
another replica leads.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from archipelago.planner.service.knowledge import knowledge_document

from ..resources.knowledge import KNOWLEDGE_BYTES, Kept, knowledge_name, knowledge_text
from ..resources.objects import Observation
from ..resources.status import Reason
from .actions import Action, EmitEvent, EventType, WriteKnowledge
from .state import Now, PlanState, ReplanMemory

if TYPE_CHECKING:
    from ..resources.objects import KnowledgeObject, PlanObject

SOON: Final = 60.0
"""Shortest time between two writes [s]."""
EVERY: Final = 600.0
"""Shortest time between two writes if no factor in use has moved [s]."""


def recalled(observation: Observation, state: PlanState, now: Now) -> PlanState:
    """Return the memory with what is kept, if nothing was learnt since this process began."""
    plan, stored = observation.plan, observation.knowledge
    if plan is None or not plan.is_live or state.replan != ReplanMemory():
        return state
    if stored is None or stored.kept is None or _why_not(plan, stored):
        return state
    knowledge, age = stored.kept.knowledge, (now.wall - stored.kept.time).total_seconds()
    memory = ReplanMemory(
        state=knowledge_document(knowledge),
        state_at=now.monotonic - max(0.0, age),
        learnt=knowledge,
    )
    return replace(state, replan=memory)


def keep(observation: Observation, state: PlanState, now: Now) -> tuple[Action, ...]:
    """Return the write of what was learnt if it is due, or the event that says why there is none.

    Nothing is written over an object that is not the plan's.
    """
    plan, stored, learnt = observation.plan, observation.knowledge, state.replan.learnt
    if plan is None:
        return ()
    why = _why_not(plan, stored) if stored else ""
    refusal = why
    if stored is not None and stored.refusal and not why:
        refusal = f"{stored.refusal}; it is learnt anew, and then written over"
    if refusal:
        name = knowledge_name(plan.key.name)
        actions = _say(f"ConfigMap {name} is not used: {refusal}", state)
        if why or actions:
            return actions
    if learnt is None or learnt.is_empty() or plan.refused_files:
        return ()
    kept = stored.kept.knowledge if stored and stored.kept else None
    moved = kept is None or learnt.has_moved_from(kept)
    since = now.monotonic - state.knowledge.at
    if since < (SOON if moved else EVERY) or not (kept is None or learnt.is_news_to(kept)):
        return ()
    time = now.wall - timedelta(seconds=now.monotonic - state.replan.state_at)
    text = knowledge_text(Kept(learnt, time))
    if len(text) > KNOWLEDGE_BYTES:
        return _say(f"what was learnt is not kept: more than {KNOWLEDGE_BYTES} bytes", state)
    return (WriteKnowledge(text, "what was learnt outlives this process"),)


def _say(message: str, state: PlanState) -> tuple[Action, ...]:
    if message == state.knowledge.said:
        return ()
    return (EmitEvent(EventType.WARNING, Reason.KNOWLEDGE_REFUSED, message),)


def _why_not(plan: PlanObject, stored: KnowledgeObject) -> str:
    """Return why an object is not the plan's to read or write; empty if it is."""
    if not stored.belongs_to(plan):
        return "it is not this plan's, so nothing is kept: delete it, or rename the plan"
    if stored.locked:
        return "it cannot be changed, so nothing is kept: delete it"
    return "it is being deleted" if stored.deleting else ""
