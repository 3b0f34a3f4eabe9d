"""What a plan has learnt: used by a process that knows nothing, written rarely, never foreign."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.decide.actions import EmitEvent, WriteKnowledge
from archipelago.operator.decide.decision import decide
from archipelago.operator.decide.knowledge import EVERY, SOON, keep, recalled
from archipelago.operator.decide.state import PendingReplan, PlanState
from archipelago.operator.resources.knowledge import (
    KNOWLEDGE_BYTES,
    KNOWLEDGE_KEY,
    VERSION,
    Kept,
    knowledge_text,
    read_kept,
)
from archipelago.operator.resources.live import ReplanKind
from archipelago.operator.resources.manifests import knowledge_manifest
from archipelago.operator.resources.names import timestamp
from archipelago.operator.resources.objects import KnowledgeObject, Observation, read_config_map
from archipelago.operator.resources.status import Reason
from archipelago.planner.documents import canonical, canonical_text, read_json
from archipelago.planner.errors import PlanFileError
from archipelago.planner.service.knowledge import knowledge_document, read_knowledge
from tests.operator.decide.test_rollout import decided, settled
from tests.support.operator.situations import NOW, as_stored, later

INTERVAL = {"low": 0.9, "high": 1.1, "level": 0.9, "groups": 2}
KEY = {"accelerator": "H100", "model": "Llama-3.1-8B", "phase": "decode"}


def learnt(
    factor: float = 1.25, weight: float = 8.0, mean: float = 0.25, rate: float = 3.0, base: str = ""
) -> dict[str, Any]:
    """The state that a planner process hands on, as far as it is kept."""
    used = [{**KEY, "factor": factor, "interval": INTERVAL, "rows": 8, "groups": 2}]
    row = {"key": [*KEY.values()], "age": 0.0, "sums": [weight, weight * mean, 1.0]}
    rows = [{**row, "windows": 8, "islands": ["a", "b"]}]
    calibration = {"learnt": rows, "used": used, "last": "0a", "base": base}
    return {"version": 2, "inputs": "0b", "rates": {"m": [rate]}, "calibration": calibration}


def knowing(observed: Observation, **parts: Any) -> PlanState:  # noqa: ANN401
    """Just after a window."""
    assert observed.plan is not None
    request = PendingReplan(inputs_hash=observed.plan.inputs_hash)
    state = PlanState().with_request(ReplanKind.WINDOW, request)
    answer = decided("window-1", trigger="None", level="Keep", state=learnt(**parts))
    return state.with_replan(answer, observed.plan.inputs_hash, NOW)


def written(observed: Observation, state: PlanState, seconds: float = 0.0) -> str:
    """The text that is to be written now; empty: none."""
    actions = [a for a in keep(observed, state, later(seconds)) if isinstance(a, WriteKnowledge)]
    return actions[0].text if actions else ""


def stored(observed: Observation, text: str) -> Observation:
    """The same with that text in the cluster."""
    assert observed.plan is not None
    found = read_config_map(as_stored(knowledge_manifest(observed.plan, None, text)))
    assert isinstance(found, KnowledgeObject)
    return replace(observed, knowledge=found)


def kept(observed: Observation, **parts: Any) -> Observation:  # noqa: ANN401
    return stored(observed, written(observed, knowing(observed, **parts)))


def said(observed: Observation, state: PlanState | None = None) -> list[str]:
    actions, _ = decide(observed, state or PlanState(), NOW)
    return [a.message for a in actions if isinstance(a, EmitEvent)]


def test_a_process_that_knows_nothing_goes_on_from_what_is_kept() -> None:
    observed = kept(settled())
    day = later(86_400)

    state = recalled(observed, PlanState(), day)

    assert state.replan.learnt == read_knowledge(learnt())
    assert state.replan.state == knowledge_document(read_knowledge(learnt()))
    assert state.replan.state_at == pytest.approx(NOW.monotonic, abs=1)  # it is a day old
    assert written(observed, state, 86_400) == ""
    assert recalled(observed, knowing(observed, factor=1.5), day).replan.learnt != (
        state.replan.learnt
    )


def test_a_clock_that_went_back_makes_it_no_younger_than_now() -> None:
    assert (
        recalled(kept(settled()), PlanState(), later(-900)).replan.state_at == later(-900).monotonic
    )


def test_the_first_thing_learnt_is_written_at_once_and_then_only_news() -> None:
    observed = settled()
    first = knowing(observed)
    assert "1.25" in written(observed, first)

    observed = kept(observed)
    for same in ({}, {"weight": 15.0}, {"mean": 0.27}, {"rate": 4.0}):
        assert written(observed, knowing(observed, **same), EVERY) == ""
    for news in ({"weight": 17.0}, {"mean": 0.31}, {"rate": 5.0}, {"rate": 1.0}):
        assert written(observed, knowing(observed, **news), EVERY)


def test_a_factor_in_use_is_written_within_a_minute_and_figures_every_ten() -> None:
    observed = kept(settled())
    for parts, wait in (({"factor": 1.32}, SOON), ({"base": "1"}, SOON), ({"rate": 9.0}, EVERY)):
        state = knowing(observed, **parts)
        state = replace(state, knowledge=replace(state.knowledge, at=NOW.monotonic))
        assert written(observed, state, wait - 1) == ""
        assert written(observed, state, wait)


def test_a_plan_at_rest_writes_once() -> None:
    """Through `decide`, as the operator does; nothing else is to be done."""
    observed = settled()
    actions, state = decide(observed, knowing(observed), NOW)
    (write,) = [action for action in actions if isinstance(action, WriteKnowledge)]
    assert state.knowledge.at == NOW.monotonic

    for seconds in (0.0, SOON, EVERY, 10 * EVERY):
        actions, state = decide(stored(observed, write.text), state, later(seconds))
        assert not [a for a in actions if isinstance(a, WriteKnowledge | EmitEvent)]


def changed(**fields: object) -> str:
    """The text with these fields changed."""
    document = dict(read_json(written(settled(), knowing(settled()))).mapping())
    return canonical_text(document | fields)


REFUSED = {
    "[]": "a mapping",
    "{": "not JSON",
    changed(kind="RoutingTable"): "PlanKnowledge of archipelago.dev/v1alpha1",
    changed(version=VERSION + 1): "version 2 is of a newer operator, this one reads 1",
    changed(content=learnt(factor=1.9)): "checksum: the content is not what was written",
    changed(time="yesterday"): "time",
    " " * (KNOWLEDGE_BYTES + 1): "at most 262144 are kept",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text])
def test_what_is_not_ours_is_refused_by_name_and_written_over(text: str) -> None:
    """The operator goes on from nothing, and says so once."""
    with pytest.raises(PlanFileError) as refusal:
        read_kept(text)
    assert REFUSED[text] in str(refusal.value)

    observed = stored(settled(), text)
    assert recalled(observed, PlanState(), NOW) == PlanState()
    actions, state = decide(observed, PlanState(), NOW)
    (event,) = [action for action in actions if isinstance(action, EmitEvent)]
    assert event.reason is Reason.KNOWLEDGE_REFUSED
    assert "ConfigMap chat-learnt is not used: knowledge.json: " in event.message
    assert REFUSED[text] in event.message
    assert said(observed, state) == []
    learning = replace(knowing(observed), knowledge=state.knowledge)
    assert written(observed, learning)


@pytest.mark.parametrize(
    "content",
    [
        learnt(factor=2.5),
        learnt(weight=-1.0),
        {**learnt(), "rates": {"m": [-1.0]}},
        {**learnt(), "rates": {"m": ["many"]}},
        {**learnt(), "version": 1},
    ],
)
def test_a_forgery_with_its_checksum_is_refused_if_nothing_could_have_learnt_it(
    content: dict[str, Any],
) -> None:
    with pytest.raises(PlanFileError, match=r"calibration|rates|version"):
        read_knowledge(content)


def test_what_belongs_to_another_is_not_read_and_not_touched() -> None:
    observed = kept(settled())
    assert observed.knowledge is not None
    foreign = replace(observed.knowledge, owner_reference=None)
    for theirs in (
        foreign,
        replace(foreign, owner_reference={"name": "other", "uid": "u"}),
        replace(observed.knowledge, locked=True),
    ):
        found = replace(observed, knowledge=theirs)
        assert recalled(found, PlanState(), NOW) == PlanState()
        assert written(found, knowing(found, factor=1.9), EVERY) == ""
        (message,) = said(found)
        assert "delete it" in message


RATES = st.floats(min_value=0, max_value=1e6)


@given(st.floats(0.5, 2), st.floats(0, 1e6), st.floats(-2, 2), RATES, st.integers(0, 10**6))
def test_what_is_written_is_read_as_it_was(
    factor: float, weight: float, mean: float, rate: float, age: int
) -> None:
    knowledge = read_knowledge(learnt(factor, weight, mean, rate))
    written_at = NOW.wall - timedelta(seconds=age)
    found = read_kept(knowledge_text(read_kept(knowledge_text(Kept(knowledge, written_at)))))

    digits = canonical(knowledge_document(knowledge))
    assert found.knowledge == read_knowledge(digits)
    assert timestamp(found.time) == timestamp(written_at)
    assert not knowledge.is_news_to(found.knowledge)


def test_a_thousand_islands_fit() -> None:
    rows = [
        {"key": ["H100", f"model-{n}", "decode"], "age": 1.0, "sums": [87.1234567, -12.34, 3.21],
         "windows": 10**6, "islands": [f"h100-tp8-decode-b256-{n}-{i}" for i in range(100)]}
        for n in range(10)
    ]  # fmt: skip
    knowledge = read_knowledge({**learnt(), "calibration": {"learnt": rows, "last": "a"}})

    assert len(knowledge_text(Kept(knowledge, NOW.wall))) < KNOWLEDGE_BYTES / 4


def test_the_text_is_under_a_key_of_its_own() -> None:
    observed = kept(settled())
    assert observed.knowledge is not None
    assert observed.knowledge.key.name == "chat-learnt"
    assert KNOWLEDGE_KEY == "knowledge.json"
