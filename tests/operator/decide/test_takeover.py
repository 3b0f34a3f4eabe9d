"""Two operators of one live plan: whose the stored table is, and what of ours it leaves."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from archipelago.operator.apply.observation import ObservationBuilder
from archipelago.operator.apply.replanning import PlanExecutor
from archipelago.operator.apply.tables import Tables
from archipelago.operator.decide.actions import (
    Action,
    Requeue,
    StartPlanning,
    StartReplan,
    WriteTable,
)
from archipelago.operator.decide.rollout import PATIENCE, next_step_due
from archipelago.operator.decide.state import PendingReplan, PlanState
from archipelago.operator.decide.status_text import published, refreshed
from archipelago.operator.decide.takeover import (
    LAG,
    WRITER_REPORTS,
    follow,
    synchronise,
    yield_until,
)
from archipelago.operator.inventory.debounce import EVERY
from archipelago.operator.inventory.flap_damping import DAMPING
from archipelago.operator.planning.messages import decode_result
from archipelago.operator.planning.pool import PlannerPool
from archipelago.operator.planning.result import PlanReady
from archipelago.operator.resources.live import IslandPods, LiveStatus, ReplanKind, TableOrigin
from archipelago.operator.resources.objects import Observation, PlanObject, TableObject
from archipelago.operator.resources.status import ConditionStatus, ConditionType, Finding, Reason
from archipelago.operator.traffic.watcher import TrafficWatcher
from archipelago.planner.plan import Wait
from archipelago.planner.service.messages import TableStep
from tests.operator.decide.test_rollout import (
    CHANGED,
    DRAIN,
    DRAINED,
    NEW,
    OLD,
    REPLANNING,
    content,
    settled,
    stored,
)
from tests.operator.inventory.test_cluster_inventory import World
from tests.support.operator.situations import (
    NOW,
    T0,
    actions_of,
    later,
    observation,
    plan,
    plan_reply,
    with_early_status,
)

LIMIT = 1 << 20
STRANGE = content(weight=99)
ROLLED = ((DRAINED, Wait.NONE), (CHANGED, Wait.DRAIN), (NEW, Wait.READY))
"""The tables of our answer."""


def plan_at_rest() -> PlanObject:
    splan = settled().plan
    assert splan is not None
    return splan


def answer(splan: PlanObject) -> PlanReady:
    """Ours to an edit: three tables, made over the old one."""
    steps = [TableStep(content=text, wait=wait, islands=("a",)) for text, wait in ROLLED]
    result = decode_result(splan.inputs_hash, plan_reply(*steps))
    assert isinstance(result, PlanReady)
    return result


def before() -> tuple[PlanObject, PlanState]:
    """The old table lies there, and our answer is to be stored over it."""
    splan = plan_at_rest()
    old = stored(splan)
    state = synchronise(observation(splan, old), PlanState(), later(-10), LIMIT)
    planning = state.with_planning(splan.inputs_hash, old.content_hash)
    return splan, planning.with_result(answer(splan), NOW)


def after(
    text: str, origin: TableOrigin = TableOrigin.ROLLING, sequence: int = 7
) -> tuple[Observation, PlanState]:
    """What is left of that once somebody stored this."""
    splan, state = before()
    observed = observation(splan, stored(splan, text, origin, sequence))
    return observed, synchronise(observed, state, NOW, LIMIT)


def kinds(actions: tuple[Action, ...]) -> set[type[Action]]:
    return {type(action) for action in actions}


def test_an_answer_is_stored_over_what_it_was_made_over() -> None:
    splan, state = before()
    observed = observation(with_early_status(splan), stored(splan))
    assert synchronise(observed, state, NOW, LIMIT) == state
    assert isinstance(state.result, PlanReady)
    assert state.result.base_hash == stored(splan).content_hash


def test_a_request_in_between_does_not_change_what_runs_beside_a_plan() -> None:
    splan = plan_at_rest()
    planning = PlanState().with_planning(splan.inputs_hash, "first")
    pending = planning.with_request(ReplanKind.WINDOW, PendingReplan(base_hash="second"))
    result = pending.with_result(answer(splan), NOW).result
    assert isinstance(result, PlanReady)
    assert result.base_hash == "first"


@pytest.mark.parametrize(("text", "remaining"), [(DRAINED, 2), (CHANGED, 1), (NEW, 0)])
def test_who_came_late_goes_on_from_the_stored_step(text: str, remaining: int) -> None:
    """The answer has that step too: it counts as stored, and the next one is ours to store."""
    observed, state = after(text)
    assert isinstance(state.result, PlanReady)
    assert (state.result.content, len(state.steps)) == (None, remaining)
    assert state.result.content_hash == observed.table.content_hash if observed.table else False
    assert state.result.adopted


def test_who_stored_the_last_step_goes_first_with_the_next() -> None:
    observed, state = after(DRAINED)
    assert observed.plan is not None
    after_drain = later(DRAIN)
    assert not next_step_due(observed, state, after_drain)  # whoever stored it does so now
    assert next_step_due(observed, state, later(DRAIN + LAG))
    assert [a.seconds for a in actions_of(observed, state, NOW) if isinstance(a, Requeue)][
        -1
    ] == LAG

    following = state.with_next_step(LIMIT).result
    assert isinstance(following, PlanReady)
    assert following.base_hash == observed.table.content_hash if observed.table else False


def test_a_write_whose_answer_was_lost_is_ours_all_the_same() -> None:
    splan, state = before()
    observed = observation(splan, stored(splan, DRAINED, TableOrigin.ROLLING, 7))
    state = synchronise(observed, replace(state, reserved=0, last_sequence=7), NOW, LIMIT)
    assert isinstance(state.result, PlanReady)
    assert (state.result.adopted, state.rollout.step_at) == (False, NOW.monotonic)
    assert next_step_due(observed, state, later(DRAIN))


def test_over_another_table_the_answer_is_dropped_and_losses_are_asked_about_again() -> None:
    splan, state = before()
    state = replace(state, failed_repairs=frozenset({"a"}), unreported=True)
    observed = observation(splan, stored(splan, STRANGE, TableOrigin.ROLLING, 7))
    dropped = synchronise(observed, state, NOW, LIMIT)
    assert (dropped.result, dropped.failed_repairs) == (None, frozenset())
    assert not dropped.unreported  # what was decided did not come to be


def test_the_rest_of_a_roll_out_is_dropped_once_another_table_lies_there() -> None:
    """Step k+1 is stored over step k and over nothing else."""
    splan, state = before()
    state = synchronise(
        observation(splan, stored(splan, DRAINED, TableOrigin.ROLLING, 7)), state, NOW, LIMIT
    )
    assert len(state.steps) == 2
    state = synchronise(
        observation(splan, stored(splan, STRANGE, TableOrigin.REPLANNED, 8)), state, later(1), LIMIT
    )
    assert (state.result, state.steps) == (None, ())


def test_a_table_that_somebody_changed_is_no_other_operators() -> None:
    splan, state = before()
    spoilt = replace(stored(splan, STRANGE, sequence=7), written_hash="else")
    assert synchronise(observation(splan, spoilt), state, NOW, LIMIT) == state


def seconds_until_free(
    splan: PlanObject, table: TableObject, state: PlanState, *, old: bool = True
) -> float:
    """For how long from now the table is left to who stored it [s]."""
    return yield_until(splan, table, state, old=old) - NOW.monotonic


def test_a_roll_out_of_another_operator_is_left_to_it_until_it_stands_still() -> None:
    """A minute after the drain, or as long as pods may take to start."""
    observed, state = after(STRANGE)
    assert observed.plan is not None
    assert observed.table is not None
    assert seconds_until_free(observed.plan, observed.table, state) == DRAIN + EVERY
    starting = LiveStatus(
        pods={"b": IslandPods(ready=True, phase="decode", pods=1, gpus=8, nodes=frozenset({"n2"}))}
    )
    assert (
        seconds_until_free(replace(observed.plan, live=starting), observed.table, state)
        == DRAIN + PATIENCE
    )

    yielding = replace(
        observed, plan=replace(observed.plan, live=LiveStatus(yield_until=NOW.monotonic + 70))
    )
    waits = [a for a in actions_of(yielding, state, NOW) if isinstance(a, Requeue)]
    assert [wait.seconds for wait in waits] == [70]
    assert StartPlanning not in kinds(actions_of(yielding, state, NOW))
    assert StartPlanning in kinds(actions_of(observed, state, later(71)))  # it is over


def test_a_roll_out_that_lay_there_when_we_began_is_nobodys() -> None:
    splan = plan_at_rest()
    table = stored(splan, DRAINED, TableOrigin.ROLLING, 7)
    state = synchronise(observation(splan, table), PlanState(), NOW, LIMIT)
    assert seconds_until_free(splan, table, state) < 0

    none_yet = synchronise(observation(splan), PlanState(), NOW, LIMIT)
    came = synchronise(observation(splan, table), none_yet, NOW, LIMIT)
    assert seconds_until_free(splan, table, came) == DRAIN + EVERY


def test_a_plan_that_is_owed_is_made_by_who_owes_it() -> None:
    observed, state = after(STRANGE, TableOrigin.OWED)
    assert observed.plan is not None
    assert observed.table is not None
    assert seconds_until_free(observed.plan, observed.table, state) == EVERY


def test_losses_are_repaired_in_a_table_that_is_left_to_another() -> None:
    observed, state = after(STRANGE)
    assert observed.plan is not None
    live = LiveStatus(yield_until=NOW.monotonic + 70, lost_nodes=frozenset({"n2"}))
    actions = actions_of(replace(observed, plan=replace(observed.plan, live=live)), state, NOW)
    assert [a.kind for a in actions if isinstance(a, StartReplan)] == [ReplanKind.REPAIR]


def test_other_nodes_are_no_reason_to_plan_over_anothers_table_for_a_while() -> None:
    """News wait for the pace, counted from whoever planned last; what is no news, for much more."""
    splan, state = before()
    state = replace(state, result=None)
    others = replace(stored(splan, STRANGE, TableOrigin.PLANNED, 7), inputs_hash="others")
    state = synchronise(observation(splan, others), state, NOW, LIMIT)

    assert seconds_until_free(splan, others, state, old=False) == EVERY
    assert seconds_until_free(splan, others, state, old=True) == DAMPING.longest
    assert seconds_until_free(replace(splan, spec_hash="edited"), others, state) < 0
    irreparable = replace(state, irreparable=others.content_hash or "")
    assert seconds_until_free(splan, others, irreparable) < 0  # nothing is left of it

    repaired = replace(others, origin=TableOrigin.REPAIRED, identity=others.identity)
    state = synchronise(observation(splan, repaired), state, later(30), LIMIT)
    assert seconds_until_free(splan, repaired, state, old=False) == EVERY  # a repair is no plan


def test_the_first_table_after_an_edit_does_not_count_for_the_pace() -> None:
    """Else nodes that come a moment after an edit would be planned with a minute later."""
    splan, state = before()
    edited = replace(stored(splan, STRANGE, sequence=7), inputs_hash="others", spec_hash="edited")
    state = synchronise(observation(splan, edited), state, NOW, LIMIT)
    assert seconds_until_free(replace(splan, spec_hash="edited"), edited, state, old=False) < 0


def test_a_plan_over_a_step_waits_until_requests_had_time_to_end() -> None:
    """The step may have been stored a moment ago; where nodes are gone nothing is waited for."""
    splan = plan_at_rest()
    table = stored(splan, STRANGE, TableOrigin.ROLLING, 7)
    state = synchronise(observation(splan, table), PlanState(), NOW, LIMIT)
    planning = state.with_planning(splan.inputs_hash, table.content_hash)
    state = replace(planning.with_result(answer(splan), NOW), reserved=8)
    acknowledged = replace(splan, status=with_early_status(splan, table).status, live=LiveStatus())
    observed = observation(acknowledged, table)

    assert [a.seconds for a in actions_of(observed, state, later(4)) if isinstance(a, Requeue)] == [
        DRAIN - 4
    ]
    assert kinds(actions_of(observed, state, later(DRAIN))) == {WriteTable}
    damaged = replace(acknowledged, live=LiveStatus(lost_nodes=frozenset({"n2"})))
    assert kinds(actions_of(replace(observed, plan=damaged), state, later(4))) == {WriteTable}


def test_who_stored_a_table_says_so_in_its_own_words() -> None:
    observed, state = after(NEW, TableOrigin.PLANNED)
    assert observed.plan is not None
    assert observed.table is not None
    waits = [a.seconds for a in actions_of(observed, state, NOW) if isinstance(a, Requeue)]
    assert waits == [WRITER_REPORTS]
    assert WriteTable not in kinds(actions_of(observed, state, NOW))
    assert isinstance(state.result, PlanReady)
    words = published(observed.plan, replace(state.result, message="theirs"), observed.table, T0)
    reported = replace(observed, plan=replace(observed.plan, status=words))
    assert actions_of(reported, state, later(WRITER_REPORTS)) == ()  # ours would be others
    assert actions_of(observed, state, later(WRITER_REPORTS)) != ()  # nobody said it


class Stored(Tables):
    """The stored table."""

    def __init__(self) -> None:
        """Nothing is asked of a cluster."""

    async def content(self, plan: PlanObject, table: TableObject) -> str:  # noqa: ARG002
        return OLD


def test_a_plan_that_leaves_a_repaired_table_as_it_is_makes_it_whole() -> None:
    """The content is the same and the mark is not: else it would be planned again for ever."""
    splan = plan_at_rest()
    table = stored(splan, OLD, TableOrigin.REPAIRED, 7)
    state = synchronise(observation(splan, table), PlanState(), NOW, LIMIT)
    result = decode_result(splan.inputs_hash, plan_reply(TableStep(content=OLD)))
    assert isinstance(result, PlanReady)
    state = state.with_planning(splan.inputs_hash, table.content_hash).with_result(result, NOW)
    acknowledged = replace(splan, status=with_early_status(splan, table).status, live=LiveStatus())

    observed = observation(acknowledged, table)
    assert synchronise(observed, state, NOW, LIMIT) == state
    writes = [
        a
        for a in actions_of(observed, replace(state, reserved=8), NOW)
        if isinstance(a, WriteTable)
    ]
    assert [write.origin for write in writes] == [TableOrigin.PLANNED]
    whole = observation(acknowledged, stored(splan, OLD, TableOrigin.PLANNED, 8))
    done = synchronise(whole, state, NOW, LIMIT).result
    assert isinstance(done, PlanReady)
    assert done.content is None


def test_a_table_that_was_taken_is_repaired_as_any_other() -> None:
    """What lies there is not to be stored once more."""
    observed = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert observed.plan is not None
    assert observed.table is not None
    no_pool = cast("PlannerPool", None)
    plans = PlanExecutor(Stored(), no_pool, no_pool, LIMIT)
    adopted = asyncio.run(plans.adopted(observed.plan, observed.table, ()))
    assert adopted is not None
    assert adopted.content is None
    state = PlanState().with_result(adopted, NOW)
    assert [a.kind for a in actions_of(observed, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]


def test_what_was_said_of_nodes_is_not_insisted_on() -> None:
    """Two operators that see different nodes would else write over each other for ever."""
    six, five = (Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, f"{n} nodes") for n in (6, 5))
    splan = replace(plan_at_rest(), live=LiveStatus(inventory=six))
    own_status = refreshed(splan, T0)
    state = PlanState().with_status(own_status, splan.live)
    assert state.reported == {six}
    other_status = refreshed(replace(splan, live=LiveStatus(inventory=five)), T0)

    reread = replace(
        splan, status=other_status, live=LiveStatus(inventory=six, reported=state.reported)
    )
    assert refreshed(reread, T0).says_the_same(other_status)
    assert state.with_status(other_status, reread.live).reported == {six}  # still
    changed = replace(reread, live=LiveStatus(inventory=five, reported=frozenset({six})))
    condition = refreshed(replace(changed, status=own_status), T0).condition(
        ConditionType.INVENTORY_RESOLVED
    )
    assert condition is not None
    assert condition.message == "5 nodes"


def test_what_the_status_did_not_say_was_not_said() -> None:
    """The status of a plan that is being made speaks of no nodes."""
    splan = replace(plan(spec={"replanning": REPLANNING}), live=LiveStatus())
    finding = Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, "6 nodes")
    begun = replace(splan, live=LiveStatus(inventory=finding))
    assert (
        PlanState().with_status(with_early_status(begun).status, begun.live).reported == frozenset()
    )


class Unwatched:
    """No source of metrics."""

    def traffic(self, _key: object) -> None:
        """Nothing."""

    def finding(self, _plan: object) -> None:
        """Nothing."""

    def forget(self, _key: object) -> None:
        """Nothing."""


class Pair:
    """What one of two operators makes of the nodes; time is that of its inventory."""

    def __init__(self, *names: str) -> None:
        self.world = World()
        self.observations = ObservationBuilder(
            self.world.inventory, cast("TrafficWatcher", Unwatched())
        )
        self.state = PlanState()
        pool = {"name": "h100", "accelerator": "H100", "nodeSelector": {"pool": "p"}}
        self.plan = plan(spec={"replanning": REPLANNING, "pools": [pool]})
        self.observations.update_all([self.plan])
        self.world.inventory.begin_list()
        for name in names:
            self.report(name)
        self.world.inventory.replace_nodes(set(names), self.world.version)

    def report(self, name: str, *, ready: bool = True) -> None:
        labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "pool": "p"}
        self.world.node(name, labels, ready="True" if ready else "False")

    def sees(self, table: TableObject | None = None) -> PlanObject:
        """The plan as it is decided on."""
        now = replace(later(self.world.now), monotonic=self.world.now)
        observed = observation(self.plan, table)
        observed = self.observations.build(observed, self.state, now)
        observed, self.state = follow(observed, self.state, now, LIMIT)
        assert observed.plan is not None
        return observed.plan

    def table(self, made_of: PlanObject, sequence: int) -> TableObject:
        return stored(made_of, content(weight=sequence), TableOrigin.PLANNED, sequence)


def test_a_table_of_other_nodes_is_taken_for_the_answer_until_our_own_news() -> None:
    """n2 flapped before the other operator began: it trusts n2, and we do not yet."""
    here, there = Pair("n1", "n2", "n3"), Pair("n1", "n2", "n3")
    all_three = there.sees()
    first = here.table(here.sees(), 1)
    assert here.sees(first).inputs_hash == all_three.inputs_hash

    here.report("n2", ready=False)
    here.world.run(20)
    second = here.table(without := here.sees(first), 2)
    assert without.inputs_hash != all_three.inputs_hash
    here.state = replace(here.state, reserved=0, last_sequence=2)
    assert here.sees(second).live == replace(without.live or LiveStatus(), yield_until=None)
    here.report("n2")
    here.world.run(5)

    third = there.table(all_three, 3)  # by the other operator
    yielding = here.sees(third)
    assert yielding.inputs_hash == third.inputs_hash
    assert yielding.live is not None
    assert yielding.live.yield_until == here.world.now + DAMPING.longest
    assert yielding.live.lost_nodes == frozenset()  # n1 and n2 are under it; both are up
    assert actions_of(observation(yielding, third), here.state, later(0)) != ()
    assert StartPlanning not in kinds(
        actions_of(observation(yielding, third), here.state, later(0))
    )

    here.world.run(1)
    here.report("n2", ready=False)
    lost = here.sees(third)
    assert lost.live is not None
    assert lost.live.lost_nodes == {"n2"}
    here.report("n2")
    again = here.sees(third)
    assert again.live is not None
    assert again.live.lost_nodes == {"n2"}  # it was lost since that table came


def test_our_own_news_are_planned_when_the_others_plan_is_a_minute_old() -> None:
    here = Pair("n1", "n2", "n3")
    first = here.table(here.sees(), 1)
    here.sees(first)
    other = Pair("n1", "n2").sees()
    second = here.table(other, 2)
    yielding = here.sees(second)
    assert yielding.inputs_hash == second.inputs_hash
    since = here.world.now

    here.report("n4")
    here.world.run(10)
    waiting = here.sees(second)
    assert waiting.live is not None
    assert waiting.live.yield_until == since + EVERY
    here.world.run(EVERY)
    due = here.sees(second)
    assert due.inputs_hash not in (first.inputs_hash, second.inputs_hash)
    assert due.live is not None
    assert due.live.yield_until is None


def test_what_the_first_look_finds_is_planned_at_once() -> None:
    """After a restart nobody knows who made it, nor whether it is still alive."""
    here = Pair("n1", "n2", "n3")
    table = here.table(Pair("n1", "n2").sees(), 5)
    splan = here.sees(table)
    assert splan.inputs_hash != table.inputs_hash
    assert splan.live is not None
    assert splan.live.yield_until is None
