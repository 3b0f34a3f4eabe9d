"""What is decided about a live plan: repair first, tables of a change in order, windows once."""

import json
from dataclasses import replace

import pytest

from archipelago.operator import report
from archipelago.operator.actions import (
    AskLive,
    EmitEvent,
    StartPlanning,
    TakeTable,
    Wait,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.conditions import ConditionType, Finding, Reason, Truth
from archipelago.operator.livedecide import PATIENCE, has_waited_enough, may_step
from archipelago.operator.livefacts import Ask, Live, Mark, Traffic, Until
from archipelago.operator.livejobs import plan_job
from archipelago.operator.livestate import LONGEST_RETRY, LiveState, is_news
from archipelago.operator.manifests import Identity, marked, table_manifest
from archipelago.operator.observe import Observation, SeenPlan, SeenTable
from archipelago.operator.podfacts import IslandPods
from archipelago.operator.question import planned_table, verdict_of
from archipelago.operator.reconcile import decide
from archipelago.operator.state import State
from archipelago.operator.status import Status
from archipelago.operator.verdict import Decided, Failed, Planned
from tests.operator.situations import NOW, T0, as_stored, later, observation, plan, told

DRAIN = 10
REPLANNING = {"source": "main", "drainSeconds": DRAIN}


def content(*, phase: str = "prefill", weight: int = 500_000) -> str:
    """A table of two islands on a node each; ``weight`` makes it another one."""
    islands = [
        {"name": "a", "phase": phase, "nodes": ["n1"]},
        {"name": "b", "phase": "decode", "nodes": ["n2"]},
    ]
    groups = [
        {"name": "g", "model": "m", "members": ["a"], "weight": weight},
        {"name": "h", "model": "m", "members": ["b"]},
    ]
    table = {"groups": groups, "islands": islands}
    return json.dumps(table, separators=(",", ":"), sort_keys=True)


OLD, DRAINED, CHANGED, NEW = (content(weight=w) for w in (1, 2, 3, 4))


def live_plan(live: Live | None = None, **replanning: object) -> SeenPlan:
    spec: dict[str, object] = {"replanning": REPLANNING | replanning}
    return replace(plan(spec=spec), live=live or Live())


def stored(
    seen: SeenPlan, text: str = OLD, mark: Mark = Mark.PLANNED, sequence: int = 1
) -> SeenTable:
    identity = Identity(seen.uid, seen.generation, sequence)
    return SeenTable.from_body(
        as_stored(marked(table_manifest(seen, None, identity, text, T0), mark, seen.spec_hash))
    )


def settled(live: Live | None = None, mark: Mark = Mark.PLANNED) -> Observation:
    """A live plan whose table is stored and said."""
    seen = live_plan(live)
    return at_rest(replace(seen, live=None), live or Live(), mark)


def at_rest(seen: SeenPlan, live: Live, mark: Mark = Mark.PLANNED) -> Observation:
    table = stored(seen, mark=mark)
    said = planned_table(seen.inputs_hash, OLD, {"summary": {"islands": 2}, "message": "2 islands"})
    status = report.published(seen, said, table, T0)
    return observation(replace(seen, status=status, live=live), table)


def window(at: float = 1.0, document: dict[str, object] | None = None) -> Traffic:
    return Traffic(at, {"seconds": 60} if document is None else document)


def decided(name: str, *tables: tuple[str, str], **more: object) -> Decided:
    """The answer to a question: tables with what each waits for."""
    steps = [{"content": text, "wait": wait, "islands": ["a"]} for text, wait in tables]
    live = {
        "rung": "Flip", "trigger": "Safety", "message": "flipped 1 island", "memory": {"n": 1},
        "summary": {"islands": 2}, "steps": steps, "wanted": None, **more,
    }  # fmt: skip
    answer = verdict_of(name, {"live": live})
    assert isinstance(answer, Decided)
    return answer


def after(seen: Observation, answer: Decided, state: State | None = None) -> State:
    assert seen.plan is not None
    return (state or State()).with_decision(answer, seen.plan, NOW)


def test_a_live_plan_at_rest_is_left_alone() -> None:
    assert decide(settled(), State(), NOW) == ()


def test_a_window_is_asked_about_once() -> None:
    seen = settled(Live(traffic=window(at=7.0)))
    actions = decide(seen, State(), NOW)

    assert actions == (AskLive(Ask.WINDOW, "a window of traffic is over"),)
    asked = replace(State(), live=LiveState().with_question(Ask.WINDOW, "", 7.0, ""))
    assert decide(seen, asked, NOW) == ()  # under way
    done = replace(asked, live=asked.live.with_answer({}, None, {}, 0.0))
    assert decide(seen, done, NOW) == ()  # looked at
    newer = settled(Live(traffic=window(at=8.0)))
    assert decide(newer, done, NOW) == actions


def test_a_window_in_which_pods_changed_is_not_looked_at() -> None:
    """A roll-out ended at 1,000 s: windows of 60 s count from 1,060 s on."""
    done = after(settled(), decided("window-1", (DRAINED, "None"), (NEW, "Drain")))
    done = done.with_table_written(later(-20)).with_next_step(1 << 20).with_table_written(NOW)
    assert done.live.rolled == NOW.monotonic
    state = replace(State(), live=done.live)

    assert decide(settled(Live(traffic=window(at=1059.0))), state, later(100)) == ()
    asked = decide(settled(Live(traffic=window(at=1060.0))), state, later(100))
    assert [type(a) for a in asked] == [AskLive]


def test_other_weights_leave_a_window_as_it_is() -> None:
    done = after(settled(), decided("window-1", (NEW, "None"))).with_table_written(NOW)
    assert done.live.rolled < 0


def test_a_window_without_anything_in_it_is_not_asked_about() -> None:
    assert decide(settled(Live(traffic=Traffic(7.0, None))), State(), NOW) == ()


def test_a_lost_node_comes_before_a_window() -> None:
    seen = settled(Live(lost=frozenset({"n2"}), traffic=window()))

    assert decide(seen, State(), NOW) == (
        AskLive(Ask.REPAIR, "1 islands stand on nodes that are gone"),
    )


def test_a_loss_that_cannot_be_repaired_is_asked_about_once() -> None:
    seen = settled(Live(lost=frozenset({"n2"})))
    hopeless = replace(State(), live=LiveState(hurt=frozenset({"b"})))
    assert decide(seen, hopeless, NOW) == ()

    more = settled(Live(lost=frozenset({"n1", "n2"})))
    assert [type(a) for a in decide(more, hopeless, NOW)] == [AskLive]


def test_a_lost_node_under_no_island_of_the_table_is_nothing() -> None:
    assert decide(settled(Live(lost=frozenset({"n9"}))), State(), NOW) == ()


def test_nothing_is_decided_on_half_a_list_of_nodes() -> None:
    seen = live_plan(Live(listed=False))
    pools = [{"name": "p", "nodeSelector": {"a": "b"}}]
    looking = replace(seen, spec={**seen.spec, "pools": pools})

    assert decide(observation(looking), State(), NOW) == ()


def test_tables_of_a_change_come_in_order_and_carry_their_mark() -> None:
    """Away from the island at once; the change when it has drained; back when its pod is ready."""
    pods = {"a": IslandPods(ready=False, phase="decode", pods=1, gpus=8, nodes=frozenset({"n1"}))}
    live = Live(pods=pods)
    seen = settled(live)
    answer = decided("window-1", (DRAINED, "None"), (CHANGED, "Drain"), (NEW, "Ready"))
    state = after(seen, answer).with_reserved(report.last_sequence(seen.plan, seen.table))  # type: ignore[arg-type]

    writes = [a for a in _go(seen, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.mark) for w in writes] == [(DRAINED, Mark.ROLLING)]

    drained = _stored_and_said(seen, state, DRAINED, Mark.ROLLING)
    state = state.with_table_written(NOW)
    assert not may_step(drained, state, later(DRAIN - 1))
    assert may_step(drained, state, later(DRAIN))
    state = state.with_next_step(1 << 20)
    assert state.verdict.content == CHANGED  # type: ignore[union-attr]

    changed = _stored_and_said(drained, state, CHANGED, Mark.ROLLING)
    state = state.with_table_written(later(DRAIN))
    assert not may_step(changed, state, later(500))  # its pod is not ready
    ready_pod = {"a": replace(pods["a"], ready=True, phase="prefill"), "b": pods["a"]}
    good = replace(changed, plan=replace(changed.plan, live=Live(pods=ready_pod)))  # type: ignore[type-var]
    assert may_step(good, state, later(500))
    state = state.with_next_step(1 << 20)
    last = [a for a in _go(good, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.mark) for w in last] == [(NEW, Mark.REPLANNED)]


def _go(seen: Observation, state: State) -> tuple[object, ...]:
    """Decisions until the table is to be written: a sequence is promised first."""
    for _ in range(2):
        actions = decide(seen, state, NOW)
        promise = next((a for a in actions if isinstance(a, WriteStatus)), None)
        if promise is None:
            return actions
        assert seen.plan is not None
        seen = replace(seen, plan=replace(seen.plan, status=promise.status))
        state = state.with_reserved(promise.reserves)
    return decide(seen, state, NOW)


def _stored_and_said(seen: Observation, state: State, text: str, mark: Mark) -> Observation:
    assert seen.plan is not None
    table = stored(seen.plan, text, mark, sequence=9)
    verdict = state.verdict
    assert verdict is not None
    said = report.published(seen.plan, verdict, table, T0)  # type: ignore[arg-type]
    return observation(replace(seen.plan, status=said), table)


def test_without_any_pod_of_the_plan_a_change_waits_as_long_as_a_drain() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not may_step(seen, state, later(DRAIN - 1))
    assert may_step(seen, state, later(DRAIN))


def test_pods_that_never_become_ready_are_given_up() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not has_waited_enough(state, later(PATIENCE - 1))
    assert has_waited_enough(state, later(PATIENCE))
    assert state.without_steps().steps == ()


def test_a_loss_during_a_roll_out_is_repaired_at_once() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (OLD, "None"), (NEW, "Drain"))).with_table_written(NOW)
    said = _stored_and_said(seen, state, OLD, Mark.ROLLING)
    hurt = replace(said, plan=replace(said.plan, live=Live(lost=frozenset({"n1"}))))  # type: ignore[type-var]

    assert not may_step(hurt, state, later(DRAIN))
    assert [a.kind for a in decide(hurt, state, later(1)) if isinstance(a, AskLive)] == [Ask.REPAIR]


