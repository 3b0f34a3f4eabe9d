"""What is decided about a live plan: repair first, tables of a change in order, windows once."""

import json
from dataclasses import replace

import pytest

from archipelago.operator.apply.replanning import plan_job
from archipelago.operator.decide import status_text
from archipelago.operator.decide.actions import (
    AdoptTable,
    EmitEvent,
    RefreshInventory,
    Requeue,
    StartPlanning,
    StartReplan,
    WriteStatus,
    WriteTable,
)
from archipelago.operator.decide.decision import decide, receive
from archipelago.operator.decide.rollout import PATIENCE, next_step_due, rollout_timed_out
from archipelago.operator.decide.state import (
    REPLAN_RETRY,
    PendingReplan,
    PlanState,
    ReplanMemory,
    is_news,
)
from archipelago.operator.planning.messages import decode_result, plan_ready
from archipelago.operator.planning.result import PlanFailed, PlanReady, ReplanResult
from archipelago.operator.resources.live import (
    IslandPods,
    LiveStatus,
    ReplanKind,
    StepGate,
    TableOrigin,
    Traffic,
)
from archipelago.operator.resources.manifests import table_manifest
from archipelago.operator.resources.names import Identity
from archipelago.operator.resources.objects import Observation, PlanObject, TableObject
from archipelago.operator.resources.status import (
    ConditionStatus,
    ConditionType,
    Finding,
    Reason,
    Status,
)
from archipelago.planner.demand.window import ObservedWindow
from archipelago.planner.service.messages import REPLY, PlanRequest, TableStep
from tests.support.operator.situations import (
    NOW,
    T0,
    actions_of,
    as_stored,
    later,
    observation,
    plan,
    plan_reply,
    told,
)

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


def live_plan(live: LiveStatus | None = None, **replanning: object) -> PlanObject:
    spec: dict[str, object] = {"replanning": REPLANNING | replanning}
    return replace(plan(spec=spec), live=live or LiveStatus())


def stored(
    seen: PlanObject, text: str = OLD, mark: TableOrigin = TableOrigin.PLANNED, sequence: int = 1
) -> TableObject:
    identity = Identity(seen.uid, seen.generation, sequence)
    manifest = table_manifest(seen, None, identity, text, T0, origin=mark)
    return TableObject.from_body(as_stored(manifest))


def settled(live: LiveStatus | None = None, mark: TableOrigin = TableOrigin.PLANNED) -> Observation:
    """A live plan whose table is stored and said."""
    seen = live_plan(live)
    return at_rest(replace(seen, live=None), live or LiveStatus(), mark)


def at_rest(
    seen: PlanObject, live: LiveStatus, mark: TableOrigin = TableOrigin.PLANNED
) -> Observation:
    table = stored(seen, mark=mark)
    said = plan_ready(seen.inputs_hash, OLD, {"islands": 2}, "2 islands")
    status = status_text.published(seen, said, table, T0)
    return observation(replace(seen, status=status, live=live), table)


def window(at: float = 1.0) -> Traffic:
    return Traffic(at, ObservedWindow(60.0, {}))


def decided(name: str, *tables: tuple[str, str], **more: object) -> ReplanResult:
    """The answer to a question: tables with what each waits for."""
    steps = [{"content": text, "wait": wait, "islands": ["a"]} for text, wait in tables]
    live = {
        "level": "Flip", "trigger": "Safety", "message": "flipped 1 island", "state": {"n": 1},
        "summary": {"islands": 2}, "steps": steps, "requestedLevel": None, **more,
    }  # fmt: skip
    answer = decode_result(name, REPLY.validate_python({"kind": "replanned", **live}))
    assert isinstance(answer, ReplanResult)
    return answer


def after(seen: Observation, answer: ReplanResult, state: PlanState | None = None) -> PlanState:
    assert seen.plan is not None
    return (state or PlanState()).with_replan(answer, seen.plan.inputs_hash, NOW)


def reported(state: PlanState) -> PlanState:
    """The memory once the status has the last decision."""
    return replace(state, unreported=False)


