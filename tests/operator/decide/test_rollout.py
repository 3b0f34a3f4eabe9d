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
from archipelago.operator.decide.rollout import (
    next_step_due,
    rollout_timed_out,
    with_replan,
)
from archipelago.operator.decide.state import (
    REPLAN_RETRY,
    FailedChanges,
    PendingReplan,
    PlanState,
    ReplanMemory,
    Retry,
    is_news,
)
from archipelago.operator.planning.messages import decode_result, plan_ready
from archipelago.operator.planning.result import PlanFailed, PlanReady, ReplanResult
from archipelago.operator.resources.live import (
    IslandPods,
    LiveStatus,
    ReplanKind,
    TableIslands,
    TableOrigin,
    Traffic,
)
from archipelago.operator.resources.manifests import shard_manifest, table_manifest
from archipelago.operator.resources.names import Identity
from archipelago.operator.resources.objects import Observation, PlanObject, ShardObject, TableObject
from archipelago.operator.resources.shards import shards_of
from archipelago.operator.resources.status import (
    ConditionStatus,
    ConditionType,
    Finding,
    Reason,
    Status,
)
from archipelago.planner.demand.window import ObservedWindow
from archipelago.planner.service.messages import REPLY, PlanRequest, TableStep
from archipelago.planner.table.shards import split
from tests.support.operator.situations import (
    NOW,
    T0,
    actions_of,
    as_stored,
    later,
    observation,
    plan,
    plan_reply,
    with_early_status,
)

DRAIN = 10
PATIENCE = 900
REPLANNING = {"source": "main", "drainSeconds": DRAIN}


def content(*, phase: str = "prefill", weight: int = 500_000) -> str:
    """A table of two islands on a node each; ``weight`` makes it another one."""
    islands = [
        {"name": "a", "phase": phase, "nodes": ["n1"], "gpus": 8},
        {"name": "b", "phase": "decode", "nodes": ["n2"], "gpus": 8},
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
    splan: PlanObject, text: str = OLD, origin: TableOrigin = TableOrigin.PLANNED, sequence: int = 1
) -> TableObject:
    identity = Identity(splan.uid, splan.generation, sequence)
    manifest = table_manifest(splan, None, identity, text, T0, origin=origin)
    return TableObject.from_body(as_stored(manifest))


def settled(
    live: LiveStatus | None = None, origin: TableOrigin = TableOrigin.PLANNED
) -> Observation:
    """A live plan whose table is stored and said."""
    splan = live_plan(live)
    return at_rest(replace(splan, live=None), live or LiveStatus(), origin)


def at_rest(
    splan: PlanObject, live: LiveStatus, origin: TableOrigin = TableOrigin.PLANNED
) -> Observation:
    table = stored(splan, origin=origin)
    result = plan_ready(splan.inputs_hash, OLD, {"islands": 2}, "2 islands")
    status = status_text.published(splan, result, table, T0)
    return observation(replace(splan, status=status, live=live), table)


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


def after(observed: Observation, answer: ReplanResult, state: PlanState | None = None) -> PlanState:
    assert observed.plan is not None
    return (state or PlanState()).with_replan(answer, observed.plan.inputs_hash, NOW)


def reported(state: PlanState) -> PlanState:
    """The memory once the status has the last decision."""
    return replace(state, unreported=False)


def test_a_live_plan_at_rest_is_left_alone() -> None:
    assert actions_of(settled(), PlanState(), NOW) == ()


def test_a_window_is_asked_about_once() -> None:
    observed = settled(LiveStatus(traffic=window(at=7.0)))
    actions = actions_of(observed, PlanState(), NOW)

    assert actions == (StartReplan(ReplanKind.WINDOW, "a window of traffic is over"),)
    pending = PlanState().with_request(ReplanKind.WINDOW, PendingReplan(), window=7.0)
    assert actions_of(observed, pending, NOW) == ()  # under way
    done = pending.with_replan(decided("window-1", trigger="None", level="Keep"), "", NOW)
    assert actions_of(observed, done, NOW) == ()  # looked at
    newer = settled(LiveStatus(traffic=window(at=8.0)))
    assert actions_of(newer, done, NOW) == actions


