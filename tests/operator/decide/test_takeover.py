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
    told,
)

LIMIT = 1 << 20
STRANGE = content(weight=99)
ROLLED = ((DRAINED, "None"), (CHANGED, "Drain"), (NEW, "Ready"))
"""The tables of our answer."""


def seen_plan() -> PlanObject:
    found = settled().plan
    assert found is not None
    return found


def answer(seen: PlanObject) -> PlanReady:
    """Ours to an edit: three tables, made over the old one."""
    steps = [TableStep(content=text, wait=wait, islands=("a",)) for text, wait in ROLLED]
    found = decode_result(seen.inputs_hash, plan_reply(*steps))
    assert isinstance(found, PlanReady)
    return found


def before() -> tuple[PlanObject, PlanState]:
    """The old table lies there, and our answer is to be stored over it."""
    seen = seen_plan()
    old = stored(seen)
    state = synchronise(observation(seen, old), PlanState(), later(-10), LIMIT)
    planning = state.with_planning(seen.inputs_hash, old.content_hash)
    return seen, planning.with_result(answer(seen), NOW)


def after(
    text: str, mark: TableOrigin = TableOrigin.ROLLING, sequence: int = 7
) -> tuple[Observation, PlanState]:
    """What is left of that once somebody stored this."""
    seen, state = before()
    there = observation(seen, stored(seen, text, mark, sequence))
    return there, synchronise(there, state, NOW, LIMIT)


def kinds(actions: tuple[Action, ...]) -> set[type[Action]]:
    return {type(action) for action in actions}


def test_an_answer_is_stored_over_what_it_was_made_over() -> None:
    seen, state = before()
    here = observation(told(seen), stored(seen))
    assert synchronise(here, state, NOW, LIMIT) == state
    assert isinstance(state.result, PlanReady)
    assert state.result.base_hash == stored(seen).content_hash


def test_a_request_in_between_does_not_change_what_runs_beside_a_plan() -> None:
    seen = seen_plan()
    planning = PlanState().with_planning(seen.inputs_hash, "first")
    asked = planning.with_request(ReplanKind.WINDOW, PendingReplan(base_hash="second"))
    verdict = asked.with_result(answer(seen), NOW).result
    assert isinstance(verdict, PlanReady)
    assert verdict.base_hash == "first"


@pytest.mark.parametrize(("text", "left"), [(DRAINED, 2), (CHANGED, 1), (NEW, 0)])
def test_who_came_late_goes_on_from_the_stored_step(text: str, left: int) -> None:
    """The answer has that step too: it counts as stored, and the next one is ours to store."""
    there, state = after(text)
    assert isinstance(state.result, PlanReady)
    assert (state.result.content, len(state.steps)) == (None, left)
    assert state.result.content_hash == there.table.content_hash if there.table else False
    assert state.result.adopted


def test_who_stored_the_last_step_goes_first_with_the_next() -> None:
    there, state = after(DRAINED)
    assert there.plan is not None
    ours = later(DRAIN)
    assert not next_step_due(there, state, ours)  # whoever stored it does so now
    assert next_step_due(there, state, later(DRAIN + LAG))
    assert [a.seconds for a in actions_of(there, state, NOW) if isinstance(a, Requeue)][-1] == LAG

    following = state.with_next_step(LIMIT).result
    assert isinstance(following, PlanReady)
    assert following.base_hash == there.table.content_hash if there.table else False


def test_a_write_whose_answer_was_lost_is_ours_all_the_same() -> None:
    seen, state = before()
    there = observation(seen, stored(seen, DRAINED, TableOrigin.ROLLING, 7))
    state = synchronise(there, replace(state, reserved=0, last_sequence=7), NOW, LIMIT)
    assert isinstance(state.result, PlanReady)
    assert (state.result.adopted, state.rollout.step_at) == (False, NOW.monotonic)
    assert next_step_due(there, state, later(DRAIN))


