"""What to do about a live plan whose table is stored and said: repair, roll out, observe; pure.

One question at a time is under way for a plan. A repair comes before everything else, and ends a
roll-out: what that led to was planned with islands that are gone. It does not wait for a plan that
is being made either. While a roll-out goes on windows are not looked at: they speak of a table that
is about to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from archipelago.operator.actions import Action, AskLive, ReadIslands, Wait
from archipelago.operator.livefacts import Ask, Mark, Until
from archipelago.operator.livejobs import lost_islands
from archipelago.operator.verdict import Failed, Planned

if TYPE_CHECKING:
    from archipelago.operator.livefacts import Step
    from archipelago.operator.observe import Observation, SeenPlan, SeenTable
    from archipelago.operator.state import Now, State

DRAIN: Final = 10.0
"""Seconds that requests have to come to their end where ``drainSeconds`` says nothing else."""
PATIENCE: Final = 900.0
"""Seconds after which pods that are not ready are waited for no longer: the table stays as it is,
and windows decide again, without those islands."""


def live_actions(seen: Observation, state: State, now: Now) -> tuple[Action, ...]:
    """What to do now that nothing else is to be done."""
    plan, table, live = seen.plan, seen.table, state.live
    if plan is None or table is None or plan.live is None or not plan.live.listed:
        return ()
    if live.asking is not None or _is_to_be_stored(state) or not is_as_written(plan, table):
        return ()
    if table.shards and not table.islands:
        return (ReadIslands("where the islands of a table in shards stand"),)
    return _repair(plan, table, state, now)


def _repair(plan: SeenPlan, table: SeenTable, state: State, now: Now) -> tuple[Action, ...]:
    """Take out islands that are lost; where none is, go on."""
    live = state.live
    if now.monotonic < live.retry_at:
        return (Wait(live.retry_at - now.monotonic, "the last question had no answer"),)
    lost = lost_islands(plan, table)
    if not lost:
        return _go_on(plan, state, now)
    if live.hurt.issuperset(lost):
        return ()  # there is no table without them: another plan is on its way
    return (AskLive(Ask.REPAIR, f"{len(lost)} islands stand on nodes that are gone"),)


def spoilt_meanwhile(
    plan: SeenPlan, table: SeenTable | None, state: State, now: Now
) -> tuple[Action, ...] | None:
    """Instead of storing a table on nodes that went while it was made; None: it may be stored.

    It is repaired first. Where nothing of it is left, what is stored stays until the nodes are
    planned with as they are.
    """
    verdict, live = state.verdict, state.live
    lost = plan.live.lost if plan.live else frozenset()
    if table is None or not isinstance(verdict, Planned) or not verdict.nodes & lost:
        return None
    if live.asking is not None or live.helpless == verdict.content_hash:
        return ()
    if now.monotonic < live.retry_at:
        return (Wait(live.retry_at - now.monotonic, "the last question had no answer"),)
    return (AskLive(Ask.REPAIR, "nodes went while the table was made"),)


def _is_to_be_stored(state: State) -> bool:
    """Whether a table is at hand that the server has not taken yet."""
    return isinstance(state.verdict, Planned) and state.verdict.content is not None


def _go_on(plan: SeenPlan, state: State, now: Now) -> tuple[Action, ...]:
    if state.planning is not None:
        return ()
    if state.steps:
        return (_waits(plan, state, now),)
    refused = plan.live is not None and plan.live.refusal is not None
    if refused or isinstance(state.verdict_on(plan.inputs_hash), Failed):
        return ()  # no plan for what it asks now: nothing is concluded from its traffic
    if plan.live is not None and plan.live.left is not None:
        return ()  # who stored it goes on with it
    return _observe(plan, state)


def may_step(seen: Observation, state: State, now: Now) -> bool:
    """Whether the next table of a roll-out is due."""
    plan, table = seen.plan, seen.table
    if plan is None or table is None or plan.live is None or not state.steps:
        return False
    if lost_islands(plan, table):
        return False
    step, since = state.steps[0], now.monotonic - state.live.stepped
    return _is_over(step, plan, table, since)


def ends_first(
    plan: SeenPlan, table: SeenTable | None, state: State, now: Now
) -> tuple[Action, ...]:
    """A wait, where a new plan would be stored over a table of a roll-out that has just come.

    Its islands may still have requests: the plan knows that they get no new ones, not since when.
    """
    lying, verdict = state.live.lying, state.verdict
    if table is None or table.mark is not Mark.ROLLING or lying is None:
        return ()
    if not isinstance(verdict, Planned) or verdict.mark is not None or lost_islands(plan, table):
        return ()
    left = lying.since + drain(plan) - now.monotonic
    return (Wait(left, "requests of the last step come to their end"),) if left > 0 else ()


def has_waited_enough(state: State, now: Now) -> bool:
    """Whether the pods that a roll-out waits for are given up."""
    return bool(state.steps) and now.monotonic - state.live.stepped >= PATIENCE


def may_take(plan: SeenPlan, table: SeenTable | None, state: State) -> bool:
    """Whether the stored table, or what re-planning made of it, answers these inputs.

    One in the middle of a roll-out does only for whoever remembers what comes after it.
    """
    if table is None or not plan.is_live or not is_as_written(plan, table):
        return False
    whole = not is_unfinished(plan, table) or (table.mark is Mark.ROLLING and bool(state.steps))
    return table.mark is not None and whole and table.inputs_hash == plan.inputs_hash


def is_unfinished(plan: SeenPlan, table: SeenTable | None) -> bool:
    """Whether another table is to come after it, and nobody remembers which.

    One without lost nodes is whole until all that its plan was made with are back.
    """
    if table is None or table.mark is None:
        return False
    return table.mark in (Mark.ROLLING, Mark.OWED) or is_whole_again(plan, table)


def is_whole_again(plan: SeenPlan, table: SeenTable) -> bool:
    """Whether the nodes that a table was repaired without are back."""
    repaired = table.mark is Mark.REPAIRED and plan.finds_nodes
    return repaired and plan.live is not None and not plan.live.away


def mark_of(plan: SeenPlan, verdict: Planned) -> str:
    """How the verdict's table came to be, as it is written beside it; empty of static plans."""
    if not plan.is_live:
        return ""
    rolling = verdict.steps and verdict.mark is not Mark.OWED
    return Mark.ROLLING if rolling else verdict.mark or Mark.PLANNED