def test_a_repair_does_not_wait_for_a_plan_and_the_plan_is_still_made() -> None:
    """The table answers older inputs: what comes of the repair does not count as the answer."""
    seen = settled(Live(lost=frozenset({"n1"})))
    assert seen.plan is not None
    edited = replace(seen.plan, inputs_hash="newer", generation=2)
    said = replace(edited, status=report.planning(edited, 2, T0))
    planning = State().with_planning("newer")
    hurt = replace(seen, plan=said)
    assert [a.kind for a in decide(hurt, planning, NOW) if isinstance(a, AskLive)] == [Ask.REPAIR]

    asked = LiveState().with_question(Ask.REPAIR, "newer", None, "", Mark.OWED)
    answer = decided("repair-1", (NEW, "None"), trigger="Repair", rung="Keep")
    state = replace(planning, live=asked).with_decision(answer, said, NOW)
    writes = [a for a in _go(hurt, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.mark) for w in writes] == [(NEW, Mark.OWED)]

    table = replace(stored(said, NEW, Mark.OWED, sequence=2))
    after_it = observation(replace(said, live=Live()), table)
    kinds = [type(a) for a in decide(after_it, state.with_table_written(NOW), NOW)]
    assert StartPlanning in kinds


def test_what_the_answer_wants_is_asked_next() -> None:
    seen = settled()
    state = after(seen, decided("repair-1", wanted="Reroute", trigger="None", rung="Keep"))
    assert [a.kind for a in decide(seen, state, NOW) if isinstance(a, AskLive)] == [Ask.WINDOW]

    solve = after(seen, decided("window-2", wanted="Reshape", trigger="None", rung="Keep"))
    assert [a.kind for a in decide(seen, solve, NOW) if isinstance(a, AskLive)] == [Ask.SOLVE]