def test_a_live_plan_at_rest_is_left_alone() -> None:
    assert actions_of(settled(), PlanState(), NOW) == ()


def test_a_window_is_asked_about_once() -> None:
    seen = settled(LiveStatus(traffic=window(at=7.0)))
    actions = actions_of(seen, PlanState(), NOW)

    assert actions == (StartReplan(ReplanKind.WINDOW, "a window of traffic is over"),)
    asked = PlanState().with_request(ReplanKind.WINDOW, PendingReplan(), window=7.0)
    assert actions_of(seen, asked, NOW) == ()  # under way
    done = asked.with_replan(decided("window-1", trigger="None", level="Keep"), "", NOW)
    assert actions_of(seen, done, NOW) == ()  # looked at
    newer = settled(LiveStatus(traffic=window(at=8.0)))
    assert actions_of(newer, done, NOW) == actions


def test_a_window_in_which_pods_changed_is_not_looked_at() -> None:
    """A roll-out ended at 1,000 s: windows of 60 s count from 1,060 s on."""
    done = after(settled(), decided("window-1", (DRAINED, "None"), (NEW, "Drain")))
    done = done.with_table_written(later(-20)).with_next_step(1 << 20).with_table_written(NOW)
    assert done.rollout.changed_at == NOW.monotonic
    state = reported(replace(done, result=None))

    assert actions_of(settled(LiveStatus(traffic=window(at=1059.0))), state, later(100)) == ()
    asked = actions_of(settled(LiveStatus(traffic=window(at=1060.0))), state, later(100))
    assert [type(a) for a in asked] == [StartReplan]


def test_other_weights_leave_a_window_as_it_is() -> None:
    done = after(settled(), decided("window-1", (NEW, "None"))).with_table_written(NOW)
    assert done.rollout.changed_at < 0


def test_a_window_without_anything_in_it_is_not_asked_about() -> None:
    assert actions_of(settled(LiveStatus(traffic=Traffic(7.0, None))), PlanState(), NOW) == ()


def test_a_lost_node_comes_before_a_window() -> None:
    seen = settled(LiveStatus(lost_nodes=frozenset({"n2"}), traffic=window()))

    assert actions_of(seen, PlanState(), NOW) == (
        StartReplan(ReplanKind.REPAIR, "islands on lost nodes: 1"),
    )


def test_a_loss_that_cannot_be_repaired_is_asked_about_once() -> None:
    seen = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    hopeless = PlanState(failed_repairs=frozenset({"b"}))
    assert actions_of(seen, hopeless, NOW) == ()

    more = settled(LiveStatus(lost_nodes=frozenset({"n1", "n2"})))
    assert [type(a) for a in actions_of(more, hopeless, NOW)] == [StartReplan]


def test_a_lost_node_under_no_island_of_the_table_is_nothing() -> None:
    assert actions_of(settled(LiveStatus(lost_nodes=frozenset({"n9"}))), PlanState(), NOW) == ()


def test_nothing_is_decided_on_half_a_list_of_nodes() -> None:
    seen = live_plan(LiveStatus(nodes_listed=False))
    pools = [{"name": "p", "nodeSelector": {"a": "b"}}]
    looking = replace(seen, spec={**seen.spec, "pools": pools})

    assert actions_of(observation(looking), PlanState(), NOW) == ()