def test_a_window_in_which_pods_changed_is_not_looked_at() -> None:
    """A roll-out ended at 1,000 s: windows of 60 s count from 1,060 s on."""
    done = after(settled(), decided("window-1", (DRAINED, "None"), (NEW, "Drain")))
    done = done.with_table_written(later(-20)).with_next_step(1 << 20).with_table_written(NOW)
    assert done.rollout.changed_at == NOW.monotonic
    state = reported(replace(done, result=None))

    assert actions_of(settled(LiveStatus(traffic=window(at=1059.0))), state, later(100)) == ()
    actions = actions_of(settled(LiveStatus(traffic=window(at=1060.0))), state, later(100))
    assert [type(a) for a in actions] == [StartReplan]


def test_other_weights_leave_a_window_as_it_is() -> None:
    done = after(settled(), decided("window-1", (NEW, "None"))).with_table_written(NOW)
    assert done.rollout.changed_at < 0


def test_a_window_without_anything_in_it_is_not_asked_about() -> None:
    assert actions_of(settled(LiveStatus(traffic=Traffic(7.0, None))), PlanState(), NOW) == ()


def test_a_lost_node_comes_before_a_window() -> None:
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"}), traffic=window()))

    assert actions_of(observed, PlanState(), NOW) == (
        StartReplan(ReplanKind.REPAIR, "islands on lost nodes: 1"),
    )


def test_a_loss_that_cannot_be_repaired_is_asked_about_once() -> None:
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.table is not None
    failed = PlanState(
        failed_repairs=frozenset({"b"}), irreparable=observed.table.content_hash or ""
    )
    assert actions_of(observed, failed, NOW) == ()

    more = settled(LiveStatus(lost_nodes=frozenset({"n1", "n2"})))
    assert [type(a) for a in actions_of(more, failed, NOW)] == [StartReplan]


def test_a_window_does_not_ask_again_what_no_repair_helps() -> None:
    """Else each window tries the repair anew, and `Ready` turns twice."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.table is not None
    known = PlanState(
        failed_repairs=frozenset({"b"}), irreparable=observed.table.content_hash or ""
    )
    seen = known.with_request(ReplanKind.WINDOW, PendingReplan(), window=7.0)
    kept = reported(after(observed, decided("window-1", trigger="None", level="Keep"), seen))
    assert actions_of(observed, kept, NOW) == ()


def test_a_repair_whose_process_failed_is_asked_for_again() -> None:
    """The islands are still in the table, and the next process may do it."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.plan is not None
    assert observed.table is not None
    known = observed.table.content_hash or ""
    begun = with_replan(PlanState(), observed.plan, observed.table, ReplanKind.REPAIR, known)
    failed = begun.with_replan_failure(NOW)
    (wait,) = actions_of(observed, failed, NOW)
    assert isinstance(wait, Requeue)
    again = replace(NOW, monotonic=NOW.monotonic + wait.seconds)
    assert [type(a) for a in actions_of(observed, failed, again)] == [StartReplan]


def test_a_table_in_shards_is_repaired_at_once_whatever_is_under_way() -> None:
    """No process is asked, so neither a window under way nor a failed request is waited for."""
    calm = settled()
    assert calm.plan is not None
    assert calm.table is not None
    lost = replace(calm.plan, live=LiveStatus(lost_nodes=frozenset({"n2"})))
    shards = shards_of(calm.plan.key.name, split(OLD, 60))
    holders = {
        shard.name: ShardObject.from_body(
            as_stored(shard_manifest(calm.plan, None, shard, piece.of(OLD), 1))
        )
        for shard, piece in zip(shards, split(OLD, 60), strict=True)
    }
    table = replace(calm.table, shards=shards)
    observed = replace(calm, plan=lost, table=table, shards=holders)
    busy = PlanState(
        request=PendingReplan("window-1", lost.inputs_hash, content_hash=table.content_hash or ""),
        replan_retry=Retry(1, NOW.monotonic + 100),
    )
    repair = StartReplan(ReplanKind.REPAIR, "islands on lost nodes: 1")
    assert repair in actions_of(observed, busy, NOW)
    tried = replace(busy, failed_repairs=frozenset({"b"}))
    assert repair not in actions_of(observed, tried, NOW)


def test_a_lost_node_under_no_island_of_the_table_is_nothing() -> None:
    assert actions_of(settled(LiveStatus(lost_nodes=frozenset({"n9"}))), PlanState(), NOW) == ()


