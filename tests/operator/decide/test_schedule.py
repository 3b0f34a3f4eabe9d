"""The schedule of a plan's traffic: what the plan is made for, when, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest

from archipelago.operator.apply.observation import ObservationBuilder
from archipelago.operator.decide.actions import Requeue
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.schedule import LOOK, change_events, lead, on_schedule
from archipelago.operator.decide.state import Now, PlanState
from archipelago.operator.inventory.cluster_inventory import ClusterInventory
from archipelago.operator.planning.messages import Job
from archipelago.operator.resources.live import LiveStatus
from archipelago.operator.resources.names import Manifest
from archipelago.operator.resources.objects import Observation, PlanObject
from archipelago.operator.resources.status import Reason
from archipelago.operator.traffic.watcher import TrafficWatcher
from tests.support.operator.bench import Bench
from tests.support.operator.fields import BASES
from tests.support.operator.situations import observation, plan

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
WINDOW: dict[str, Any] = {"start": "0 8 * * 1-5", "durationSeconds": 36_000, "factor": "3"}
RATED: dict[str, Any] = BASES["histogram"]


def spec(*windows: dict[str, Any], **more: object) -> dict[str, Any]:
    """A spec with 20 req/s and this schedule, planned for a quarter of an hour ahead."""
    return {
        **RATED,
        "traffic": {"schedule": list(windows or (WINDOW,)), "leadSeconds": 900},
        **more,
    }


def at(hour: float, day: int = 0) -> datetime:
    return MONDAY + timedelta(days=day, hours=hour)


def now(wall: datetime) -> Now:
    return Now(wall, (wall - MONDAY).total_seconds())


def rate(splan: PlanObject) -> str:
    models = splan.to_resource()["spec"]["models"]
    return str(models[0]["requestsPerSecond"])


def test_the_inputs_are_those_of_a_person_who_wrote_the_rates_that_hold() -> None:
    splan = plan(spec=spec())
    outside, inside = on_schedule(splan, at(7)), on_schedule(splan, at(7.75))
    written = json.loads(json.dumps(RATED))
    written["models"][0]["requestsPerSecond"] = "60"

    assert outside.inputs_hash == plan(spec=RATED).inputs_hash
    assert inside.inputs_hash == plan(spec=written).inputs_hash
    assert inside.to_resource() == plan(spec=written).to_resource()
    assert inside.as_stated()["spec"] == spec()
    assert (rate(outside), rate(inside)) == ("20", "60")
    assert splan.is_live


def test_other_nodes_count_beside_other_rates() -> None:
    """What selectors are resolved from has the rates that hold, and no schedule."""

    def resolved(hour: float, names: str) -> PlanObject:
        splan = on_schedule(plan(spec=spec()), at(hour))
        return splan.with_nodes({**splan.spec, "pools": []}, names)

    found = [resolved(hour, names) for hour in (7, 9) for names in ("a", "b")]
    assert len({splan.inputs_hash for splan in found}) == 4
    assert [rate(splan) for splan in found] == ["20", "20", "60", "60"]
    assert "traffic" not in found[-1].to_resource()["spec"]


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 900),
        ({"traffic": {"schedule": [WINDOW]}}, 5 + 10 + 900),
        (
            {
                "traffic": {"schedule": [WINDOW]},
                "islands": {"readySeconds": 120},
                "replanning": {"drainSeconds": 30},
                "planner": {},
            },
            10 + 30 + 120,
        ),
        ({"traffic": {"schedule": [WINDOW]}, "islands": {"readySeconds": 86_400}}, 86_400),
    ],
)
def test_a_plan_is_made_ahead_by_what_it_takes_until_its_pods_are_ready(
    more: dict[str, Any], seconds: int
) -> None:
    assert lead(plan(spec=spec(**more))) == timedelta(seconds=seconds)


def test_a_suspended_plan_follows_no_schedule() -> None:
    assert on_schedule(plan(spec=spec(suspend=True)), at(9)).scheduled is None


@pytest.mark.parametrize("wrong", [{"factor": 3}, {"start": "99 8 * * *"}, {"durationSeconds": 1}])
def test_a_schedule_that_does_not_fit_is_left_to_the_planner_to_refuse(
    wrong: dict[str, Any],
) -> None:
    """The pattern of the definition lets minute 99 through; corrected, it is another input."""
    splan = on_schedule(plan(spec=spec({**WINDOW, **wrong})), at(9))

    assert splan.scheduled is None
    assert splan.to_resource()["spec"]["traffic"]["schedule"] == [{**WINDOW, **wrong}]
    assert splan.spec["traffic"]  # and so it is where nodes are put in
    assert splan.inputs_hash != on_schedule(plan(spec=spec()), at(9)).inputs_hash


def test_the_operator_wakes_at_the_next_change_and_looks_at_the_clock_every_hour() -> None:
    def waits(wall: datetime) -> list[float]:
        splan = replace(on_schedule(plan(spec=spec()), wall), live=LiveStatus())
        actions, _ = decide(observation(splan), PlanState(), now(wall))
        return [action.seconds for action in actions if isinstance(action, Requeue)]

    assert waits(at(7.5)) == [900]
    assert waits(at(7.75)) == [LOOK]
    assert waits(at(18) - timedelta(seconds=1)) == [1]


def test_a_change_of_the_factor_is_said_once() -> None:
    three = {"factor": "3", "until": "2026-11-23T18:00:00Z"}
    (event,) = change_events(three, {})

    assert event.reason is Reason.SCHEDULED
    assert event.message == (
        "the plan is made for 3 times the stated rates, until 2026-11-23T18:00:00Z at least "
        "(spec.traffic.schedule)"
    )
    assert change_events(three, {**three, "until": "2026-11-24T18:00:00Z"}) == ()
    assert change_events({**three, "factor": "1"}, {}) == ()
    assert len(change_events({**three, "factor": "1"}, three)) == 1
    assert change_events({}, three) == ()  # the schedule is gone, which its owner knows


def test_the_builder_looks_again_when_the_factor_may_change() -> None:
    """It keeps what it found: the schedule is not searched at each event of the cluster."""

    class Nothing:
        def update_plan(self, _selector: object) -> None: ...
        def quota_finding(self, _key: object) -> None: ...
        def island_pods(self, _key: object) -> dict[str, object]:
            return {}

        def traffic(self, _key: object) -> None: ...
        def finding(self, _plan: object) -> None: ...

    builder = ObservationBuilder(
        cast("ClusterInventory", Nothing()), cast("TrafficWatcher", Nothing())
    )

    def factor(wall: datetime, **more: Any) -> Decimal | None:  # noqa: ANN401
        built = builder.build(observation(plan(spec=spec(**more))), PlanState(), wall).plan
        assert built is not None
        assert built.live is not None
        return built.scheduled.factor if built.scheduled else None

    assert [factor(at(hour)) for hour in (7, 7.5, 7.75, 17.9, 18, 7)] == [1, 1, 3, 3, 1, 1]
    assert factor(at(9), traffic={"schedule": [{**WINDOW, "factor": "2"}]}) == 2
    assert factor(at(9), suspend=True) is None


class Scheduled:
    """Observations of plans that nothing but their schedule makes live."""

    def build(self, objects: Observation, _state: PlanState, wall: datetime) -> Observation:
        if objects.plan is None:
            return objects
        splan = on_schedule(objects.plan, wall)
        return replace(objects, plan=replace(splan, live=LiveStatus()))


class Day(Bench):
    """A plan from midnight on, whose operator sleeps until it wanted to be woken."""

    def __init__(self) -> None:
        super().__init__(cast("ObservationBuilder", Scheduled()))
        self.plans, self.said = 0, list[str]()
        self.server.create_event = self.create_event  # type: ignore[method-assign]

    async def create_event(self, manifest: Manifest) -> None:
        if manifest["reason"] == Reason.SCHEDULED:
            self.said.append(f"{manifest['reason']}: {manifest['note']}")

    def now(self) -> Now:
        return now(MONDAY + timedelta(seconds=self.seconds))

    def warm(self) -> None:
        """The plan is live."""

    def ask(self, job: Job) -> None:
        super().ask(job)
        self.plans += 1

    def headroom(self) -> float:
        """Of the plan that is reported."""
        assert self.server.plan is not None
        return float(self.server.plan["status"]["summary"]["headroom"])

    def row(self) -> tuple[str, str, int]:
        """What is said: factor, dollars per hour; and how many plans were made."""
        assert self.server.plan is not None
        status = self.server.plan["status"]
        return status["traffic"]["factor"], status["summary"]["costPerHour"], self.plans

    async def sleep(self) -> None:
        """Go on at the time that was asked for."""
        self.seconds += max(0.0, min(self.waits) - 1.0)  # the next second is that of settle
        self.waits.clear()
        await self.settle()


@pytest.mark.parametrize(
    ("factor", "dearer", "headroom"),
    [("8", "25.00", 1.2), ("12", "28.00", 0.91)],
    ids=["there are GPUs enough", "the most headroom that the GPUs give"],
)
async def test_a_day_with_a_window(factor: str, dearer: str, headroom: float) -> None:
    """The real planner in the operator's core: a plan for each change, and none between."""
    day, rows = Day(), list[tuple[str, str, str, int]]()
    await day.change(spec({**WINDOW, "factor": factor}))
    while day.seconds < 24 * 3600:
        if not rows or rows[-1][1:3] != day.row()[:2]:
            rows.append((f"{day.now().wall:%H:%M}", *day.row()))
            assert day.headroom() >= (headroom if rows[-1][1] == factor else 1.2)
        await day.sleep()

    assert rows == [
        ("00:00", "1", "12.00", 1),
        ("07:45", factor, dearer, 2),
        ("18:00", "1", "12.00", 3),
    ]
    assert day.plans == 3
    assert day.said == [
        f"Scheduled: the plan is made for {number} times the stated rates, until {until}Z at least "
        "(spec.traffic.schedule)"
        for number, until in ((factor, "2026-11-23T18:00:00"), ("1", "2026-11-24T07:45:00"))
    ]