def test_over_another_table_the_answer_is_dropped_and_losses_are_asked_about_again() -> None:
    seen, state = before()
    state = replace(state, failed_repairs=frozenset({"a"}), unreported=True)
    there = observation(seen, stored(seen, STRANGE, TableOrigin.ROLLING, 7))
    dropped = synchronise(there, state, NOW, LIMIT)
    assert (dropped.result, dropped.failed_repairs) == (None, frozenset())
    assert not dropped.unreported  # what was decided did not come to be


def test_the_rest_of_a_roll_out_is_dropped_once_another_table_lies_there() -> None:
    """Step k+1 is stored over step k and over nothing else."""
    seen, state = before()
    state = synchronise(
        observation(seen, stored(seen, DRAINED, TableOrigin.ROLLING, 7)), state, NOW, LIMIT
    )
    assert len(state.steps) == 2
    state = synchronise(
        observation(seen, stored(seen, STRANGE, TableOrigin.REPLANNED, 8)), state, later(1), LIMIT
    )
    assert (state.result, state.steps) == (None, ())


def test_a_table_that_somebody_changed_is_no_other_operators() -> None:
    seen, state = before()
    spoilt = replace(stored(seen, STRANGE, sequence=7), written_hash="else")
    assert synchronise(observation(seen, spoilt), state, NOW, LIMIT) == state


def left_to(seen: PlanObject, table: TableObject, state: PlanState, *, old: bool = True) -> float:
    """For how long from now the table is left to who stored it [s]."""
    return yield_until(seen, table, state, old=old) - NOW.monotonic


def test_a_roll_out_of_another_operator_is_left_to_it_until_it_stands_still() -> None:
    """A minute after the drain, or as long as pods may take to start."""
    there, state = after(STRANGE)
    assert there.plan is not None
    assert there.table is not None
    assert left_to(there.plan, there.table, state) == DRAIN + EVERY
    starting = LiveStatus(
        pods={"b": IslandPods(ready=True, phase="decode", pods=1, gpus=8, nodes=frozenset({"n2"}))}
    )
    assert left_to(replace(there.plan, live=starting), there.table, state) == DRAIN + PATIENCE

    left = replace(there, plan=replace(there.plan, live=LiveStatus(yield_until=NOW.monotonic + 70)))
    waits = [a for a in actions_of(left, state, NOW) if isinstance(a, Requeue)]
    assert [wait.seconds for wait in waits] == [70]
    assert StartPlanning not in kinds(actions_of(left, state, NOW))
    assert StartPlanning in kinds(actions_of(there, state, later(71)))  # it is over


def test_a_roll_out_that_lay_there_when_we_began_is_nobodys() -> None:
    seen = seen_plan()
    table = stored(seen, DRAINED, TableOrigin.ROLLING, 7)
    state = synchronise(observation(seen, table), PlanState(), NOW, LIMIT)
    assert left_to(seen, table, state) < 0

    none_yet = synchronise(observation(seen), PlanState(), NOW, LIMIT)
    came = synchronise(observation(seen, table), none_yet, NOW, LIMIT)
    assert left_to(seen, table, came) == DRAIN + EVERY


def test_a_plan_that_is_owed_is_made_by_who_owes_it() -> None:
    there, state = after(STRANGE, TableOrigin.OWED)
    assert there.plan is not None
    assert there.table is not None
    assert left_to(there.plan, there.table, state) == EVERY


def test_losses_are_repaired_in_a_table_that_is_left_to_another() -> None:
    there, state = after(STRANGE)
    assert there.plan is not None
    hurt = LiveStatus(yield_until=NOW.monotonic + 70, lost_nodes=frozenset({"n2"}))
    actions = actions_of(replace(there, plan=replace(there.plan, live=hurt)), state, NOW)
    assert [a.kind for a in actions if isinstance(a, StartReplan)] == [ReplanKind.REPAIR]


