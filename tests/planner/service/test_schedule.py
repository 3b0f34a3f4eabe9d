"""Rates that follow a schedule: what is expected is served, and what is observed beyond it too.

The plan of least cost of `test_least_cost`, whose stated rates are those of the schedule now.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.planner.demand.problem import with_expected
from archipelago.planner.service.inputs import read_resource
from archipelago.planner.service.state import upper_demand
from benchmarks.day import resource
from tests.planner.service.test_least_cost import FALLEN, GROWN, LEAST, PLANNED, UPPER, Story
from tests.support.operator.live import HASH, answer


def expecting(story: Story, rate: float) -> Story:
    """The same plan in a window of its schedule, or shortly before one."""
    story.body["spec"]["models"][0]["requestsPerSecond"] = f"{rate:g}"
    story.operator.expected = True
    return story


def test_a_saving_waits_until_the_window_is_over() -> None:
    """At 12 of 60 req/s that are scheduled; without a window the plan becomes cheaper."""
    story = expecting(Story(), PLANNED)
    assert story.minutes(FALLEN, 40) == []
    assert story.cost == LEAST[PLANNED]

    story.operator.expected = False
    (cheaper,) = story.minutes(FALLEN, 12)
    assert (cheaper["level"], cheaper["trigger"]) == ("Reshape", "Gain")
    assert story.cost <= 1.15 * UPPER[FALLEN]


def test_a_plan_of_less_grows_before_the_traffic_does() -> None:
    """For example if the plan of the window was held back by a budget that is over."""
    story = expecting(Story(rate=FALLEN), PLANNED)
    assert story.cost == LEAST[FALLEN]
    (grown,) = story.minutes(FALLEN, 12)

    assert grown["trigger"] == "Safety"
    assert "headroom 0." in grown["message"]
    assert "on the observed demand or the scheduled, if that is more" in grown["message"]
    assert story.cost >= LEAST[PLANNED]
    assert float(grown["demand"]["llama-8b"]["requestsPerSecond"]) == pytest.approx(
        FALLEN, rel=0.05
    )


def test_more_than_what_is_scheduled_counts() -> None:
    story = expecting(Story(), PLANNED)
    (grown,) = story.minutes(GROWN, 12)

    assert grown["trigger"] == "Safety"
    assert LEAST[GROWN] <= story.cost <= 1.15 * UPPER[GROWN]


def planned(state: dict[str, Any], **parts: object) -> tuple[float, str]:
    """Cost and message of the plan that is made when a window ends and 12 req/s are stated."""
    body = resource(60.0)
    body["spec"]["models"][0]["requestsPerSecond"] = f"{FALLEN:g}"
    reply = answer({"kind": "plan", "resource": body, "state": state, **parts})
    return float(reply["summary"]["costPerHour"]), reply["message"]


def test_the_end_of_a_window_takes_nothing_from_traffic_that_stays() -> None:
    story = Story()
    story.minutes(PLANNED, 3)
    state = dict(story.operator.state)
    assert state["inputs"] == HASH
    upper = upper_demand(state)["llama-8b"]
    assert PLANNED < upper < 1.1 * PLANNED

    cost, message = planned(state, follows=True, age=60.0)
    assert LEAST[PLANNED] <= cost <= 1.2 * UPPER[PLANNED]
    assert "observed and planned for: " in message
    for parts in ({"follows": True, "age": 3600.0}, {"follows": False, "age": 60.0}):
        cost, message = planned(state, **parts)
        assert cost <= 1.2 * UPPER[FALLEN]  # times were learnt too
        assert "observed" not in message


def test_demand_is_remembered_over_other_inputs_and_forgotten_with_its_windows() -> None:
    story = Story()
    story.minutes(GROWN, 1)
    story.operator.state = {**story.operator.state, "inputs": "of other rates"}
    story.minutes(FALLEN, 1)
    assert upper_demand(story.operator.state)["llama-8b"] > GROWN
    story.minutes(FALLEN, 4)
    assert upper_demand(story.operator.state)["llama-8b"] < 1.2 * FALLEN
    assert upper_demand({}) == {}


def impossible(**parts: object) -> dict[str, Any]:
    """The reply to a plan for more than all GPUs sustain."""
    body = resource(60.0)
    body["spec"]["models"][0]["requestsPerSecond"] = "9999"
    return answer({"kind": "plan", "resource": body, **parts})


def test_a_rise_beyond_all_gpus_gets_what_they_give() -> None:
    """The night's plan would give less; without a schedule it is the owner's error."""
    refused, reply = impossible(), impossible(expected=True, follows=True)

    assert (refused["kind"], refused["reason"]) == ("failed", "Infeasible")
    assert reply["kind"] == "planned"
    assert 0 < float(reply["summary"]["headroom"]) < 1
    assert "the most headroom, as none serves what is expected: " in reply["message"]


@given(st.floats(0, 500), st.floats(0.1, 500), st.integers(0, 2**32 - 1))
def test_each_draw_has_at_least_what_is_expected(rate: float, least: float, seed: int) -> None:
    body = resource(60.0)
    body["spec"]["models"][0]["requestsPerSecond"] = f"{least:.6f}"
    _, expected = read_resource(body)
    (model,) = expected.models
    shares = model.lengths.moments(model.ranges).probability
    random = np.random.default_rng(seed)
    draws = rate * shares * random.gamma(4.0, 0.25, (50, len(shares)))
    problem, raised = with_expected(expected, expected, draws)

    assert np.all(raised >= draws - 1e-9)
    assert np.all(raised.sum(axis=1) >= model.rate * shares.sum() * (1 - 1e-9))
    enough = draws.sum(axis=1) >= model.rate * shares.sum()
    assert np.array_equal(raised[enough], draws[enough])
    assert problem.models[0].rate == model.rate


def test_a_window_of_nothing_has_the_planned_lengths() -> None:
    _, expected = read_resource(resource(60.0))
    (model,) = expected.models
    nothing = np.zeros((3, len(model.ranges)))
    _, raised = with_expected(expected, expected, nothing)

    assert model.rate is not None
    assert raised.sum(axis=1) == pytest.approx(model.rate, rel=0.01)
