"""Every request of the message schema gets a reply, whatever its figures."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from archipelago.planner.service.plan import LEAST_FIGURE, MOST_FIGURE, decimal
from tests.support.operator.live import answer, like_planned, request

NAME = "01-llama-on-two-pools"
EXTREME = (1e308, -1e308, 2.0**53, 2.0**63, 1e15, 5e-324, -0.0, -1.0, "Infinity", "NaN", 1e-9)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all numbers in a document."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def spoilt(seed: int) -> dict[str, Any]:
    """A window like the planned one with one to four of its numbers replaced."""
    rng = random.Random(seed)  # noqa: S311  # a test
    document = json.loads(json.dumps(like_planned(NAME, 10.0)))
    for path in rng.sample(list(places(document)), rng.choice((1, 1, 2, 4))):
        *above, last = path
        holder: Any = document
        for key in above:
            holder = holder[key]
        holder[last] = rng.choice(EXTREME)
    found: dict[str, Any] = document
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_window_with_extreme_numbers_gets_a_reply(seed: int) -> None:
    """It is no message, or decided about; no figure is longer than the status can hold."""
    reply = answer(request(NAME, window=spoilt(seed), seed=seed, solve=seed % 5 == 0))
    if reply["kind"] == "failed":
        assert reply["reason"] == "InvalidSpec"
        assert reply["message"].startswith("no message of a planner process: ")
        return
    figures = [reply[name] for name in ("headroom", "headroomLow", "regret", "degraded")]
    assert all(figure is None or len(figure) <= 32 for figure in figures)


def test_a_window_beyond_what_the_islands_can_do_decides_nothing() -> None:
    window = like_planned(NAME, 10.0)
    for model in window["models"].values():
        model["metrics"]["window"]["flow"]["completed"] = 2.0**53
    reply = answer(request(NAME, window=window))
    assert (reply["level"], reply["trigger"], reply["steps"]) == ("Keep", "None", [])
    assert reply["reasons"] == ["Implausible"]


def test_a_defect_of_the_planner_is_a_reply() -> None:
    """Spec and table are any JSON to the message schema; here lists in place of objects."""
    texts = ({"content": text} for text in ("[]", "[" * 10_000, "{}", "NaN"))
    broken: list[dict[str, Any]] = [*texts, {"resource": {"spec": []}}]
    for part in broken:
        assert answer(request(NAME) | part)["kind"] == "failed"


@pytest.mark.parametrize("value", [0.0, 1e-300, -1e-300, LEAST_FIGURE, MOST_FIGURE, 1e300, -1e300])
def test_a_figure_fits_into_the_status(value: float) -> None:
    assert len(decimal(value)) <= 32
    assert abs(float(decimal(value))) <= MOST_FIGURE


def test_figures_keep_six_digits() -> None:
    assert [decimal(v) for v in (12.5, 0.000734, 1234567.0)] == ["12.5", "0.000734", "1234570"]
