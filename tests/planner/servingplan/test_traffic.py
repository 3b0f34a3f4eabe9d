"""The schedule of a plan's traffic: the factor at any time, and until when it holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from archipelago.planner.schedule import HORIZON, Window, peak, scheduled
from archipelago.planner.servingplan.workload import multiplied, windows_of

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NOW = timedelta()


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


WORK = Window("0 8 * * 1-5", hours(10), Decimal(3))
"""Three times the stated rates on workdays from eight to six."""


@pytest.mark.parametrize(
    ("at", "factor"),
    [
        (hours(8) - timedelta(microseconds=1), 1),
        (hours(8), 3),
        (hours(18) - timedelta(microseconds=1), 3),
        (hours(18), 1),
        (timedelta(days=5, hours=9), 1),
    ],
)
def test_a_window_holds_from_its_first_moment_to_before_its_last(
    at: timedelta, factor: int
) -> None:
    assert scheduled([WORK], NOW, MONDAY + at).factor == factor


@pytest.mark.parametrize(("at", "until"), [(7.0, 7.75), (7.75, 18.0), (12.0, 18.0), (18.0, 31.75)])
def test_a_rise_is_planned_for_by_the_lead_time_and_a_fall_when_it_comes(
    at: float, until: float
) -> None:
    found = scheduled([WORK], hours(0.25), MONDAY + hours(at))

    assert found.until == MONDAY + hours(until)
    assert found.expected == (found.factor == 3) == (at in (7.75, 12.0))


def test_what_ends_a_window_below_one_is_a_rise_too() -> None:
    night = Window("0 22 * * *", hours(8), Decimal("0.2"))
    found = [scheduled([night], hours(1), MONDAY + hours(at)) for at in (21.5, 22, 28.5, 29)]

    assert [each.factor for each in found] == [1, Decimal("0.2"), Decimal("0.2"), 1]
    assert [each.expected for each in found] == [True, True, True, True]
    assert scheduled([night], hours(1), MONDAY + hours(30)).expected is False


def test_of_windows_that_overlap_the_largest_factor_counts() -> None:
    lunch, less = (
        Window("0 12 * * *", hours(1), Decimal(5)),
        Window("0 0 * * *", hours(24), Decimal("0.5")),
    )
    at = [scheduled([less, WORK, lunch], NOW, MONDAY + hours(h)).factor for h in (7, 9, 12.5, 13)]

    assert at == [Decimal("0.5"), 3, 5, 3]


def test_windows_of_one_entry_that_overlap_are_one() -> None:
    """Begun each day for two days: open without end, as far as anybody looks."""
    always = Window("0 0 * * *", hours(48), Decimal(2))
    found = scheduled([always], hours(1), MONDAY)

    assert (found.factor, found.until) == (Decimal(2), MONDAY + HORIZON)


def test_a_window_of_every_minute_is_followed_for_a_day() -> None:
    """The most that the schema allows, by somebody who means harm."""
    hostile = [Window("* * * * *", MINUTE, Decimal(1 + n)) for n in range(15)]
    found = scheduled([*hostile, Window("*/2 * * * *", MINUTE, Decimal(1))], hours(24), MONDAY)

    assert found.factor == 15
    assert found.until > MONDAY


def test_without_windows_the_stated_rates_hold() -> None:
    found = scheduled([], hours(1), MONDAY)

    assert (found.factor, found.expected) == (Decimal(1), False)
    assert peak([]) == 1


def test_the_peak_is_at_least_the_stated_rates() -> None:
    assert peak([Window("0 0 * * *", hours(1), Decimal("0.1"))]) == 1
    assert peak([WORK, Window("0 0 * * *", hours(1), Decimal("0.1"))]) == 3


@pytest.mark.parametrize(
    ("rate", "factor", "product"),
    [
        ("4.00", "1", "4.00"),
        ("4.00", "1.000", "4.00"),
        ("4.00", "3", "12"),
        ("0.000001", "0.001", "0.000001"),
        ("999999.999999", "1000", "999999999.999"),
        ("20", "50", "1000"),
    ],
)
def test_a_rate_times_a_factor_is_what_a_person_could_have_written(
    rate: str, factor: str, product: str
) -> None:
    assert multiplied(rate, Decimal(factor)) == product


DAYS = st.sets(st.integers(1, 7), min_size=1)
ENTRIES = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 23)),
        st.integers(0, 59),
        DAYS,
        st.integers(1, 3000),
        st.sampled_from(["0.25", "1", "2", "3.5"]),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(ENTRIES, st.integers(0, 180), st.integers(0, 7 * 1440), st.integers(0, 59))
@example([(8, 0, {1, 2, 3, 4, 5}, 600, "3.5")], 15, 8 * 60 - 15, 0)
def test_the_factor_is_that_of_a_look_at_every_minute(
    entries: list[tuple[int | None, int, set[int], int, str]], lead: int, at: int, second: int
) -> None:
    """Nothing begins or ends within a minute, so a look at each is enough."""
    windows = [
        Window(
            f"{minute} {'*' if hour is None else hour} * * {','.join(map(str, sorted(days)))}",
            timedelta(minutes=length),
            Decimal(factor),
        )
        for hour, minute, days, length, factor in entries
    ]
    first = MONDAY - timedelta(days=3)
    minutes = [first + n * MINUTE for n in range(3 * 1440 + 10 * 1440)]
    most: list[Decimal | None] = [None] * len(minutes)
    for hour, minute, days, length, factor in entries:
        for index, moment in enumerate(minutes):
            begins = moment.minute == minute and hour in (None, moment.hour)
            if begins and moment.isoweekday() in days:
                for later in range(index, min(index + length, len(minutes))):
                    most[later] = max(most[later] or Decimal(0), Decimal(factor))

    def looked(moment: datetime) -> tuple[Decimal, bool]:
        index = (moment - first) // MINUTE
        ahead = most[index : (moment + lead * MINUTE - first) // MINUTE + 1]
        factors = [Decimal(1) if factor is None else factor for factor in ahead]
        return max(factors), any(factor is not None for factor in ahead)

    time = MONDAY + at * MINUTE + timedelta(seconds=second)
    found = scheduled(windows, timedelta(minutes=lead), time)

    assert (found.factor, found.expected) == looked(time)
    last = min(found.until, minutes[-1] - lead * MINUTE)
    moment = time
    while moment < last:
        assert looked(moment) == looked(time)
        moment += 7 * MINUTE
    if found.until < last + MINUTE and found.until < time + HORIZON:
        assert looked(found.until) != looked(time)
        assert looked(found.until - timedelta(microseconds=1)) == looked(time)


def test_windows_are_read_beside_fields_of_a_newer_version() -> None:
    stated = {"start": "0 8 * * 1-5", "durationSeconds": 36000.0, "factor": "3.0", "zone": "UTC"}
    assert windows_of({"schedule": [stated], "more": 1}) == (WORK,)
    assert windows_of({}) == ()