def test_a_question_without_an_answer_is_asked_later_and_later() -> None:
    seen = settled(Live(lost=frozenset({"n1"})))
    state = replace(State(), live=LiveState().with_failure(NOW.monotonic))
    assert decide(seen, state, later(1)) == (Wait(4.0, "the last question had no answer"),)
    assert [type(a) for a in decide(seen, state, later(5))] == [AskLive]
    for _ in range(20):
        state = replace(state, live=state.live.with_failure(NOW.monotonic))
    assert state.live.retry_at == NOW.monotonic + LONGEST_RETRY


def test_what_replanning_made_survives_a_restart_and_an_edit_of_replanning() -> None:
    """The inputs of the plan are the same: its table is taken, nothing is planned."""
    seen = settled(mark=Mark.REPLANNED)
    assert decide(seen, State(), NOW) == ()
    assert seen.plan is not None
    edited = replace(seen.plan, generation=2)
    actions = decide(replace(seen, plan=edited), State(), NOW)

    assert [type(a) for a in actions] == [TakeTable]


def test_a_roll_out_that_nobody_remembers_is_planned_to_its_end() -> None:
    actions = decide(settled(mark=Mark.ROLLING), State(), NOW)

    assert [type(a) for a in actions] == [StartPlanning]


def test_other_nodes_are_other_inputs() -> None:
    seen = settled()
    assert seen.plan is not None
    other = seen.plan.with_nodes({**seen.plan.spec, "pools": [{"name": "p", "count": 8}]})

    kinds = [type(a) for a in decide(replace(seen, plan=other), State(), NOW)]
    assert StartPlanning in kinds
    assert other.to_resource()["spec"]["pools"] == [{"name": "p", "count": 8}]


