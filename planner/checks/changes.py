"""Is what the plan says of the islands that run now true of it?

From the plan alone: every island is kept, moved or started, and the GPUs are counted right. Where
the problem names what runs, each such island is accounted for: kept ones are of the same kind on
the same nodes, moved ones of the same kind elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.checks.facts import Facts
    from archipelago.planner.plan import Changes, Group, Island
    from archipelago.planner.problem import Running


def check(facts: Facts) -> Iterator[str]:
    """The islands of the plan, then those that run."""
    changes, running = facts.plan.changes, {item.name: item for item in facts.problem.running}
    if changes is None:
        if running:
            yield f"changes: missing, although {len(running)} islands run"
        return
    islands = {island.name: island for island in facts.plan.islands}
    yield from _planned(facts, changes, islands)
    if running:
        yield from _accounted(changes, running)
        for name, now in running.items():
            if name in islands:
                yield from _stays(facts, changes, islands[name], now)


def _planned(facts: Facts, changes: Changes, islands: dict[str, Island]) -> Iterator[str]:
    said = Counter((*changes.kept, *changes.moved, *changes.started))
    for name, times in said.items():
        if name not in islands:
            yield f"changes: {name!r} is kept, moved or started, but is no island of the plan"
        elif times > 1:
            yield f"changes: {name!r} stands {times} times among kept, moved and started"
    for name in islands:
        if name not in said:
            yield f"changes: island {name!r} is neither kept, moved nor started"
    for name in sorted({*changes.stopped} & {*changes.kept, *changes.moved}):
        yield f"changes.stopped: {name!r} is also kept or moved"
    for name in sorted(({*changes.stopped} & {*islands}) - {*said}):
        yield f"changes.stopped: {name!r} is an island of the plan"
    found = sum(_gpus(facts, islands.get(name)) for name in (*changes.started, *changes.moved))
    if found != changes.moved_gpus:
        yield f"changes.movedGpus: {changes.moved_gpus} stated, islands that start or move: {found}"


def _gpus(facts: Facts, island: Island | None) -> int:
    group = facts.groups.get(island.group) if island else None
    return group.gpus if group else 0


def _accounted(changes: Changes, running: dict[str, Running]) -> Iterator[str]:
    said = Counter((*changes.kept, *changes.moved, *changes.stopped))
    for name in running:
        if said[name] != 1:
            yield (
                f"changes: {name!r} runs and stands {said[name]} times among kept, moved and "
                "stopped; each island stands there once"
            )
    for name in sorted({*said} - {*running}):
        yield f"changes: {name!r} is kept, moved or stopped, but does not run"


def _stays(facts: Facts, changes: Changes, island: Island, now: Running) -> Iterator[str]:
    """An island of the plan that has the name of one that runs."""
    group = facts.groups.get(island.group)
    if group is None:
        return  # ``structure`` says so
    place, same = f"changes[{island.name}]", _kind(group) == _kind_now(now)
    where = not now.nodes or sorted(island.nodes) == sorted(now.nodes)
    if island.name in changes.kept:
        if not same:
            yield f"{place}: kept, but runs as {_words(now)} and is planned as {_planned_as(group)}"
        if not where:
            here, there = ", ".join(now.nodes), ", ".join(island.nodes)
            yield f"{place}: kept, but runs on {here} and is planned on {there}"
    elif island.name in changes.moved:
        if not same:
            yield f"{place}: moved, but runs as {_words(now)}, planned as {_planned_as(group)}"
        if where and now.nodes:
            yield f"{place}: moved, but stays on {', '.join(now.nodes)}"
    elif same and where:
        yield f"{place}: stopped and started as it is; it is kept"


def _kind(group: Group) -> tuple[object, ...]:
    parts = tuple((part.pool, part.gpus) for part in group.sections)
    return group.model, group.phase, group.parallelism, parts


def _kind_now(now: Running) -> tuple[object, ...]:
    return now.model, now.phase, now.parallelism, now.parts


def _words(now: Running) -> str:
    parts = " + ".join(f"{gpus} of {pool}" for pool, gpus in now.parts)
    return f"{now.phase} of {now.model} on {parts} as {now.parallelism}"


def _planned_as(group: Group) -> str:
    parts = " + ".join(f"{part.gpus} of {part.pool}" for part in group.sections)
    return f"{group.phase} of {group.model} on {parts} as {group.parallelism}"