def test_nothing_is_decided_on_half_a_list_of_nodes() -> None:
    splan = live_plan(LiveStatus(nodes_listed=False))
    pools = [{"name": "p", "nodeSelector": {"a": "b"}}]
    selecting = replace(splan, spec={**splan.spec, "pools": pools})

    assert actions_of(observation(selecting), PlanState(), NOW) == ()


def test_tables_of_a_change_come_in_order_and_carry_their_mark() -> None:
    """Away from the island at once; the change when it has drained; back when its pod is ready."""
    pods = {"a": IslandPods(ready=False, phase="decode", pods=1, gpus=8, nodes=frozenset({"n1"}))}
    live = LiveStatus(pods=pods)
    observed = settled(live)
    answer = decided("window-1", (DRAINED, "None"), (CHANGED, "Drain"), (NEW, "Ready"))
    reserved = status_text.last_sequence(observed.plan, observed.table)  # type: ignore[arg-type]
    state = replace(after(observed, answer), reserved=reserved)

    writes = [a for a in _go(observed, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(DRAINED, TableOrigin.CHANGING)]

    drained = _stored_and_reported(observed, state, DRAINED, TableOrigin.CHANGING)
    state = state.with_table_written(NOW)
    assert not next_step_due(drained, state, later(DRAIN - 1))
    assert next_step_due(drained, state, later(DRAIN))
    state = state.with_next_step(1 << 20)
    assert state.result.content == CHANGED  # type: ignore[union-attr]

    changed = _stored_and_reported(drained, state, CHANGED, TableOrigin.CHANGING)
    state = state.with_table_written(later(DRAIN))
    assert not next_step_due(changed, state, later(500))  # its pod is not ready
    ready_pod = {"a": replace(pods["a"], ready=True, phase="prefill"), "b": pods["a"]}
    good = replace(changed, plan=replace(changed.plan, live=LiveStatus(pods=ready_pod)))  # type: ignore[type-var]
    assert next_step_due(good, state, later(500))
    state = state.with_next_step(1 << 20)
    last = [a for a in _go(good, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in last] == [(NEW, TableOrigin.REPLANNED)]


def _go(observed: Observation, state: PlanState) -> tuple[object, ...]:
    """Decisions until the table is to be written: a sequence is promised first."""
    for _ in range(2):
        actions = actions_of(observed, state, NOW)
        reservation = next((a for a in actions if isinstance(a, WriteStatus)), None)
        if reservation is None:
            return actions
        assert observed.plan is not None
        observed = replace(observed, plan=replace(observed.plan, status=reservation.status))
        state = replace(state, reserved=reservation.reserves)
    return actions_of(observed, state, NOW)


def _stored_and_reported(
    observed: Observation, state: PlanState, text: str, origin: TableOrigin
) -> Observation:
    assert observed.plan is not None
    table = stored(observed.plan, text, origin, sequence=9)
    result = state.result
    assert result is not None
    status = status_text.published(observed.plan, result, table, T0)  # type: ignore[arg-type]
    return observation(replace(observed.plan, status=status), table)


def test_without_any_pod_of_the_plan_a_change_waits_as_long_as_a_drain() -> None:
    observed = settled()
    state = after(observed, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not next_step_due(observed, state, later(DRAIN - 1))
    assert next_step_due(observed, state, later(DRAIN))


def test_pods_that_never_become_ready_are_given_up() -> None:
    observed = settled()
    state = after(observed, decided("window-1", (DRAINED, "None"), (NEW, "Ready")))
    state = state.with_table_written(NOW)

    assert not rollout_timed_out(observed.plan, state, later(PATIENCE - 1))
    assert rollout_timed_out(observed.plan, state, later(PATIENCE))
    assert state.without_steps(("", 0), NOW).steps == ()


def test_a_loss_during_a_roll_out_is_repaired_at_once() -> None:
    observed = settled()
    state = after(observed, decided("window-1", (OLD, "None"), (NEW, "Drain"))).with_table_written(
        NOW
    )
    state = reported(state)
    rolling = _stored_and_reported(observed, state, OLD, TableOrigin.CHANGING)
    assert rolling.plan is not None
    live = LiveStatus(lost_nodes=frozenset({"n1"}))
    damaged = replace(rolling, plan=replace(rolling.plan, live=live))

    assert not next_step_due(damaged, state, later(DRAIN))
    assert [a.kind for a in actions_of(damaged, state, later(1)) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]


def test_a_repair_does_not_wait_for_a_plan_and_the_plan_is_still_made() -> None:
    """The table answers older inputs: what comes of the repair does not count as the answer."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n1"})))
    assert observed.plan is not None
    edited = replace(observed.plan, inputs_hash="newer", generation=2)
    acknowledged = replace(edited, status=status_text.planning(edited, 2, T0))
    planning = PlanState().with_planning("newer")
    damaged = replace(observed, plan=acknowledged)
    assert [a.kind for a in actions_of(damaged, planning, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]

    pending = planning.with_request(ReplanKind.REPAIR, PendingReplan("", "newer", TableOrigin.OWED))
    answer = decided("repair-1", (NEW, "None"), trigger="Repair", level="Keep")
    state = pending.with_replan(answer, acknowledged.inputs_hash, NOW)
    writes = [a for a in _go(damaged, state) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(NEW, TableOrigin.OWED)]

    table = replace(stored(acknowledged, NEW, TableOrigin.OWED, sequence=2))
    after_it = observation(replace(acknowledged, live=LiveStatus()), table)
    kinds = [type(a) for a in actions_of(after_it, state.with_table_written(NOW), NOW)]
    assert StartPlanning in kinds


def test_what_the_answer_wants_is_asked_next() -> None:
    observed = settled()
    state = after(
        observed, decided("repair-1", requestedLevel="Reroute", trigger="None", level="Keep")
    )
    assert [a.kind for a in actions_of(observed, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.WINDOW
    ]

    solve = after(
        observed, decided("window-2", requestedLevel="Reshape", trigger="None", level="Keep")
    )
    assert [a.kind for a in actions_of(observed, solve, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.SOLVE
    ]


def test_a_question_without_an_answer_is_asked_later_and_later() -> None:
    observed = settled(LiveStatus(lost_nodes=frozenset({"n1"})))
    state = PlanState().with_replan_failure(NOW)
    assert actions_of(observed, state, later(1)) == (Requeue(4.0, "the last request failed"),)
    assert [type(a) for a in actions_of(observed, state, later(5))] == [StartReplan]
    for _ in range(20):
        state = state.with_replan_failure(NOW)
    assert state.replan_retry.at == NOW.monotonic + REPLAN_RETRY.longest


def test_what_replanning_made_survives_a_restart_and_an_edit_of_replanning() -> None:
    """The inputs of the plan are the same: its table is taken, nothing is planned."""
    observed = settled(origin=TableOrigin.REPLANNED)
    assert actions_of(observed, PlanState(), NOW) == ()
    assert observed.plan is not None
    edited = replace(observed.plan, generation=2)
    actions = actions_of(replace(observed, plan=edited), PlanState(), NOW)

    assert [type(a) for a in actions] == [AdoptTable]


def test_a_roll_out_that_nobody_remembers_is_planned_to_its_end() -> None:
    actions = actions_of(settled(origin=TableOrigin.ROLLING), PlanState(), NOW)

    assert [type(a) for a in actions] == [StartPlanning]


def test_a_change_that_nobody_remembers_is_led_on_by_the_next_window() -> None:
    """Its pods may be starting, and the stated rates may not be those of its traffic."""
    observed = settled(origin=TableOrigin.CHANGING)
    assert actions_of(observed, PlanState(), NOW) == ()
    assert observed.plan is not None
    seen = replace(observed, plan=replace(observed.plan, live=LiveStatus(traffic=window())))
    assert [type(a) for a in actions_of(seen, PlanState(), NOW)] == [StartReplan]
    blind = replace(observed.plan, spec={**observed.plan.spec, "replanning": {}})
    actions = actions_of(replace(observed, plan=blind), PlanState(), NOW)
    assert [type(a) for a in actions] == [StartPlanning]


def test_other_nodes_are_other_inputs() -> None:
    observed = settled()
    assert observed.plan is not None
    other = observed.plan.with_nodes({**observed.plan.spec, "pools": [{"name": "p", "count": 8}]})

    kinds = [type(a) for a in actions_of(replace(observed, plan=other), PlanState(), NOW)]
    assert StartPlanning in kinds
    assert other.to_resource()["spec"]["pools"] == [{"name": "p", "count": 8}]


def test_traffic_says_nothing_where_there_is_no_plan_for_the_inputs() -> None:
    observed = settled(LiveStatus(traffic=window()))
    assert observed.plan is not None
    none = PlanFailed(observed.plan.inputs_hash, Reason.INFEASIBLE, "too few GPUs")
    state = PlanState().with_planning(observed.plan.inputs_hash).with_result(none, NOW)

    assert not [a for a in actions_of(observed, state, NOW) if isinstance(a, StartReplan)]


def test_without_nodes_to_plan_with_the_last_table_stays() -> None:
    refusal = Finding(ConditionStatus.FALSE, Reason.NO_NODES, "pool h200 has no node")
    observed = settled(LiveStatus(refusal=refusal, traffic=window()))
    actions = actions_of(observed, PlanState(), NOW)

    assert [type(a) for a in actions] == [WriteStatus, EmitEvent]
    conditions = {c.type: (c.status, c.reason) for c in actions[0].status.conditions}  # type: ignore[union-attr]
    assert conditions[ConditionType.READY] == (ConditionStatus.FALSE, Reason.NO_NODES)
    assert conditions[ConditionType.PUBLISHED] == (ConditionStatus.TRUE, Reason.LAST_GOOD_KEPT)


def test_an_approval_is_passed_on_once() -> None:
    observed = at_rest(live_plan(approve="a" * 64), LiveStatus(traffic=window(at=1.0)))
    earlier = PlanState(replan=ReplanMemory(last_window=1.0))
    assert [type(a) for a in actions_of(observed, earlier, NOW)] == [StartReplan]
    approved = PlanState(replan=ReplanMemory(last_window=1.0, approved="a" * 64))
    assert actions_of(observed, approved, NOW) == ()


def test_conditions_of_a_live_plan_say_what_is_found() -> None:
    nodes = Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, "GPUs in use by pool: a 8")
    lost = Finding(ConditionStatus.FALSE, Reason.SOURCE_FAILED, "main: no answer")
    observed = settled(LiveStatus(inventory=nodes, metrics=lost))
    (write, *_) = actions_of(observed, PlanState(), NOW)

    assert isinstance(write, WriteStatus)
    conditions = {c.type: (c.status, c.reason) for c in write.status.conditions}
    assert conditions[ConditionType.INVENTORY_RESOLVED] == (
        ConditionStatus.TRUE,
        Reason.NODES_FOUND,
    )
    assert conditions[ConditionType.METRICS_AVAILABLE] == (
        ConditionStatus.FALSE,
        Reason.SOURCE_FAILED,
    )
    assert conditions[ConditionType.READY] == (ConditionStatus.TRUE, Reason.PUBLISHED)


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
    observed = settled()
    state = after(observed, decided("window-1", **facts))
    assert observed.plan is not None
    state = replace(state, result=None)

    events = [a for a in actions_of(observed, state, NOW) if isinstance(a, EmitEvent)]
    assert [event.reason for event in events] == [reason]


def test_an_answered_request_is_not_repeated() -> None:
    """Two operators that both decided would else write over each other for ever."""
    state = after(settled(), decided("window-1"))
    assert state.unreported
    assert state.with_status(Status(last_decision={"level": "Reroute"})).unreported
    assert not state.with_status(Status(last_decision=state.decision)).unreported


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
        type(a) for a in actions_of(observation(with_early_status(live_plan())), PlanState(), NOW)
    ]


def on_nodes(live: LiveStatus, origin: TableOrigin) -> Observation:
    """A plan at rest one of whose pools finds its nodes."""
    pool = {"name": "p", "accelerator": "H100", "nodeSelector": {"pool": "p"}}
    splan = replace(plan(spec={"replanning": REPLANNING, "pools": [pool]}), live=None)
    assert splan.selects_nodes
    return at_rest(splan, live, origin)


def test_a_table_on_nodes_that_went_while_it_was_made_is_repaired_before_it_is_stored() -> None:
    """Once; where nothing is left of it, what is stored stays."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.plan is not None
    edited = replace(observed.plan, inputs_hash="newer", generation=2)
    acknowledged = replace(edited, status=status_text.planning(edited, 2, T0))
    damaged = replace(observed, plan=acknowledged)
    steps = [
        TableStep(content=text, nodes=("n1", node)) for text, node in ((DRAINED, "n2"), (NEW, "n3"))
    ]
    result = decode_result("newer", plan_reply(*steps))
    assert isinstance(result, PlanReady)
    state = PlanState().with_planning("newer").with_result(result, NOW)

    assert [a.kind for a in actions_of(damaged, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]

    pending = state.with_request(
        ReplanKind.REPAIR, PendingReplan("", "newer", TableOrigin.REPAIRED, result.content_hash)
    )
    assert actions_of(damaged, pending, NOW) == ()
    answer = decided("repair-1", (CHANGED, "None"), trigger="Repair", level="Keep")
    repaired = pending.with_replan(answer, acknowledged.inputs_hash, NOW)
    writes = [a for a in _go(damaged, repaired) if isinstance(a, WriteTable)]
    assert [(w.content, w.origin) for w in writes] == [(CHANGED, TableOrigin.REPAIRED)]

    unrepaired = pending.with_replan(decided("repair-1"), acknowledged.inputs_hash, NOW)
    assert not [
        a for a in actions_of(damaged, unrepaired, NOW) if isinstance(a, WriteTable | StartReplan)
    ]


def test_a_plan_ends_the_question_about_the_table_before_it() -> None:
    """Else the old table, repaired, would be stored over the new one."""
    pending = (
        PlanState()
        .with_planning("newer")
        .with_request(ReplanKind.REPAIR, PendingReplan(inputs_hash="newer"))
    )
    result = replace(plan_ready("newer", NEW, {}, ""))
    assert pending.request is not None

    assert pending.with_result(result, NOW).request is None


def test_a_repaired_table_is_planned_again_after_a_restart_where_its_nodes_are_back() -> None:
    """The inputs are those that it answers, and yet it is without nodes that there are."""
    actions = actions_of(on_nodes(LiveStatus(), TableOrigin.REPAIRED), PlanState(), NOW)
    assert [type(a) for a in actions] == [StartPlanning]

    assert (
        actions_of(
            on_nodes(LiveStatus(plan_nodes_lost=True), TableOrigin.REPAIRED), PlanState(), NOW
        )
        == ()
    )


def test_a_full_plan_gets_the_memory_and_keeps_its_name() -> None:
    """What islands taught of times goes with it; the hash of its inputs is that of the spec."""
    observed = settled()
    assert observed.plan is not None
    state = PlanState(
        replan=ReplanMemory(state={"calibration": {"used": []}}, state_at=NOW.monotonic - 7)
    )
    job = plan_job(observed.plan, None, state, NOW)
    assert isinstance(job.request, PlanRequest)
    assert job.request.state == {"calibration": {"used": []}}
    assert job.request.age == 7.0
    assert job.inputs_hash == observed.plan.inputs_hash
    anew = plan_job(observed.plan, None, PlanState(), NOW)
    assert isinstance(anew.request, PlanRequest)
    assert (anew.request.state, anew.request.age) == ({}, 0.0)


def test_the_inventory_is_refreshed_once_if_no_repair_helps() -> None:
    observed = on_nodes(LiveStatus(lost_nodes=frozenset({"n1", "n2"})), TableOrigin.PLANNED)
    assert observed.table is not None
    state = PlanState(
        irreparable=observed.table.content_hash or "", failed_repairs=frozenset({"a", "b"})
    )
    actions, state = decide(observed, state, NOW)
    assert [type(a) for a in actions] == [RefreshInventory]
    assert RefreshInventory not in [type(a) for a in actions_of(observed, state, NOW)]


def test_a_result_that_nobody_waits_for_changes_nothing() -> None:
    observed = settled()
    assert receive(observed, PlanState(), decided("window-1"), NOW) == (PlanState(), False)
    pending = PlanState().with_request(
        ReplanKind.WINDOW, PendingReplan(inputs_hash="older"), window=1.0
    )
    state, accepted = receive(observed, pending, decided("window-1"), NOW)
    assert (state.request, accepted) == (None, False)  # the plan is another one now


def test_a_change_that_failed_is_taken_back_and_named_to_the_next_requests() -> None:
    observed = settled(LiveStatus(traffic=window(at=8.0)))
    assert observed.plan is not None
    answer = decided("window-1", (DRAINED, "None"), (NEW, "Ready"), change="c" * 64)
    state = replace(PlanState(), base=OLD).with_replan(answer, observed.plan.inputs_hash, NOW)
    state = reported(state.with_table_written(NOW))
    failed = state.without_steps((observed.plan.inputs_hash, 1), later(PATIENCE))

    assert failed.failed.goal == OLD
    assert failed.failed.avoided(later(PATIENCE)) == ("c" * 64,)
    assert failed.failed.avoided(later(PATIENCE + 1800)) == ()
    rolling = replace(observed, table=stored(observed.plan, DRAINED, TableOrigin.CHANGING))
    actions = actions_of(rolling, replace(failed, result=None, planning="x"), NOW)
    assert not any(isinstance(action, StartReplan) for action in actions)
    again = failed.with_replan(decided("rollback-2", (OLD, "Ready")), "", later(PATIENCE))
    assert again.failed.goal == ""
    assert again.failed.avoided(later(PATIENCE)) == ("c" * 64,)
    assert again.ready is not None
    assert again.ready.before == ""  # a way back is not taken back


def test_an_edit_that_failed_is_not_tried_again_at_once() -> None:
    """Its earlier table is in use, Ready is False, and windows of it lead to nothing."""
    observed = at_rest(live_plan(), LiveStatus(traffic=window()), TableOrigin.RETURNED)
    assert observed.plan is not None
    failed = FailedChanges(plan=(observed.plan.inputs_hash, 1), plan_until=NOW.monotonic + 60)
    state = PlanState(failed=failed)

    actions = actions_of(observed, state, NOW)
    assert not any(isinstance(a, StartPlanning | StartReplan | AdoptTable) for a in actions)
    (status,) = [a.status for a in actions if isinstance(a, WriteStatus)]
    ready = status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, Reason.PODS_NOT_READY)

    assert any(isinstance(a, StartPlanning) for a in actions_of(observed, state, later(61)))
    edited = replace(state, failed=replace(failed, plan=("another", 1)))
    assert any(isinstance(a, StartPlanning) for a in actions_of(observed, edited, NOW))


def test_an_island_that_is_not_ready_leaves_the_routes_at_once() -> None:
    """Only if requests go to it; not again if no table does without it; back when it is ready."""
    ready = IslandPods(ready=True, phase="", pods=1, gpus=8, nodes=frozenset())
    splan = live_plan()
    table = stored(splan)
    islands = TableIslands((n, replace(i, routed=True)) for n, i in table.islands.items())
    table = replace(table, islands=islands)
    pods = {"a": ready, "b": replace(ready, ready=False)}
    status = settled().plan.status  # type: ignore[union-attr]
    observed = observation(replace(splan, status=status, live=LiveStatus(pods=pods)), table)

    observed = _said(observed, PlanState())
    (repair,) = [a for a in actions_of(observed, PlanState(), NOW) if isinstance(a, StartReplan)]
    assert repair.kind is ReplanKind.REPAIR
    assert observed.plan is not None
    begun = with_replan(PlanState(), observed.plan, table, repair.kind, table.content_hash or "")
    assert begun.request is not None
    assert begun.request.origin is TableOrigin.DRAINED
    tried = PlanState(failed_repairs=frozenset({"b"}), irreparable=table.content_hash or "")
    (said,) = [a.status for a in actions_of(observed, tried, NOW) if isinstance(a, WriteStatus)]
    ready_now = said.condition(ConditionType.READY)
    assert ready_now is not None
    assert (ready_now.status, ready_now.reason) == (ConditionStatus.FALSE, Reason.PODS_NOT_READY)
    observed = _said(observed, tried)
    assert not any(isinstance(a, StartReplan) for a in actions_of(observed, tried, NOW))
    idle = TableIslands((n, replace(i, routed=n != "b")) for n, i in islands.items())
    calm = _said(replace(observed, table=replace(table, islands=idle)), PlanState())
    assert not any(isinstance(a, StartReplan) for a in actions_of(calm, PlanState(), NOW))


def _said(observed: Observation, state: PlanState) -> Observation:
    """The plan once its status says what is new."""
    for action in actions_of(observed, state, NOW):
        if isinstance(action, WriteStatus) and observed.plan is not None:
            return replace(observed, plan=replace(observed.plan, status=action.status))
    return observed