def test_traffic_says_nothing_where_there_is_no_plan_for_the_inputs() -> None:
    seen = settled(Live(traffic=window()))
    assert seen.plan is not None
    none = Failed(seen.plan.inputs_hash, Reason.INFEASIBLE, "too few GPUs")
    state = State().with_planning(seen.plan.inputs_hash).with_verdict(none, NOW)

    assert not [a for a in decide(seen, state, NOW) if isinstance(a, AskLive)]


def test_without_nodes_to_plan_with_the_last_table_stays() -> None:
    refusal = Finding(Truth.FALSE, Reason.NO_NODES, "pool h200 has no node")
    seen = settled(Live(refusal=refusal, traffic=window()))
    actions = decide(seen, State(), NOW)

    assert [type(a) for a in actions] == [WriteStatus, EmitEvent]
    said = {c.type: (c.status, c.reason) for c in actions[0].status.conditions}  # type: ignore[union-attr]
    assert said[ConditionType.READY] == (Truth.FALSE, Reason.NO_NODES)
    assert said[ConditionType.PUBLISHED] == (Truth.TRUE, Reason.LAST_GOOD_KEPT)


def test_an_approval_is_passed_on_once() -> None:
    rest = at_rest(live_plan(approve="a" * 64), Live(traffic=window(at=1.0)))
    seen_before = replace(State(), live=replace(LiveState(), used=1.0))
    assert [type(a) for a in decide(rest, seen_before, NOW)] == [AskLive]
    asked = LiveState().with_question(Ask.WINDOW, "", 1.0, "a" * 64).without_question()
    assert decide(rest, replace(State(), live=asked), NOW) == ()


def test_conditions_of_a_live_plan_say_what_is_found() -> None:
    nodes = Finding(Truth.TRUE, Reason.NODES_FOUND, "GPUs in use by pool: a 8")
    lost = Finding(Truth.FALSE, Reason.SOURCE_FAILED, "main: no answer")
    seen = settled(Live(inventory=nodes, metrics=lost))
    (write, *_) = decide(seen, State(), NOW)

    assert isinstance(write, WriteStatus)
    said = {c.type: (c.status, c.reason) for c in write.status.conditions}
    assert said[ConditionType.INVENTORY_RESOLVED] == (Truth.TRUE, Reason.NODES_FOUND)
    assert said[ConditionType.METRICS_AVAILABLE] == (Truth.FALSE, Reason.SOURCE_FAILED)
    assert said[ConditionType.READY] == (Truth.TRUE, Reason.PUBLISHED)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"rung": "Keep", "trigger": "Repair"}, Reason.REPAIRED),
        ({"rung": "Reroute", "trigger": "Safety"}, Reason.REROUTED),
        ({"rung": "Flip", "trigger": "Gain"}, Reason.FLIPPED),
        ({"rung": "Reshape", "trigger": "Gain"}, Reason.RESHAPED),
        ({"rung": "Keep", "trigger": "None", "degraded": "0.9"}, Reason.DEGRADED),
        (
            {"rung": "Keep", "trigger": "None", "proposal": {"hash": "b" * 64, "rung": "Flip"}},
            Reason.PROPOSED,
        ),
    ],
)
def test_people_are_told_of_each_change_in_its_own_words(
    facts: dict[str, object], reason: Reason
) -> None:
    seen = settled()
    state = after(seen, decided("window-1", **facts))
    assert seen.plan is not None
    dressed = replace(seen, plan=replace(seen.plan, live=Live(decision=state.live.decision)))

    events = [a for a in decide(dressed, State(), NOW) if isinstance(a, EmitEvent)]
    assert [event.reason for event in events] == [reason]


def test_what_was_told_is_not_insisted_on() -> None:
    """Two operators that both decided would else write over each other for ever."""
    state = after(settled(), decided("window-1"))
    assert state.live.untold
    assert state.live.with_told(Status(last_decision={"rung": "Reroute"}), None).untold
    assert not state.live.with_told(Status(last_decision=state.live.decision), None).untold