def test_other_nodes_are_no_reason_to_plan_over_anothers_table_for_a_while() -> None:
    """News wait for the pace, counted from whoever planned last; what is no news, for much more."""
    seen, state = before()
    state = replace(state, result=None)
    others = replace(stored(seen, STRANGE, TableOrigin.PLANNED, 7), inputs_hash="others")
    state = synchronise(observation(seen, others), state, NOW, LIMIT)

    assert left_to(seen, others, state, old=False) == EVERY
    assert left_to(seen, others, state, old=True) == DAMPING.longest
    assert left_to(replace(seen, spec_hash="edited"), others, state) < 0
    helpless = replace(state, irreparable=others.content_hash or "")
    assert left_to(seen, others, helpless) < 0  # nothing is left of it

    repaired = replace(others, origin=TableOrigin.REPAIRED, identity=others.identity)
    state = synchronise(observation(seen, repaired), state, later(30), LIMIT)
    assert left_to(seen, repaired, state, old=False) == EVERY  # a repair is no plan


def test_the_first_table_after_an_edit_does_not_count_for_the_pace() -> None:
    """Else nodes that come a moment after an edit would be planned with a minute later."""
    seen, state = before()
    edited = replace(stored(seen, STRANGE, sequence=7), inputs_hash="others", spec_hash="edited")
    state = synchronise(observation(seen, edited), state, NOW, LIMIT)
    assert left_to(replace(seen, spec_hash="edited"), edited, state, old=False) < 0


def test_a_plan_over_a_step_waits_until_requests_had_time_to_end() -> None:
    """The step may have been stored a moment ago; where nodes are gone nothing is waited for."""
    seen = seen_plan()
    table = stored(seen, STRANGE, TableOrigin.ROLLING, 7)
    state = synchronise(observation(seen, table), PlanState(), NOW, LIMIT)
    planning = state.with_planning(seen.inputs_hash, table.content_hash)
    state = replace(planning.with_result(answer(seen), NOW), reserved=8)
    promised = replace(seen, status=told(seen, table).status, live=LiveStatus())
    there = observation(promised, table)

    assert [a.seconds for a in actions_of(there, state, later(4)) if isinstance(a, Requeue)] == [
        DRAIN - 4
    ]
    assert kinds(actions_of(there, state, later(DRAIN))) == {WriteTable}
    gone = replace(promised, live=LiveStatus(lost_nodes=frozenset({"n2"})))
    assert kinds(actions_of(replace(there, plan=gone), state, later(4))) == {WriteTable}


def test_who_stored_a_table_says_so_in_its_own_words() -> None:
    there, state = after(NEW, TableOrigin.PLANNED)
    assert there.plan is not None
    assert there.table is not None
    waits = [a.seconds for a in actions_of(there, state, NOW) if isinstance(a, Requeue)]
    assert waits == [WRITER_REPORTS]
    assert WriteTable not in kinds(actions_of(there, state, NOW))
    assert isinstance(state.result, PlanReady)
    words = published(there.plan, replace(state.result, message="theirs"), there.table, T0)
    said = replace(there, plan=replace(there.plan, status=words))
    assert actions_of(said, state, later(WRITER_REPORTS)) == ()  # ours would be others
    assert actions_of(there, state, later(WRITER_REPORTS)) != ()  # nobody said it


class Stored(Tables):
    """The stored table."""

    def __init__(self) -> None:
        """Nothing is asked of a cluster."""

    async def content(self, plan: PlanObject, table: TableObject) -> str:  # noqa: ARG002
        return OLD


