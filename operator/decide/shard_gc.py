"""Which shards of a large table to write before its pointer, and which to remove; pure.

A pointer is written only if every shard that it names is stored. A shard is removed only if the
stored pointer has not named it for a whole grace period, in which readers of an earlier pointer
still fetch it. If another operator writes a spare shard for its next pointer, the shard has a new
version and its grace period starts again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from archipelago.planner.table.shards import Piece

from ..planning.result import PlanReady
from ..resources.shards import Shard, shards_of
from .state import Due, PlanState

if TYPE_CHECKING:
    from ..resources.objects import ConfigMapObject, Observation, PlanObject, ShardObject


def with_readable_table(observation: Observation) -> Observation:
    """Mark a table as modified if one of its shards is missing: nobody can read it."""
    plan, table = observation.plan, observation.table
    if plan is None or table is None:
        return observation
    if all(_holds(observation.shards.get(shard.name), shard, plan) for shard in table.shards):
        return observation
    return replace(observation, table=replace(table, stored_hash=None))


def to_write(observation: Observation, result: PlanReady, sequence: int) -> tuple[Piece, ...]:
    """Return the pieces to store before a pointer of that sequence may name them.

    A shard that the stored pointer names is never removed. Any other is written even if it exists,
    so that it counts as wanted from now on.
    """
    plan, table = observation.plan, observation.table
    if plan is None:
        return ()
    named = set(table.shards) if table is not None and table.belongs_to(plan) else set()

    def is_safe(shard: Shard) -> bool:
        stored = observation.shards.get(shard.name)
        needed = stored is not None and stored.needed_by == str(sequence)
        return _holds(stored, shard, plan) and (shard in named or needed)

    shards = shards_of(plan.key.name, result.pieces)
    missing = {
        shard: piece
        for shard, piece in zip(shards, result.pieces, strict=True)
        if not is_safe(shard)
    }
    return tuple(missing.values())


def to_replace(observation: Observation, missing: Iterable[Piece]) -> tuple[ConfigMapObject, ...]:
    """Return what has to be deleted before the table and its missing pieces can be written.

    What is immutable cannot be changed. A shard is so on purpose, and stays with its text.
    """
    plan, table = observation.plan, observation.table
    if plan is None:
        return ()
    locked: list[ConfigMapObject] = [table] if table is not None and table.locked else []
    for shard in shards_of(plan.key.name, missing):
        stored = observation.shards.get(shard.name)
        if stored is not None and stored.locked and stored.text_hash != shard.hash:
            locked.append(stored)
    return tuple(locked)


def in_the_way(observation: Observation, result: PlanReady) -> ConfigMapObject | None:
    """Return an object with a name that the table needs: not this plan's, or being deleted."""
    plan = observation.plan
    if plan is None:
        return None
    names = [shard.name for shard in shards_of(plan.key.name, result.pieces)]
    objects = [observation.table, *(observation.shards.get(name) for name in names)]
    return next((o for o in objects if o and (o.deleting or not o.belongs_to(plan))), None)


def dues(observation: Observation, state: PlanState, now: float, grace: float) -> dict[str, Due]:
    """Return when each spare shard may go: a grace period after it became spare.

    A shard of the plan is spare if neither the stored table nor one at hand names it. None is while
    the stored table cannot be read or another is being made: there is no hurry.
    """
    plan, table = observation.plan, with_readable_table(observation).table
    if plan is None or table is None or state.planning is not None:
        return {}
    if not (table.belongs_to(plan) and table.is_unmodified()):
        return {}
    pieces = state.ready.pieces if state.ready else ()
    needed = {shard.name for shard in (*table.shards, *shards_of(plan.key.name, pieces))}
    spare = {}
    for name, shard in observation.shards.items():
        if name not in needed and shard.is_ours(plan):
            due = state.spare.get(name)
            same = due is not None and due.version == shard.resource_version
            spare[name] = due if due and same else Due(shard.resource_version, now + grace)
    return spare


def _holds(stored: ShardObject | None, shard: Shard, plan: PlanObject) -> bool:
    return stored is not None and stored.holds(shard, plan)
