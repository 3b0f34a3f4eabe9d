"""Repair a table in shards here, without a planner process.

A process would have to be free, read the whole content, and send it back: tens of seconds for
40,000 islands. Here only what the loss changes is read and written (`planner/table/excise`). The
next request, for better weights, tells the planner of the repair.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final

from archipelago.planner.errors import CheckError
from archipelago.planner.service.messages import NEEDS_DEMAND, ReplanReply
from archipelago.planner.table.excise import Excised, excise
from archipelago.planner.table.shards import Piece, digest

from ..planning.messages import SHORT, decode_result
from ..planning.result import PlannerResult, PlanReady, ReplanResult
from ..resources.cache import LargeContent
from ..resources.objects import PlanObject, TableObject

UNKNOWN: Final = NEEDS_DEMAND | {"costPerHour", "rentedGpus"}
"""Fields of the summary that are left out until there is another plan, within a minute."""


def repaired(
    plan: PlanObject, table: TableObject, content: LargeContent, name: str, limit: int
) -> tuple[PlannerResult, LargeContent] | None:
    """Return the result of the request of that name, and the content that it leads to.

    None if the content is not as it was written; a planner process has to look at it.
    """
    began = time.monotonic()
    nodes = plan.live.lost_nodes if plan.live else frozenset()
    islands = content.islands
    gone = {island for node in nodes for island in islands.by_node.get(node, ())}
    cuts = accumulate((shard.bytes for shard in table.shards), initial=0)
    pieces = [
        Piece(start, stop, shard.hash)
        for (start, stop), shard in zip(pairwise(cuts), table.shards, strict=True)
    ]
    try:
        excised = excise(content.text, pieces, [n for n in islands if n in gone], limit)
    except (CheckError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(excised, Excised):
        return _result(name, excised.message, "None", began), content
    message = f"{len(gone)} of {len(islands)} islands are lost and left the table"
    result = replace(
        _result(name, message, "Repair", began),
        table=_ready(plan, excised, message, frozenset(islands.by_node) - nodes),
    )
    return result, LargeContent(excised.text, islands.without(gone))


def _result(name: str, message: str, trigger: str, began: float) -> ReplanResult:
    """Return a decision without a table."""
    requested = "Reroute" if trigger == "Repair" else None
    reply = ReplanReply(
        level="Keep",
        trigger=trigger,
        message=message,
        summary={},
        state={},
        requested_level=requested,
    )
    result = decode_result(name, reply)
    if not isinstance(result, ReplanResult):
        raise TypeError(type(result).__name__)
    return replace(result, state=None, seconds=time.monotonic() - began)


def _ready(plan: PlanObject, left: Excised, message: str, nodes: frozenset[str]) -> PlanReady:
    hashed = digest(left.text)
    return PlanReady(
        inputs_hash=plan.inputs_hash,
        summary=_summary(plan.status.summary, left)
        | {"contentHash": hashed, "shortHash": hashed[:SHORT]},
        message=message,
        content_hash=hashed,
        content_bytes=len(left.text),
        content=left.text,
        pieces=left.pieces,
        nodes=nodes,
    )


def _summary(before: Mapping[str, Any], left: Excised) -> dict[str, Any]:
    """Return the summary of the table before, as far as it still holds."""
    summary = {field: value for field, value in before.items() if field not in UNKNOWN}
    for field, fewer in (("islands", left.removed), ("gpus", left.gpus)):
        if field in summary:
            summary[field] -= fewer
    return summary