def test_a_plan_that_leaves_a_repaired_table_as_it_is_makes_it_whole() -> None:
    """The content is the same and the mark is not: else it would be planned again for ever."""
    seen = seen_plan()
    table = stored(seen, OLD, TableOrigin.REPAIRED, 7)
    state = synchronise(observation(seen, table), PlanState(), NOW, LIMIT)
    verdict = decode_result(seen.inputs_hash, plan_reply(TableStep(content=OLD)))
    assert isinstance(verdict, PlanReady)
    state = state.with_planning(seen.inputs_hash, table.content_hash).with_result(verdict, NOW)
    promised = replace(seen, status=told(seen, table).status, live=LiveStatus())

    here = observation(promised, table)
    assert synchronise(here, state, NOW, LIMIT) == state
    writes = [
        a for a in actions_of(here, replace(state, reserved=8), NOW) if isinstance(a, WriteTable)
    ]
    assert [write.origin for write in writes] == [TableOrigin.PLANNED]
    whole = observation(promised, stored(seen, OLD, TableOrigin.PLANNED, 8))
    done = synchronise(whole, state, NOW, LIMIT).result
    assert isinstance(done, PlanReady)
    assert done.content is None


def test_a_table_that_was_taken_is_repaired_as_any_other() -> None:
    """What lies there is not to be stored once more."""
    seen = settled(LiveStatus(lost_nodes=frozenset({"n2"})))
    assert seen.plan is not None
    assert seen.table is not None
    nobody = cast("PlannerPool", None)
    plans = PlanExecutor(Stored(), nobody, nobody, LIMIT)
    adopted = asyncio.run(plans.adopted(seen.plan, seen.table, ()))
    assert adopted is not None
    assert adopted.content is None
    state = PlanState().with_result(adopted, NOW)
    assert [a.kind for a in actions_of(seen, state, NOW) if isinstance(a, StartReplan)] == [
        ReplanKind.REPAIR
    ]


def test_what_was_said_of_nodes_is_not_insisted_on() -> None:
    """Two operators that see different nodes would else write over each other for ever."""
    six, five = (Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, f"{n} nodes") for n in (6, 5))
    seen = replace(seen_plan(), live=LiveStatus(inventory=six))
    ours = refreshed(seen, T0)
    state = PlanState().with_status(ours, seen.live)
    assert state.reported == {six}
    theirs = refreshed(replace(seen, live=LiveStatus(inventory=five)), T0)

    here = replace(seen, status=theirs, live=LiveStatus(inventory=six, reported=state.reported))
    assert refreshed(here, T0).says_the_same(theirs)
    assert state.with_status(theirs, here.live).reported == {six}  # still
    news = replace(here, live=LiveStatus(inventory=five, reported=frozenset({six})))
    found = refreshed(replace(news, status=ours), T0).condition(ConditionType.INVENTORY_RESOLVED)
    assert found is not None
    assert found.message == "5 nodes"


def test_what_the_status_did_not_say_was_not_said() -> None:
    """The status of a plan that is being made speaks of no nodes."""
    seen = replace(plan(spec={"replanning": REPLANNING}), live=LiveStatus())
    found = Finding(ConditionStatus.TRUE, Reason.NODES_FOUND, "6 nodes")
    begun = replace(seen, live=LiveStatus(inventory=found))
    assert PlanState().with_status(told(begun).status, begun.live).reported == frozenset()


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
        seen = observation(self.plan, table)
        seen = self.observations.build(seen, self.state, now)
        seen, self.state = follow(seen, self.state, now, LIMIT)
        assert seen.plan is not None
        return seen.plan

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
    left = here.sees(third)
    assert left.inputs_hash == third.inputs_hash
    assert left.live is not None
    assert left.live.yield_until == here.world.now + DAMPING.longest
    assert left.live.lost_nodes == frozenset()  # n1 and n2 are under it; both are up
    assert actions_of(observation(left, third), here.state, later(0)) != ()
    assert StartPlanning not in kinds(actions_of(observation(left, third), here.state, later(0)))

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
    left = here.sees(second)
    assert left.inputs_hash == second.inputs_hash
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
    found = here.table(Pair("n1", "n2").sees(), 5)
    seen = here.sees(found)
    assert seen.inputs_hash != found.inputs_hash
    assert seen.live is not None
    assert seen.live.yield_until is None
