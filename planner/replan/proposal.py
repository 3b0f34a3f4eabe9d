"""Proposals: named by what they would change, and void once that is no longer so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipelago.planner.canonical import content_hash
from archipelago.planner.replan.facts import Proposal

if TYPE_CHECKING:
    from archipelago.planner.canonical import Document
    from archipelago.planner.plan import Plan
    from archipelago.planner.replan.facts import Limits, Observation, Reached, Trigger


def base_of(seen: Observation) -> str:
    """Hash of what a proposal starts from: the published table, and the spec and nodes behind it.

    Not of the demand, which is another in every window.
    """
    return content_hash({"table": _table(seen.plan), "inputs": seen.inputs})


def proposal(seen: Observation, reached: Reached, trigger: Trigger, now: float) -> Proposal:
    """What is proposed; the hash covers every island and weight of it."""
    if reached.plan is None:
        raise ValueError(f"{reached.rung.name}: there is no table to propose")
    base = base_of(seen)
    named = {"base": base, "rung": int(reached.rung), "table": _table(reached.plan)}
    return Proposal(content_hash(named), base, now, reached, trigger)


def alive(found: Proposal | None, seen: Observation, limits: Limits, now: float) -> bool:
    """Whether a proposal may still be approved."""
    if found is None or now - found.at > limits.expires:
        return False
    return found.base == base_of(seen) and not seen.lost & {
        island.name for island in seen.plan.islands
    }


def _table(plan: Plan) -> Document:
    return {
        "islands": sorted([i.name, i.group, *i.nodes] for i in plan.islands),
        "phases": sorted([g.name, str(g.phase)] for g in plan.groups),
        "routes": [
            [r.model, r.range.min, r.range.max, [[p.prefill, p.decode, p.weight] for p in r.pairs]]
            for r in plan.routes
        ],
    }
