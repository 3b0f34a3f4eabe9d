"""Least cost stays least cost: what live windows make of a plan under ``MinimiseCost``.

Eight H100 at $3 and L40S at $1 that can be rented, 60 req/s planned. Tables are followed at once.
"""

import json
from typing import Any

import pytest

from archipelago.planner.service.inputs import limits_of, read_resource
from benchmarks.day import Operator, resource
from tests.support.operator.live import like_planned, plan_of

PLANNED, GROWN, FALLEN = 60.0, 110.0, 12.0
BURST = PLANNED + 8 * 400 / 60
"""Of a minute with eight seconds of 400 req/s more."""
LEAST = {PLANNED: 12.0, GROWN: 20.0, FALLEN: 5.0}
"""What `archipelago plan` asks for that rate [$/h]."""
UPPER = {PLANNED: 13.0, GROWN: 22.0, FALLEN: 5.0}
"""The same for 1.1 times that rate: about the upper end of the demand of a minute [$/h]."""


class Story:
    """A plan and its minutes, one window each."""

    def __init__(self, headroom: str = "1", rate: float = PLANNED, **replanning: object) -> None:
        self.body = resource(60.0, **replanning)
        self.body["spec"]["minHeadroom"] = headroom
        self.body["spec"]["models"][0]["requestsPerSecond"] = f"{rate:g}"
        steps = plan_of(self.body)["steps"]
        self.operator, self.now = Operator(self.body, steps[-1]["content"]), 0.0

    def minutes(self, rate: float, count: int) -> list[dict[str, Any]]:
        """Replies that changed the table in so many windows of that rate."""
        before = len(self.operator.log)
        for _ in range(count):
            self.now += 60.0
            self.operator.ask(self.now, like_planned("07-least-cost", rate))
        return [reply for _, reply in self.operator.log[before:]]

    @property
    def cost(self) -> float:
        """Of the GPUs of all listed islands [$/h]."""
        price = {p["name"]: float(p["pricePerGPUHour"]) for p in self.body["spec"]["pools"]}
        islands = json.loads(self.operator.content)["islands"]
        return float(sum(island["gpus"] * price[island["pool"]] for island in islands))


@pytest.mark.parametrize("headroom", ["1", "1.2"])
def test_the_planned_rate_keeps_the_plan(headroom: str) -> None:
    """An hour of it, in windows that differ by the seed of their draws."""
    story = Story(headroom)
    planned = story.cost
    assert story.minutes(PLANNED, 60) == []
    assert story.cost == planned


def test_a_live_plan_has_the_target_of_the_planned_one() -> None:
    """minHeadroom, 1 if absent; a target of utilisation is for plans of most headroom."""
    story = Story("1.2", targetUtilisation="0.5")
    assert limits_of(read_resource(story.body)[0]).required == 1.2
    del story.body["spec"]["minHeadroom"]
    assert limits_of(read_resource(story.body)[0]).required == 1
    story.body["spec"]["objective"] = "Maximise"
    assert limits_of(read_resource(story.body)[0]).required is None


def test_growth_whose_pods_were_never_ready_takes_the_next_best_plan() -> None:
    """The cheapest plan is not made again at once: one with more headroom is."""
    story = Story()
    content = story.operator.content
    (failed,) = story.minutes(GROWN, 6)
    cheapest = story.cost
    story.operator.content, story.operator.avoid = content, (failed["change"],)
    story.operator.state = {}
    (grown,) = story.minutes(GROWN, 6)
    assert grown["change"] != failed["change"]
    assert cheapest <= story.cost <= 1.5 * cheapest


def test_growth_and_a_fall_lead_to_what_a_plan_of_that_rate_costs() -> None:
    """At the upper demand, so a little above; never below minHeadroom. Each within 12 windows.

    The fall waits for the dwell time after the growth, so the grown rate lasts a while.
    """
    story = Story()
    assert story.cost == LEAST[PLANNED]
    for rate, before in ((GROWN, "Safety"), (FALLEN, "Gain"), (PLANNED, "Safety")):
        (reply,) = story.minutes(rate, 12)
        assert (reply["level"], reply["trigger"]) == ("Reshape", before)
        assert LEAST[rate] <= story.cost <= 1.15 * UPPER[rate]
        reshape = next(level for level in reply["levels"] if level["level"] == "Reshape")
        assert float(reshape["low"]) >= 1
        assert story.minutes(rate, 8) == []


def test_a_burst_of_seconds_buys_nothing() -> None:
    story = Story()
    assert story.minutes(PLANNED, 3) == []
    assert story.minutes(BURST, 1) == []
    assert story.minutes(PLANNED, 6) == []


def test_what_a_longer_burst_bought_goes_back() -> None:
    """Two minutes in a row lose requests beyond doubt, so a plan for them is bought."""
    story = Story()
    (grown,) = story.minutes(BURST, 2)
    assert grown["trigger"] == "Safety"
    (back,) = story.minutes(PLANNED, 20)
    assert (back["level"], back["trigger"]) == ("Reshape", "Gain")
    assert story.cost <= 1.15 * UPPER[PLANNED]


def test_growth_does_not_wait_for_the_cool_down_of_a_cheaper_plan() -> None:
    """Demand falls, the plan becomes cheaper, and two minutes later demand is back."""
    story = Story(coolDownSeconds=3600, dwellSeconds=3600, maxPerHour=1)
    (cheaper,) = story.minutes(FALLEN, 5)
    assert cheaper["trigger"] == "Gain"
    (dearer,) = story.minutes(PLANNED, 2)
    assert dearer["trigger"] == "Safety"


def test_a_cheaper_plan_must_pay_for_its_changes() -> None:
    """Within a second nothing pays, except to stop islands that nothing replaces."""
    story = Story(horizonSeconds=1)
    for reply in story.minutes(FALLEN, 8):
        assert "for $0.00 of GPUs out of service" in reply["message"]


def test_one_of_two_models_falls() -> None:
    """The other keeps its rate, so the table has no headroom to spare. Alone, they cost half."""
    story = Story()
    one, *_ = story.body["spec"]["models"]
    story.body["spec"]["models"] = [one, {**one, "name": "other"}]
    story.operator.content = plan_of(story.body)["steps"][-1]["content"]
    both = story.cost

    def minute(rate: float) -> None:
        story.now += 60.0
        counted = like_planned("07-least-cost", PLANNED)
        falling = like_planned("07-least-cost", rate)["models"]["llama-8b"]
        counted["models"]["other"] = falling
        story.operator.ask(story.now, counted)

    for _ in range(6):
        minute(PLANNED)
    assert story.cost == both
    for _ in range(10):
        minute(FALLEN)
    assert story.cost <= 0.8 * both


def test_the_planner_is_not_asked_again_for_less_while_demand_stays() -> None:
    """It found nothing cheaper; it is asked again when demand has fallen by the tolerance."""
    story = Story()
    story.minutes(FALLEN, 12)
    asked = story.operator.seed
    story.minutes(FALLEN, 12)
    assert story.operator.seed == asked + 12


def test_in_advise_a_cheaper_plan_is_proposed_with_what_it_saves() -> None:
    story = Story(mode="Advise")
    assert story.minutes(FALLEN, 6) == []
    reply = story.operator.last
    assert reply["proposal"]["trigger"] == "Gain"
    assert "saves $" in reply["proposal"]["message"]
    assert story.cost == LEAST[PLANNED]
