"""I1 to I9 where tables change without an edit: what of them does not depend on plan(inputs).

Of a live plan's table it cannot be said beforehand what it holds. It can be said what it may never
hold: a node that is gone, once there was time to store another table.
"""

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from archipelago.planner.table.validate import validate_table
from tests.support.faults.ground import Ground, nodes_under
from tests.support.faults.history import PLAN, TABLE, Version
from tests.support.faults.invariants import Allowance, Report, check_stored

Period: TypeAlias = tuple[float, float]

LATE = 5.0
"""Seconds after the loss of a node that a table may still name it: 2 s, and what much else that is
played beside on few processors costs; ``tests/e2e`` measures the 2 s."""
REPLAN = 3
"""Tables that one change may lead to: a repair, and another plan in up to three."""


def check_live(ground: Ground, changes: int, allowance: Allowance | None = None) -> Report:
    """Check everything that was stored of the plan. ``changes``: of its nodes, as it is told."""
    report, history = Report(), ground.bench.history.of(ground.plan)
    check_stored(history, report)
    tables = history.ordered(TABLE)
    mine = [v for v in tables if history.is_operators(v) and v.table is not None]
    for version in mine:
        report.check("I2", not (wrong := validate_table(version.table)), str(wrong), version)
    for version, until in _lives(tables):
        for node in sorted(nodes_under(version.table)):
            late = sum(_overlap(bad, (version.at, until)) for bad in _too_late(ground, node))
            report.check("lost", not late, f"names {node} for {late:.1f} s too long", version)
    _few_tables(ground, mine, changes, allowance or Allowance(), report)
    return report


def _lives(tables: list[Version]) -> Iterator[tuple[Version, float]]:
    """Every stored table, and until when it lay there."""
    for version, following in pairwise(tables):
        if version.table is not None:
            yield version, following.at
    if tables and tables[-1].change != "DELETED" and tables[-1].table is not None:
        yield tables[-1], time.monotonic()


def _too_late(ground: Ground, node: str) -> list[Period]:
    """When no table may name the node: it was gone, and there was time to store another one."""
    periods: list[Period] = []
    gone: float | None = None
    for at, name, there in [*ground.log, (math.inf, node, True)]:
        if name != node:
            continue
        if there and gone is not None:
            periods.append((_writable(ground, gone) + LATE, at))
            gone = None
        elif not there and gone is None:
            gone = at
    return periods


def _writable(ground: Ground, gone: float) -> float:
    """When a table could be stored after that loss."""
    for start, end in ground.excused:
        if start - LATE <= gone <= end:
            return end
    return gone


def _overlap(one: Period, other: Period) -> float:
    """Seconds in both."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _few_tables(
    ground: Ground, mine: list[Version], changes: int, allowed: Allowance, report: Report
) -> None:
    """I5: nothing is written again and again."""
    history = ground.bench.history.of(ground.plan)
    life = history.ordered(PLAN)
    if not life:
        return
    edits = life[-1].generation
    most = ((1 + REPLAN) * (changes + edits) + allowed.retries) * allowed.operators
    report.check("I5", len(mine) <= most, f"{len(mine)} tables, at most {most}", life[-1])
    statuses = sum(history.is_operators(version) for version in life)
    most *= 3
    report.check("I5", statuses <= most, f"{statuses} statuses, at most {most}", life[-1])
    for start, stop in history.rest:
        for version in (*life, *mine):
            quiet = history.is_operators(version) and start < version.at < stop
            report.check("I1", not quiet, "written at rest", version)