def test_figures_of_every_window_are_no_news() -> None:
    short = {"rung": "Keep", "trigger": "None", "message": "81 % fit"}
    assert is_news(short, {"rung": "Flip", "trigger": "Gain"})
    assert not is_news({**short, "message": "82 % fit"}, short)
    proposal = {**short, "proposal": {"hash": "b" * 64}}
    assert is_news(proposal, short)
    assert not is_news({**proposal, "message": "again"}, proposal)
    assert not is_news({}, short)


def test_an_unsaid_plan_begins_as_any_other() -> None:
    assert StartPlanning in [type(a) for a in decide(observation(told(live_plan())), State(), NOW)]
    assert Until.NONE.value == "None"


def on_nodes(live: Live, mark: Mark) -> Observation:
    """A plan at rest one of whose pools finds its nodes."""
    pool = {"name": "p", "accelerator": "H100", "nodeSelector": {"pool": "p"}}
    seen = replace(plan(spec={"replanning": REPLANNING, "pools": [pool]}), live=None)
    assert seen.finds_nodes
    return at_rest(seen, live, mark)


def test_a_table_on_nodes_that_went_while_it_was_made_is_repaired_before_it_is_stored() -> None:
    """Once; where nothing is left of it, what is stored stays."""
    seen = settled(Live(lost=frozenset({"n2"})))
    assert seen.plan is not None
    edited = replace(seen.plan, inputs_hash="newer", generation=2)
    said = replace(edited, status=report.planning(edited, 2, T0))
    hurt = replace(seen, plan=said)
    steps = [
        {"content": text, "wait": "None", "islands": [], "nodes": ["n1", node]}
        for text, node in ((DRAINED, "n2"), (NEW, "n3"))
    ]
    told_so = {"summary": {}, "message": "", "seconds": 0.1, "content": NEW, "steps": steps}
    verdict = verdict_of("newer", {"planned": told_so})
    assert isinstance(verdict, Planned)
    state = State().with_planning("newer").with_verdict(verdict, NOW)

    assert [a.kind for a in decide(hurt, state, NOW) if isinstance(a, AskLive)] == [Ask.REPAIR]

    asked = LiveState().with_question(Ask.REPAIR, "newer", None, "", Mark.REPAIRED)
    asked = replace(asked, about=verdict.content_hash)
    assert decide(hurt, replace(state, live=asked), NOW) == ()
    answer = decided("repair-1", (CHANGED, "None"), trigger="Repair", rung="Keep")
    repaired = replace(state, live=asked).with_decision(answer, said, NOW)
    writes = [a for a in _go(hurt, repaired) if isinstance(a, WriteTable)]
    assert [(w.content, w.mark) for w in writes] == [(CHANGED, Mark.REPAIRED)]

    helpless = replace(state, live=asked).with_decision(decided("repair-1"), said, NOW)
    assert not [a for a in decide(hurt, helpless, NOW) if isinstance(a, WriteTable | AskLive)]


def test_a_plan_ends_the_question_about_the_table_before_it() -> None:
    """Else the old table, repaired, would be stored over the new one."""
    asked = replace(
        State().with_planning("newer"),
        live=LiveState().with_question(Ask.REPAIR, "newer", None, ""),
    )
    verdict = replace(planned_table("newer", NEW, {"summary": {}, "message": ""}))
    assert asked.live.asking is not None

    assert asked.with_verdict(verdict, NOW).live.asking is None


def test_a_repaired_table_is_planned_again_after_a_restart_where_its_nodes_are_back() -> None:
    """The inputs are those that it answers, and yet it is without nodes that there are."""
    back = decide(on_nodes(Live(), Mark.REPAIRED), State(), NOW)
    assert [type(a) for a in back] == [StartPlanning]

    assert decide(on_nodes(Live(away=True), Mark.REPAIRED), State(), NOW) == ()


def test_a_full_plan_is_told_what_is_remembered_and_keeps_its_name() -> None:
    """What islands taught of times goes with it; the hash of its inputs is that of the spec."""
    seen = settled()
    assert seen.plan is not None
    told = replace(LiveState(), memory={"calibration": {"used": []}}, answered=NOW.monotonic - 7)
    job = plan_job(seen.plan, None, (told, NOW.monotonic))
    assert job.resource["live"]["memory"] == {"calibration": {"used": []}}
    assert job.resource["live"]["age"] == 7.0
    assert job.inputs_hash == seen.plan.inputs_hash
    anew = plan_job(seen.plan, None, (LiveState(), NOW.monotonic))
    assert (anew.resource["live"]["memory"], anew.resource["live"]["age"]) == ({}, 0.0)
