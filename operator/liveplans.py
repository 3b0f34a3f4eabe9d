"""Carries out what was decided about live plans: reads the stored table and asks about it."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from archipelago.operator.errors import Retryable
from archipelago.operator.livedecide import is_as_written
from archipelago.operator.livefacts import Ask, Mark
from archipelago.operator.livejobs import live_job, lost_islands, plan_job
from archipelago.operator.question import Job, planned_table
from archipelago.operator.verdict import Planned

if TYPE_CHECKING:
    from archipelago.operator.livestate import LiveState
    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import Observation, SeenPlan, SeenTable
    from archipelago.operator.state import Now, State
    from archipelago.operator.tables import Tables

log = logging.getLogger(__name__)


class Asking(Protocol):
    """What is asked of planner processes."""

    def ask(self, job: Job) -> None:
        """Answer this question; what was under way for its key is dropped."""

    def cancel(self, key: Key) -> None:
        """Drop what is under way for the key."""

    def warm(self) -> None:
        """There will be questions."""


class LivePlans:
    """Questions about live plans. ``quick``: processes that plan nothing, so that nobody waits."""

    def __init__(self, tables: Tables, planner: Asking, quick: Asking, limit: int) -> None:
        self._tables = tables
        self._planner = planner
        self._quick = quick
        self._limit = limit

    async def question(
        self, plan: SeenPlan, table: SeenTable | None, remembered: tuple[LiveState, float]
    ) -> Job:
        """To plan these inputs; of a live plan, beside what runs where something of it does."""
        if not plan.is_live:
            return Job.of(plan)
        stands = table is not None and is_as_written(plan, table)
        content = await self._tables.content(plan, table) if table and stands else None
        return plan_job(plan, json.loads(content) if content else None, remembered)

    async def ask(self, seen: Observation, state: State, kind: Ask, now: Now) -> State:
        """Ask; returns the state that has the question under way.

        Raises:
            Retryable: the stored table is not the one that was seen.
        """
        plan, table = seen.plan, seen.table
        if plan is None or table is None:
            return state
        text, digest = await self._content(plan, table, state)
        content = json.loads(text)
        traffic = plan.live.traffic if plan.live else None
        used = traffic.at if traffic and kind is not Ask.REPAIR else None
        approved = plan.replanning.get("approve") or ""
        stored = digest == table.content_hash
        mark = _mark(plan, table, kind) if stored else Mark.REPAIRED
        live = state.live.with_question(kind, plan.inputs_hash, used, approved, mark)
        hurt = frozenset(lost_islands(plan, table)) if stored else live.hurt
        live = replace(live, hurt=hurt, about=digest, over=table.content_hash)
        job = live_job(plan, content, live, (kind, now.monotonic))
        (self._planner if kind is Ask.SOLVE else self._quick).ask(job)
        return replace(state, live=live)

    async def _content(self, plan: SeenPlan, table: SeenTable, state: State) -> tuple[str, str]:
        """The table that is asked about, and its hash: the goal that is to be stored, if any.

        Raises:
            Retryable: the stored table is not the one that was seen.
        """
        verdict = state.verdict
        if isinstance(verdict, Planned) and verdict.content is not None:
            goal = verdict.steps[-1].content if verdict.steps else verdict.content
            return goal, verdict.content_hash
        content = await self._tables.content(plan, table)
        if content is None:
            raise Retryable(f"{plan.key}: the table changed before it was asked about")
        return content, table.content_hash or ""

    async def take(self, seen: Observation, state: State, now: Now) -> State:
        """Take the stored table for the answer; unchanged where it is not there any more."""
        plan, table = seen.plan, seen.table
        if plan is None or table is None:
            return state
        content = await self._tables.content(plan, table)
        if content is None:
            return state
        ready = plan.status.summary.get("contentHash") == table.content_hash
        said = {
            "summary": plan.status.summary if ready else {},
            "message": f"the table of sequence {table.identity.sequence if table.identity else 0} "
            "stays as re-planning left it",
        }
        verdict = await asyncio.to_thread(
            planned_table, plan.inputs_hash, content, said, self._limit
        )
        taken = replace(verdict, mark=table.mark, steps=state.steps, taken=True)
        return state.with_verdict(taken.without_content() if table.answers(plan) else taken, now)

    def warm(self) -> None:
        """There is a live plan: a repair must not wait for a process to start."""
        self._quick.warm()

    def cancel(self, key: Key) -> None:
        """Drop what is under way for the key."""
        self._quick.cancel(key)


def stood_over(plan: SeenPlan, table: SeenTable | None) -> str | None:
    """Hash of the content that is planned beside, empty where none is; None: it does not matter."""
    if not plan.is_live:
        return None
    stands = table is not None and is_as_written(plan, table)
    return (table.content_hash or "") if table and stands else ""


def _mark(plan: SeenPlan, table: SeenTable, kind: Ask) -> Mark:
    """Of what comes of the stored table. A roll-out that was cut short is to be planned again."""
    if table.inputs_hash != plan.inputs_hash:
        return Mark.OWED
    if kind is not Ask.REPAIR:
        return Mark.REPAIRED if table.mark is Mark.REPAIRED else Mark.REPLANNED
    return Mark.OWED if table.mark in (Mark.ROLLING, Mark.OWED) else Mark.REPAIRED