def is_written_of(plan: SeenPlan, verdict: Planned, table: SeenTable) -> bool:
    """Whether the stored table is the verdict's, its mark too where that is still to be written."""
    if table.content_hash != verdict.content_hash:
        return False
    return not plan.is_live or verdict.content is None or table.mark == mark_of(plan, verdict)


def is_as_written(plan: SeenPlan, table: SeenTable) -> bool:
    """Whether it is this plan's, and as we wrote it."""
    return table.belongs_to(plan) and table.is_untouched() and not table.deleting


def _observe(plan: SeenPlan, state: State) -> tuple[Action, ...]:
    live, traffic = state.live, plan.live.traffic if plan.live else None
    approved = plan.replanning.get("approve") or ""
    if live.wanted is not None:
        return (AskLive(live.wanted, "the last answer asks for it"),)
    if traffic is None or traffic.document is None or traffic.began < live.rolled:
        return ()  # pods that changed took their counters with them
    if approved and approved != live.approved:
        return (AskLive(Ask.WINDOW, "a proposal was approved"),)
    if traffic.at > live.used:
        return (AskLive(Ask.WINDOW, "a window of traffic is over"),)
    return ()


def _waits(plan: SeenPlan, state: State, now: Now) -> Wait:
    step, since = state.steps[0], now.monotonic - state.live.stepped
    if since < 0:
        return Wait(-since, "who stored the last table goes first")
    if step.until is Until.READY and plan.live and plan.live.pods:
        return Wait(PATIENCE - since, f"pods of {len(step.islands)} islands are not ready")
    return Wait(max(0.0, drain(plan) - since), "requests on islands that change come to their end")


def _is_over(step: Step, plan: SeenPlan, table: SeenTable, since: float) -> bool:
    if since < 0:
        return False  # another operator stored the last one and goes first
    if step.until is Until.NONE:
        return True
    if step.until is Until.READY and plan.live and plan.live.pods:
        return not plan.live.unready(table.islands) & set(step.islands)
    return since >= drain(plan)


def drain(plan: SeenPlan) -> float:
    """Seconds that requests have to come to their end."""
    return float(plan.replanning.get("drainSeconds", DRAIN))