def test_tables_of_a_change_come_in_order_and_carry_their_mark() -> None:
    """Away from the island at once; the change when it has drained; back when its pod is ready."""
    pods = {"a": IslandPods(ready=False, phase="decode", pods=1, gpus=8, nodes=frozenset({"n1"}))}
    live = LiveStatus(pods=pods)
    seen = settled(live)
    answer = decided("window-1", (DRAINED, "None"), (CHANGED, "Drain"), (NEW, "Ready"))
    reserved = status_text.last_sequence(seen.plan, seen.table)  # type: ignore[arg-type]
    state = replace(after(seen, answer), reserved=reserved)

    writes = [a for a in _go(seen, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(DRAINED, TableOrigin.ROLLING)]

    drained = _stored_and_said(seen, state, DRAINED, TableOrigin.ROLLING)
    state = state.with_table_written(NOW)
    assert not next_step_due(drained, state, later(DRAIN - 1))
    assert next_step_due(drained, state, later(DRAIN))
    state = state.with_next_step(1 << 20)
    assert state.result.content == CHANGED  # type: ignore[union-attr]

    changed = _stored_and_said(drained, state, CHANGED, TableOrigin.ROLLING)
    state = state.with_table_written(later(DRAIN))
    assert not next_step_due(changed, state, later(500))  # its pod is not ready
    ready_pod = {"a": replace(pods["a"], ready=True, phase="prefill"), "b": pods["a"]}
    good = replace(changed, plan=replace(changed.plan, live=LiveStatus(pods=ready_pod)))  # type: ignore[type-var]
    assert next_step_due(good, state, later(500))
    state = state.with_next_step(1 << 20)
    last = [a for a in _go(good, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in last] == [(NEW, TableOrigin.REPLANNED)]


def _go(seen: Observation, state: PlanState) -> tuple[object, ...]:
    """Decisions until the table is to be written: a sequence is promised first."""
    for _ in range(2):
        actions = actions_of(seen, state, NOW)
        promise = next((a for a in actions if isinstance(a, WriteStatus)), None)
        if promise is None:
            return actions
        assert seen.plan is not None
        seen = replace(seen, plan=replace(seen.plan, status=promise.status))
        state = replace(state, reserved=promise.reserves)
    return actions_of(seen, state, NOW)


def _stored_and_said(
    seen: Observation, state: PlanState, text: str, mark: TableOrigin
) -> Observation:
    assert seen.plan is not None
    table = stored(seen.plan, text, mark, sequence=9)
    verdict = state.result
    assert verdict is not None
    said = status_text.published(seen.plan, verdict, table, T0)  # type: ignore[arg-type]
    return observation(replace(seen.plan, status=said), table)


def test_without_any_pod_of_the_plan_a_change_waits_as_long_as_a_drain() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not next_step_due(seen, state, later(DRAIN - 1))
    assert next_step_due(seen, state, later(DRAIN))


def test_pods_that_never_become_ready_are_given_up() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not rollout_timed_out(state, later(PATIENCE - 1))
    assert rollout_timed_out(state, later(PATIENCE))
    assert state.without_steps().steps == ()


def test_a_loss_during_a_roll_out_is_repaired_at_once() -> None:
    seen = settled()
    state = after(seen, decided("window-1", (OLD, "None"), (NEW, "Drain"))).with_table_written(NOW)
    state = reported(state)
    said = _stored_and_said(seen, state, OLD, TableOrigin.ROLLING)
    hurt = replace(said, plan=replace(said.plan, live=LiveStatus(lost_nodes=frozenset({"n1"}))))  # type: ignore[type-var]

    assert not next_step_due(hurt, state, later(DRAIN))
    assert [a.kind for a in actions_of(hurt, state, later(1)) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]


def test_a_repair_does_not_wait_for_a_plan_and_the_plan_is_still_made() -> None:
    """The table answers older inputs: what comes of the repair does not count as the answer."""
    seen = settled(LiveStatus(lost_nodes=frozenset({"n1"})))
    assert seen.plan is not None
    edited = replace(seen.plan, inputs_hash="newer", generation=2)
    said = replace(edited, status=status_text.planning(edited, 2, T0))
    planning = PlanState().with_planning("newer")
    hurt = replace(seen, plan=said)
    assert [a.kind for a in actions_of(hurt, planning, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]

    asked = planning.with_request(ReplanKind.REPAIR, PendingReplan("", "newer", TableOrigin.OWED))
    answer = decided("repair-1", (NEW, "None"), trigger="Repair", level="Keep")
    state = asked.with_replan(answer, said.inputs_hash, NOW)
    writes = [a for a in _go(hurt, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(NEW, TableOrigin.OWED)]

    table = replace(stored(said, NEW, TableOrigin.OWED, sequence=2))
    after_it = observation(replace(said, live=LiveStatus()), table)
    kinds = [type(a) for a in actions_of(after_it, state.with_table_written(NOW), NOW)]
    assert StartPlanning in kinds


def test_what_the_answer_wants_is_asked_next() -> None:
    seen = settled()
    state = after(seen, decided("repair-1", requestedLevel="Reroute", trigger="None", level="Keep"))
    assert [a.kind for a in actions_of(seen, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.WINDOW
    ]

    solve = after(seen, decided("window-2", requestedLevel="Reshape", trigger="None", level="Keep"))
    assert [a.kind for a in actions_of(seen, solve, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.SOLVE
    ]


def test_a_question_without_an_answer_is_asked_later_and_later() -> None:
    seen = settled(LiveStatus(lost_nodes=frozenset({"n1"})))
    state = PlanState().with_replan_failure(NOW)
    assert actions_of(seen, state, later(1)) == (Requeue(4.0, "the last request failed"),)
    assert [type(a) for a in actions_of(seen, state, later(5))] == [StartReplan]
    for _ in range(20):
        state = state.with_replan_failure(NOW)
    assert state.replan_retry.at == NOW.monotonic + REPLAN_RETRY.longest


def test_what_replanning_made_survives_a_restart_and_an_edit_of_replanning() -> None:
    """The inputs of the plan are the same: its table is taken, nothing is planned."""
    seen = settled(mark=TableOrigin.REPLANNED)
    assert actions_of(seen, PlanState(), NOW) == ()
    assert seen.plan is not None
    edited = replace(seen.plan, generation=2)
    actions = actions_of(replace(seen, plan=edited), PlanState(), NOW)

    assert [type(a) for a in actions] == [AdoptTable]


def test_a_roll_out_that_nobody_remembers_is_planned_to_its_end() -> None:
    actions = actions_of(settled(mark=TableOrigin.ROLLING), PlanState(), NOW)

    assert [type(a) for a in actions] == [StartPlanning]


def test_other_nodes_are_other_inputs() -> None:
    seen = settled()
    assert seen.plan is not None
    other = seen.plan.with_nodes({**seen.plan.spec, "pools": [{"name": "p", "count": 8}]})

    kinds = [type(a) for a in actions_of(replace(seen, plan=other), PlanState(), NOW)]
    assert StartPlanning in kinds
    assert other.to_resource()["spec"]["pools"] == [{"name": "p", "count": 8}]


def test_traffic_says_nothing_where_there_is_no_plan_for_the_inputs() -> None:
    seen = settled(LiveStatus(traffic=window()))
    assert seen.plan is not None
    none = PlanFailed(seen.plan.inputs_hash, Reason.INFEASIBLE, "too few GPUs")
    state = PlanState().with_planning(seen.plan.inputs_hash).with_result(none, NOW)

    assert not [a for a in actions_of(seen, state, NOW) if isinstance(a, StartReplan)]


def test_without_nodes_to_plan_with_the_last_table_stays() -> None:
    refusal = Finding(ConditionStatus.FALSE, Reason.NO_NODES, "pool h200 has no node")
    seen = settled(LiveStatus(refusal=refusal, traffic=window()))
    actions = actions_of(seen, PlanState(), NOW)

    assert [type(a) for a in actions] == [WriteStatus, EmitEvent]
    said = {c.type: (c.status, c.reason) for c in actions[0].status.conditions}  # type: ignore[union-attr]
    assert said[ConditionType.READY] == (ConditionStatus.FALSE, Reason.NO_NODES)
    assert said[ConditionType.PUBLISHED] == (ConditionStatus.TRUE, Reason.LAST_GOOD_KEPT)


def test_an_approval_is_passed_on_once() -> None:
    rest = at_rest(live_plan(approve="a" * 64), LiveStatus(traffic=window(at=1.0)))
    seen_before = PlanState(replan=ReplanMemory(last_window=1.0))
    assert [type(a) for a in actions_of(rest, seen_before, NOW)] == [StartReplan]
    asked = PlanState(replan=ReplanMemory(last_window=1.0, approved="a" * 64))
    assert actions_of(rest, asked, NOW) == ()


def test_conditions_of_a_live_plan_say_what_is_found() -> None:
    nodes = Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, "GPUs in use by pool: a 8")
    lost = Finding(ConditionStatus.FALSE, Reason.SOURCE_FAILED, "main: no answer")
    seen = settled(LiveStatus(inventory=nodes, metrics=lost))
    (write, *_) = actions_of(seen, PlanState(), NOW)

    assert isinstance(write, WriteStatus)
    said = {c.type: (c.status, c.reason) for c in write.status.conditions}
    assert said[ConditionType.INVENTORY_RESOLVED] == (ConditionStatus.TRUE, Reason.NODES_FOUND)
    assert said[ConditionType.METRICS_AVAILABLE] == (ConditionStatus.FALSE, Reason.SOURCE_FAILED)
    assert said[ConditionType.READY] == (ConditionStatus.TRUE, Reason.PUBLISHED)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"level": "Keep", "trigger": "Repair"}, Reason.REPAIRED),
        ({"level": "Reroute", "trigger": "Safety"}, Reason.REROUTED),
        ({"level": "Flip", "trigger": "Gain"}, Reason.FLIPPED),
        ({"level": "Reshape", "trigger": "Gain"}, Reason.RESHAPED),
        ({"level": "Keep", "trigger": "None", "degraded": "0.9"}, Reason.DEGRADED),
        (
            {
                "level": "Keep",
                "trigger": "None",
                "proposal": {
                    "hash": "b" * 64,
                    "level": "Flip",
                    "trigger": "Gain",
                    "gain": None,
                    "message": "",
                },
            },
            Reason.PROPOSED,
        ),
    ],
)
def test_each_change_has_its_own_message(facts: dict[str, object], reason: Reason) -> None:
    seen = settled()
    state = after(seen, decided("window-1", **facts))
    assert seen.plan is not None
    state = replace(state, result=None)

    events = [a for a in actions_of(seen, state, NOW) if isinstance(a, EmitEvent)]
    assert [event.reason for event in events] == [reason]


def test_an_answered_request_is_not_repeated() -> None:
    """Two operators that both decided would else write over each other for ever."""
    state = after(settled(), decided("window-1"))
    assert state.unreported
    assert state.with_status(Status(last_decision={"level": "Reroute"}), None).unreported
    assert not state.with_status(Status(last_decision=state.decision), None).unreported


def test_figures_of_every_window_are_no_news() -> None:
    short = {"level": "Keep", "trigger": "None", "message": "81 % fit"}
    assert is_news(short, {"level": "Flip", "trigger": "Gain"})
    assert not is_news({**short, "message": "82 % fit"}, short)
    proposal = {**short, "proposal": {"hash": "b" * 64}}
    assert is_news(proposal, short)
    assert not is_news({**proposal, "message": "again"}, proposal)
    assert not is_news({}, short)


def test_an_unsaid_plan_begins_as_any_other() -> None:
    assert StartPlanning in [
        type(a) for a in actions_of(observation(told(live_plan())), PlanState(), NOW)
    ]
    assert StepGate.NONE.value == "None"


def on_nodes(live: LiveStatus, mark: TableOrigin) -> Observation:
    """A plan at rest one of whose pools finds its nodes."""
    pool = {"name": "p", "accelerator": "H100", "nodeSelector": {"pool": "p"}}
    seen = replace(plan(spec={"replanning": REPLANNING, "pools": [pool]}), live=None)
    assert seen.selects_nodes
    return at_rest(seen, live, mark)


def test_a_table_on_nodes_that_went_while_it_was_made_is_repaired_before_it_is_stored() -> None:
    """Once; where nothing is left of it, what is stored stays."""
    seen = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert seen.plan is not None
    edited = replace(seen.plan, inputs_hash="newer", generation=2)
    said = replace(edited, status=status_text.planning(edited, 2, T0))
    hurt = replace(seen, plan=said)
    steps = [
        TableStep(content=text, nodes=("n1", node)) for text, node in ((DRAINED, "n2"), (NEW, "n3"))
    ]
    verdict = decode_result("newer", plan_reply(*steps))
    assert isinstance(verdict, PlanReady)
    state = PlanState().with_planning("newer").with_result(verdict, NOW)

    assert [a.kind for a in actions_of(hurt, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]

    asked = state.with_request(
        ReplanKind.REPAIR,
        PendingReplan("", "newer", TableOrigin.REPAIRED, verdict.content_hash),
    )
    assert actions_of(hurt, asked, NOW) == ()
    answer = decided("repair-1", (CHANGED, "None"), trigger="Repair", level="Keep")
    repaired = asked.with_replan(answer, said.inputs_hash, NOW)
    writes = [a for a in _go(hurt, repaired) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(CHANGED, TableOrigin.REPAIRED)]

    helpless = asked.with_replan(decided("repair-1"), said.inputs_hash, NOW)
    assert not [
        a for a in actions_of(hurt, helpless, NOW) if isinstance(a, WriteTable | StartReplan)
    ]


def test_a_plan_ends_the_question_about_the_table_before_it() -> None:
    """Else the old table, repaired, would be stored over the new one."""
    asked = (
        PlanState()
        .with_planning("newer")
        .with_request(ReplanKind.REPAIR, PendingReplan(inputs_hash="newer"))
    )
    verdict = replace(plan_ready("newer", NEW, {}, ""))
    assert asked.request is not None

    assert asked.with_result(verdict, NOW).request is None


def test_a_repaired_table_is_planned_again_after_a_restart_where_its_nodes_are_back() -> None:
    """The inputs are those that it answers, and yet it is without nodes that there are."""
    back = actions_of(on_nodes(LiveStatus(), TableOrigin.REPAIRED), PlanState(), NOW)
    assert [type(a) for a in back] == [StartPlanning]

    assert (
        actions_of(
            on_nodes(LiveStatus(plan_nodes_lost=True), TableOrigin.REPAIRED), PlanState(), NOW
        )
        == ()
    )


def test_a_full_plan_gets_the_memory_and_keeps_its_name() -> None:
    """What islands taught of times goes with it; the hash of its inputs is that of the spec."""
    seen = settled()
    assert seen.plan is not None
    told = PlanState(
        replan=ReplanMemory(state={"calibration": {"used": []}}, state_at=NOW.monotonic - 7)
    )
    job = plan_job(seen.plan, None, told, NOW)
    assert isinstance(job.request, PlanRequest)
    assert job.request.state == {"calibration": {"used": []}}
    assert job.request.age == 7.0
    assert job.inputs_hash == seen.plan.inputs_hash
    anew = plan_job(seen.plan, None, PlanState(), NOW)
    assert isinstance(anew.request, PlanRequest)
    assert (anew.request.state, anew.request.age) == ({}, 0.0)


def test_the_inventory_is_refreshed_once_if_no_repair_helps() -> None:
    seen = on_nodes(LiveStatus(lost_nodes=frozenset({"n1", "n2"})), TableOrigin.PLANNED)
    assert seen.table is not None
    state = PlanState(
        irreparable=seen.table.content_hash or "", failed_repairs=frozenset({"a", "b"})
    )
    actions, state = decide(seen, state, NOW)
    assert [type(a) for a in actions] == [RefreshInventory]
    assert RefreshInventory not in [type(a) for a in actions_of(seen, state, NOW)]


def test_a_result_that_nobody_waits_for_changes_nothing() -> None:
    seen = settled()
    assert receive(seen, PlanState(), decided("window-1"), NOW) == (PlanState(), False)
    asked = PlanState().with_request(
        ReplanKind.WINDOW, PendingReplan(inputs_hash="older"), window=1.0
    )
    state, accepted = receive(seen, asked, decided("window-1"), NOW)
    assert (state.request, accepted) == (None, False)  # the plan is another one now
