"""What a plan at work looks like: the document by hand, and the lines that people read."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from archipelago.operator.kubectl.watch import bar, document, islands, screen
from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.resources.status import LastDecisionStatus, Status
from tests.support.operator.situations import T0, plan, ready, stored

HASH = "0123456789abcdef" * 4
DECISION: dict[str, Any] = {
    "time": "2026-01-01T00:02:00Z",
    "trigger": "Safety",
    "level": "Flip",
    "headroom": "0.91",
    "headroomLow": "0.84",
    "regret": "0.1651",
    "message": "2 islands change phase",
    "levels": [
        {"level": "Keep", "theta": "0.91", "low": "0.84", "gain": "0"},
        {"level": "Reroute", "theta": "0.98", "low": "0.9", "gain": "0.0769"},
        {"level": "Flip", "theta": "1.09", "low": "1.01", "gain": "0.1978"},
        {"level": "Reshape", "theta": "1.31", "gain": "0.4396", "note": "more than maxMovedGpus"},
    ],
    "proposal": {
        "hash": HASH,
        "level": "Reshape",
        "trigger": "Gain",
        "gain": "0.2018",
        "message": "3 islands start, 2 stop",
    },
}
CONTENT: dict[str, Any] = {
    "islands": [
        {"name": "a", "pool": "h20", "phase": "decode", "gpus": 8},
        {"name": "b", "pool": "h100", "phase": "prefill", "gpus": 4},
        {"name": "c", "pool": "h100", "phase": "prefill", "gpus": 4},
        {"name": "d", "pool": "h100", "phase": "decode", "gpus": 2},
    ]
}


def served(decision: dict[str, Any] | None = None) -> PlanObject:
    waiting = plan()
    served = ready(waiting, stored(waiting))
    return replace(served, status=replace(served.status, last_decision=decision or {}))


def text(plan: PlanObject, content: dict[str, Any] | None = None, note: str = "") -> str:
    """What is printed where it is no terminal."""
    out = io.StringIO()
    shown = screen(document(plan, content), T0 + timedelta(minutes=5), note)
    Console(file=out, width=120, markup=False, emoji=False, highlight=False).print(shown)
    return out.getvalue()


def test_the_decision_is_one_that_the_definition_allows() -> None:
    """Otherwise these tests show what no cluster can hold."""
    status = LastDecisionStatus.model_validate(DECISION)
    assert status.model_dump(by_alias=True, exclude_none=True, mode="json") == DECISION


def test_the_status_keeps_the_decision_and_a_new_one_is_a_change() -> None:
    plan = served(DECISION)
    body = {"status": plan.status.to_manifest()}
    assert Status.from_body(body).last_decision == DECISION
    assert not plan.status.says_the_same(served().status)
    assert "lastDecision" not in served().status.to_manifest()


def test_islands_are_counted_by_pool_and_phase() -> None:
    assert islands(CONTENT) == [
        {"pool": "h100", "prefill": 2, "decode": 1, "mixed": 0, "gpus": 10},
        {"pool": "h20", "prefill": 0, "decode": 1, "mixed": 0, "gpus": 8},
    ]


@pytest.mark.parametrize(
    ("headroom", "filled"),
    [(0.0, 0), (0.5, 10), (0.91, 18), (1.0, 20), (1.5, 30), (2.0, 40), (7.5, 40)],
)
def test_the_bar_is_twenty_characters_for_a_headroom_of_one(headroom: float, filled: int) -> None:
    drawn = bar(headroom, None).plain
    cells = drawn[drawn.index("[") + 1 : drawn.index("]")]
    assert cells.count("#") == filled
    assert len(cells) == 41
    assert cells[20] == "|"


def test_all_of_a_decision_is_on_the_screen() -> None:
    lines = text(served(DECISION), CONTENT).splitlines()
    flat = " ".join(" ".join(lines).split())
    for words in (
        "team/chat: generation 1",
        "MetricsAvailable Unknown NotConfigured 5m spec.replanning.source is not set",
        "headroom [##################..|....................] 0.91 (at least 0.84)",
        "regret 16.5% below the best level",
        "decided 3m ago, Safety: Flip: 2 islands change phase",
        "* Flip 1.090 1.010 +19.8%",
        "Reshape 1.310 +44.0% more than maxMovedGpus",
        "proposed Reshape for Gain, +20.2%, 3 islands start, 2 stop",
        f"""-p '{{"spec":{{"replanning":{{"approve":"{HASH}"}}}}}}'""",
        "h100 2 1 0 10",
        "all 2 2 0 18",
    ):
        assert words in flat, words
    assert max(map(len, lines)) <= 120


def test_a_decision_with_required_fields_only_is_shown() -> None:
    """Of an idle plan no level has a figure."""
    bare = {name: DECISION[name] for name in ("time", "trigger", "level", "message")}
    levels = {
        "levels": [{"level": "Keep"}],
        "proposal": {"hash": HASH, "level": "Flip", "trigger": "Gain"},
    }
    LastDecisionStatus.model_validate({**bare, **levels})
    printed = text(served({**bare, **levels}))
    assert "decided   3m ago, Safety: Flip: 2 islands change phase" in printed
    assert "proposed  Flip for Gain\n" in re.sub(" +\n", "\n", printed)
    assert "headroom" not in printed


def test_a_plan_without_decision_or_table_is_shown() -> None:
    printed = text(served())
    assert "no decision yet, except to keep the table" in printed
    assert "headroom" not in printed
    assert "POOL" not in printed


def test_a_problem_with_the_reading_is_shown_first() -> None:
    assert text(served(), note="a note").splitlines()[1].strip() == "a note"


def test_text_of_the_cluster_cannot_move_the_cursor() -> None:
    attack = "\x1b[2J\u202e"
    evil = {**DECISION, "message": attack, "levels": [{**DECISION["levels"][0], "note": attack}]}
    printed = text(served(evil), {"islands": [{**CONTENT["islands"][0], "pool": attack}]})
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert printed.count("\\x1b[2J") == 3


def test_the_document_has_times_and_no_ages() -> None:
    """So that two readings of an unchanged plan are equal, whenever they were made."""
    shown = document(served(DECISION), CONTENT)
    assert shown == document(served(DECISION), CONTENT)
    assert shown["kind"] == "PlanWatch"
    assert shown["replanning"] == DECISION
    assert shown["conditions"][0]["since"] == datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    assert document(served(), None)["replanning"] is None


def test_the_page_shows_a_decision_as_it_is_printed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "kubectl-splan.md").read_text()
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    printed = [line.rstrip() for line in text(served(DECISION), CONTENT).splitlines()]
    start = next(at for at, line in enumerate(printed) if line.startswith("headroom"))
    lines = shown.splitlines()
    assert printed[start : start + len(lines)] == lines
