"""Starts planning and re-planning with the stored table; the requests are JSON.

`planner/service` computes their results, in a planner process.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from archipelago.planner.service.messages import PlanRequest, ReplanRequest, TableStep

from ..decide.budgets import allowances
from ..decide.rollout import base_hash
from ..errors import Retryable
from ..planning.messages import Job, plan_ready, time_limit
from ..planning.result import PlannerResult, PlanReady, ReplanResult
from ..resources.live import ReplanKind, TableIslands
from ..resources.names import Key
from ..resources.objects import (
    PlanObject,
    TableObject,
    lost_islands,
    read_islands,
)
from .large_repair import repaired

if TYPE_CHECKING:
    from ..decide.state import Now, PlanState
    from ..planning.pool import PlannerPool
    from ..planning.strategies import StrategyPools
    from .tables import Tables


REQUEST_SECONDS: Final = 30.0
"""Limit of a request that solves nothing: it takes a fraction of a second."""


@dataclass(frozen=True)
class Base:
    """The content that a request is about."""

    content: str
    content_hash: str
    islands: TableIslands


def plan_job(plan: PlanObject, base: Base | None, state: PlanState, now: Now) -> Job:
    """Return the request to plan beside what runs: the result keeps what it can.

    Args:
        plan: A live plan.
        base: The table that runs; None if nothing runs.
        state: Memory of the plan: what was learnt about times is used, but is no reason to plan.
        now: The time.
    """
    islands = base.islands if base else TableIslands()
    content = base.content if base else None
    follows = plan.scheduled is not None
    request = PlanRequest(content=content, follows=follows, **_facts(plan, islands, state, now))
    return Job.of(plan, request)


def _facts(plan: PlanObject, islands: TableIslands, state: PlanState, now: Now) -> dict[str, Any]:
    """Return what every request carries: plan, nodes, islands that cannot serve, and the state."""
    live, memory = plan.live, state.replan
    return {
        "resource": plan.to_resource(),
        "nodes": dict(live.node_names) if live else {},
        "lost": tuple(lost_islands(plan, islands)),
        "unready": tuple(sorted(live.unready(islands))) if live else (),
        "state": dict(memory.state),
        "age": max(0.0, now.monotonic - memory.state_at) if memory.state else 0.0,
        "calibration": plan.calibration,
        "expected": plan.scheduled is not None and plan.scheduled.expected,
    }


class PlanExecutor:
    """Starts planning and re-planning with the stored table.

    ``quick``: processes for requests about live plans, so that a repair never waits for a plan.
    """

    def __init__(
        self,
        tables: Tables,
        planner: PlannerPool | StrategyPools,
        quick: PlannerPool,
        limit: int,
    ) -> None:
        self._tables = tables
        self._planner = planner
        self._quick = quick
        self._limit = limit

    async def base(self, plan: PlanObject, table: TableObject | None) -> Base | None:
        """Return the content that runs while a new plan is made; None if nothing runs."""
        if table is None or not base_hash(plan, table):
            return None
        content = await self._tables.content(plan, table)
        if content is None:
            return None
        large = self._tables.known(table)
        return Base(content, table.content_hash or "", large.islands if large else table.islands)

    def start_plan(self, plan: PlanObject, base: Base | None, state: PlanState, now: Now) -> None:
        """Start to plan these inputs; a live plan keeps what it can of its ``base``."""
        self._quick.cancel(plan.key)
        self._planner.ask(plan_job(plan, base, state, now) if plan.is_live else Job.of(plan))

    async def replan_base(self, plan: PlanObject, table: TableObject, state: PlanState) -> Base:
        """Return the table that a request is about: the goal that is to be stored, if any.

        Raises:
            Retryable: the stored table is not the observed one.
        """
        result = state.to_store
        if result is not None and result.content is not None:
            goal = result.steps[-1].content if result.steps else result.content
            islands = await asyncio.to_thread(read_islands, goal)
            return Base(goal, result.content_hash, islands)
        base = await self.base(plan, table)
        if base is None:
            raise Retryable(f"{plan.key}: the table changed before re-planning read it")
        return base

    def start_replan(
        self, plan: PlanObject, base: Base, state: PlanState, kind: ReplanKind, now: Now
    ) -> None:
        """Start the request that ``state`` has under way; its result carries the request's name."""
        solve, repair = kind is ReplanKind.SOLVE, kind is ReplanKind.REPAIR
        rollback = kind is ReplanKind.ROLLBACK
        traffic = plan.live.traffic if plan.live else None
        since = state.replan.repaired_at
        # Another seed for each request, and the same one if a request is repeated.
        seed = hashlib.sha256(f"{plan.uid} {state.replan.requests}".encode()).digest()[:4]
        request = ReplanRequest(
            content=base.content,
            inputs=plan.inputs_hash,
            seed=int.from_bytes(seed, "big"),
            window=traffic.window if traffic and not repair and not rollback else None,
            goal=state.failed.goal if rollback else None,
            avoid=state.failed.avoided(now),
            solve=solve,
            approved=plan.replanning.get("approve"),
            pinned=tuple(sorted(plan.live.pinned(base.islands))) if plan.live else (),
            allowed=allowances(plan, len(base.islands), now.wall),
            repaired=max(0.0, now.monotonic - since) if math.isfinite(since) else None,
            **_facts(plan, base.islands, state, now),
        )
        limit = time_limit(plan) + REQUEST_SECONDS if solve else REQUEST_SECONDS
        name = state.request.name if state.request else ""
        job = Job(plan.key, name, request, limit, urgent=repair)
        (self._planner if solve else self._quick).ask(job)

    async def repair_large(
        self, plan: PlanObject, table: TableObject, base: Base, state: PlanState
    ) -> PlannerResult | None:
        """Return the result of the repair under way if its table is stored in shards; else None."""
        content = self._tables.known(table)
        if content is None or base.content_hash != table.content_hash or state.request is None:
            return None
        if not lost_islands(plan, base.islands):
            return None  # islands that stay, without requests: a planner process writes that
        name = state.request.name
        found = await asyncio.to_thread(repaired, plan, table, content, name, self._limit)
        if found is None:
            return None
        result, remaining = found
        if isinstance(result, ReplanResult) and result.table is not None:
            self._tables.expect(table.key, result.table.content_hash, remaining)
        return result

    async def adopted(
        self, plan: PlanObject, table: TableObject, steps: tuple[TableStep, ...]
    ) -> PlanReady | None:
        """Return the stored table as a result of the planner; None if it is not there any more."""
        content = await self._tables.content(plan, table)
        if content is None:
            return None
        ready = plan.status.summary.get("contentHash") == table.content_hash
        sequence = table.identity.sequence if table.identity else 0
        result = await asyncio.to_thread(
            plan_ready,
            plan.inputs_hash,
            content,
            plan.status.summary if ready else {},
            f"the table of sequence {sequence} stays as re-planning left it",
            self._limit,
        )
        result = replace(result, origin=table.origin, steps=steps, adopted=True)
        return result.without_content() if table.is_up_to_date(plan) else result

    def warm(self) -> None:
        """Start a process if there is none: a repair must not wait for that."""
        self._quick.warm()

    def cancel(self, key: Key) -> None:
        """Drop what is under way for the key."""
        self._planner.cancel(key)
        self._quick.cancel(key)
