"""The closed loop in simulated time: traffic, fleet, and who changes the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.closedloop.fleet import Fleet, World
from benchmarks.closedloop.tally import Tally

if TYPE_CHECKING:
    from benchmarks.closedloop.pilot import Pilot
    from benchmarks.closedloop.traffic import Traffic


BEAT: Final = 1.0
"""How often the loop looks whether anything is due [s]."""


@dataclass(frozen=True)
class Event:
    """Something that happens to the world at ``at`` [s]: nodes vanish, or a new spec is applied."""

    at: float
    lose: tuple[str, ...] = ()
    edit: Callable[[Pilot, Fleet], None] | None = None


@dataclass(frozen=True)
class Course:
    """What is played: traffic, events, and how often is scraped and decided [s].

    ``warm``: until then nobody looks. An empty fleet finishes short answers first, and says so.
    """

    traffic: Callable[[], Traffic]
    events: tuple[Event, ...] = ()
    window: float = 60.0
    scrapes: int = 4
    end: float | None = None
    warm: float = 120.0


@dataclass
class Outcome:
    """What came of it."""

    tally: Tally
    fleet: Fleet
    tables: int
    log: list[dict[str, Any]] = field(default_factory=list)


def play(world: World, content: Mapping[str, Any], course: Course, pilot: Pilot) -> Outcome:
    """From the first request to the last moment of the course."""
    traffic, fleet = course.traffic(), Fleet(world, content)
    end = traffic.end if course.end is None else course.end
    due = _schedule(course, traffic, end, pilot)
    for at, _, act in due:
        _until(fleet, at, traffic, pilot)
        act(pilot, fleet, traffic)
    _until(fleet, end, traffic, pilot)
    return Outcome(fleet.tally, fleet, pilot.rollout.published)


def _until(fleet: Fleet, at: float, traffic: Traffic, pilot: Pilot) -> None:
    """Beat by beat while tables are to be published, else at once."""
    while fleet.now < at - 1e-9:
        pilot.rollout.go_on(fleet)
        beat = min(at, fleet.now + BEAT) if pilot.rollout.remaining else at
        fleet.advance(beat, traffic)
    pilot.rollout.go_on(fleet)


def _schedule(
    course: Course, traffic: Traffic, end: float, pilot: Pilot
) -> list[tuple[float, int, Callable[[Pilot, Fleet, Traffic], None]]]:
    """All that is due, in order; at equal times shifts and losses come before scrapes."""
    due: list[tuple[float, int, Callable[[Pilot, Fleet, Traffic], None]]] = []
    starts = sorted({spell.start for spell in traffic.spells if spell.start > 0})
    due += [(at, 0, lambda p, f, t: p.shifted(f, t)) for at in starts]
    for event in course.events:
        due.append((event.at, 1, lambda p, f, _t, e=event: _happen(e, p, f)))  # type: ignore[misc]
        if event.lose:
            due.append((event.at + pilot.sees, 1, lambda p, f, t: p.nodes(f, t)))
    pause = course.window / course.scrapes
    first = int(course.warm / course.window) * course.scrapes
    for number in range(first, int(end / pause) + 1):
        due.append((number * pause, 2, lambda p, f, _t: p.scrape(f)))
        if number > first and number % course.scrapes == 0:
            due.append((number * pause, 3, lambda p, f, _t: p.window(f)))
    return sorted((event for event in due if event[0] <= end), key=lambda event: event[:2])


def _happen(event: Event, pilot: Pilot, fleet: Fleet) -> None:
    if event.lose:
        fleet.lose(event.lose)
    if event.edit is not None:
        event.edit(pilot, fleet)
