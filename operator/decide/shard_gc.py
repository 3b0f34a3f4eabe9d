"""Shards of large tables: which have to be written before the pointer, which are spare; pure.

A pointer is written only when every shard that it names is stored, and a shard is removed only when
the stored pointer has not named it for the whole of a grace period, in which readers of an earlier
pointer fetch what that one named. A shard that changes meanwhile, because another operator wants it
for its next pointer, is spare for a grace period anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from archipelago.operator.sharding import Shard, shards_of
from archipelago.operator.verdict import Planned

if TYPE_CHECKING:
    from archipelago.operator.observe import Observation, SeenMap, SeenPlan, SeenShard
    from archipelago.operator.state import State
    from archipelago.planner.shards import Piece


class Due(NamedTuple):
    """A spare shard of that version, and when it may go [monotonic s]."""

    version: str
    at: float


def as_readers_find_it(seen: Observation) -> Observation:
    """A table of which a shard is missing counts as one that was changed: nobody can read it."""
    plan, table = seen.plan, seen.table
    if plan is None or table is None:
        return seen
    if all(_holds(seen.shards.get(shard.name), shard, plan) for shard in table.shards):
        return seen
    return replace(seen, table=replace(table, stored_hash=None))


def to_write(seen: Observation, verdict: Planned, sequence: int) -> tuple[Piece, ...]:
    """Pieces that have to be stored before a pointer of that sequence may name them.

    One that the stored pointer names as well is safe from anybody's tidying. Any other is written
    even where it is there, so that it counts as wanted from now on.
    """
    plan, table = seen.plan, seen.table
    if plan is None:
        return ()
    named = set(table.shards) if table is not None and table.belongs_to(plan) else set()

    def is_safe(shard: Shard) -> bool:
        found = seen.shards.get(shard.name)
        wanted = found is not None and found.wanted_by == str(sequence)
        return _holds(found, shard, plan) and (shard in named or wanted)

    shards = shards_of(plan.key.name, verdict.pieces)
    missing = {
        shard: piece
        for shard, piece in zip(shards, verdict.pieces, strict=True)
        if not is_safe(shard)
    }
    return tuple(missing.values())


def in_the_way(seen: Observation, verdict: Planned) -> SeenMap | None:
    """An object of the table's or a wanted shard's name that is not this plan's, or going."""
    plan = seen.plan
    if plan is None:
        return None
    names = [shard.name for shard in shards_of(plan.key.name, verdict.pieces)]
    found = [seen.table, *(seen.shards.get(name) for name in names)]
    strange = (item for item in found if item and (item.deleting or not item.belongs_to(plan)))
    return next(strange, None)


def spare(seen: Observation, state: State) -> tuple[SeenShard, ...]:
    """Our shards that no stored table names and no plan at hand wants.

    None while the stored table is not whole, or another is under way: there is no hurry.
    """
    plan, table = seen.plan, as_readers_find_it(seen).table
    if plan is None or table is None or state.planning is not None:
        return ()
    if not (table.belongs_to(plan) and table.is_untouched()):
        return ()
    pieces = state.verdict.pieces if isinstance(state.verdict, Planned) else ()
    kept = {shard.name for shard in (*table.shards, *shards_of(plan.key.name, pieces))}
    return tuple(s for n, s in seen.shards.items() if n not in kept and s.is_ours(plan))


def dues(seen: Observation, state: State, now: float, grace: float) -> dict[str, Due]:
    """When each spare shard may go: a grace period after it was first seen to be so."""
    return {
        shard.key.name: _due(state.spare.get(shard.key.name), shard, now + grace)
        for shard in spare(seen, state)
    }


def _due(known: Due | None, shard: SeenShard, latest: float) -> Due:
    same = known is not None and known.version == shard.resource_version
    return known if same and known else Due(shard.resource_version, latest)


def _holds(found: SeenShard | None, shard: Shard, plan: SeenPlan) -> bool:
    return found is not None and found.holds(shard, plan)
