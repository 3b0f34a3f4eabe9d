"""What is done about the workloads of a plan: never a foreign one, never more than is permitted."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.decide.actions import Requeue, StartIslands, WriteTable
from archipelago.operator.decide.islands import AGAIN, workload_changes
from archipelago.operator.decide.state import PlanState
from archipelago.operator.inventory.start_rules import StartLimit, StartRule, start_limit
from archipelago.operator.planning.messages import plan_ready
from archipelago.operator.resources.live import IslandPods, LiveStatus, TableIslands
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import PlanObject, read_islands
from archipelago.operator.resources.status import ConditionType, Reason
from archipelago.operator.resources.workloads import ListedWorkload, Workload
from archipelago.planner.documents import canonical_text
from archipelago.planner.kubernetes.labels import roles_of
from tests.support.fuzz.readers import small_table
from tests.support.operator.situations import NOW, actions_of, later, observation, plan

OURS, OTHERS = "uid-1", "uid-2"
NAMES = ("a", "b", "c", "d")
SPEC: dict[str, object] = {
    "islands": {"manage": "Deployments", "template": {"configMap": "pods", "key": "template.yaml"}}
}
CONTENT = canonical_text(small_table()["content"])
ISLANDS = read_islands(CONTENT)


def wanted(name: str, role: str = "r", gpus: int = 4) -> Workload:
    return Workload("Deployment", name, (role, "either"), gpus, {"metadata": {"namespace": "team"}})


def listed(name: str, owner: str = OURS, role: str = "r", gpus: int = 4) -> ListedWorkload:
    key = Key("team", name)
    return ListedWorkload("Deployment", key, f"of-{name}", "7", owner, role, gpus, deleting=False)


workloads = st.builds(
    listed,
    st.sampled_from(NAMES),
    st.sampled_from([OURS, OTHERS, ""]),
    st.sampled_from(["r", "s"]),
    st.sampled_from([1, 4]),
)


@given(
    st.lists(workloads, unique_by=lambda one: one.key),
    st.sets(st.sampled_from(NAMES)),
    st.integers(0, 6),
    st.integers(0, 20),
    st.booleans(),
)
def test_what_is_changed_is_the_plans_and_within_the_limit(
    stored: list[ListedWorkload], names: set[str], islands: int, gpus: int, keep: bool
) -> None:
    found = workload_changes(
        OURS, [wanted(name) for name in sorted(names)], stored, StartLimit(islands, gpus), keep=keep
    )
    touched = [*found.remove, *(before for _, before in found.apply if before)]
    assert all(one.owner == OURS for one in touched)
    foreign = {one.key.name for one in stored if one.owner != OURS}
    assert not foreign & {one.name for one, _ in found.apply}
    assert not {one.key.name for one in found.remove} & names
    assert not (keep and found.remove)
    changed = {one.name: one for one, _ in found.apply}
    gone = {one.key.name for one in found.remove}
    # What others may make without an owner of ours counts for nothing.
    after = {one.key.name: one.gpus for one in stored if one.owner and one.key.name not in gone}
    started = set(changed) - set(after)
    after |= {name: one.gpus for name, one in changed.items()}
    if started:
        assert len(after) <= islands
        assert sum(after.values()) <= gpus
    if found.problem is None:
        assert names <= {*changed, *(one.key.name for one in stored if one.owner == OURS)}


def test_pods_that_serve_either_phase_stay_in_a_flip() -> None:
    stored = [listed("a", role="either"), listed("b", role="r")]
    found = workload_changes(
        OURS, [wanted("a", role="s"), wanted("b", role="s")], stored, StartLimit(), keep=False
    )
    assert [one.name for one, _ in found.apply] == ["b"]


def test_a_role_that_stays_changes_nothing() -> None:
    stored = [listed("a"), listed("b", role="s")]
    found = workload_changes(OURS, [wanted("a"), wanted("b")], stored, StartLimit(), keep=False)
    assert found.apply == ((wanted("b"), stored[1]),)
    assert found.problem is None


def test_a_foreign_workload_stays_and_is_named_with_the_command() -> None:
    found = workload_changes(OURS, [wanted("a")], [listed("a", "")], StartLimit(), keep=False)
    assert found.apply == ()
    assert found.remove == ()
    assert found.problem is not None
    assert found.problem.reason is Reason.NAME_CONFLICT
    assert "kubectl -n team delete deployment a" in found.problem.message


def test_the_first_rule_that_names_a_namespace_limits_it() -> None:
    rules = [
        StartRule(namespaces=("chat",), maxIslands=2),  # type: ignore[call-arg]  # its alias
        StartRule(namespaces=("team-*",), maxGpus=8),  # type: ignore[call-arg]
    ]
    assert start_limit(rules, "chat") == StartLimit(2, None)
    assert start_limit(rules, "team-a") == StartLimit(None, 8)
    assert start_limit(rules, "other") == StartLimit(0, 0)
    assert start_limit([], "other") == StartLimit()
    assert "3 islands, at most 2" in StartLimit(2, None).excess(3, 100)


def owning(live: LiveStatus | None = None) -> PlanObject:
    found = plan(spec=SPEC)
    return replace(found, live=live or LiveStatus(owned=True))


def with_plan(found: PlanObject) -> PlanState:
    return PlanState(result=plan_ready(found.inputs_hash, CONTENT, {}, "a plan"))


def all_ready(islands: TableIslands) -> dict[str, IslandPods]:
    return {
        name: IslandPods(
            ready=True, phase=one.phase, pods=1, gpus=one.gpus, nodes=frozenset(), role=one.role
        )
        for name, one in islands.items()
    }


def test_the_first_table_waits_for_pods_that_are_ready_as_it_says() -> None:
    """Pods are started, waited for, and only then is a sequence reserved and the table written."""
    found = owning()
    state = with_plan(found)
    assert StartIslands("the pods are those of another table", stored=False) in actions_of(
        observation(found), state, NOW
    )
    result = state.to_store
    assert result is not None
    started = state.with_started(result.content_hash, found.generation, None, NOW)
    waiting = actions_of(observation(found), started, NOW)
    assert not any(isinstance(action, WriteTable | StartIslands) for action in waiting)
    status = next(a.status for a in waiting if hasattr(a, "status"))
    ready = status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("Unknown", Reason.PODS_NOT_READY)
    late = actions_of(observation(found), started, later(1000))
    assert any(isinstance(action, StartIslands) for action in late)

    pods = all_ready(ISLANDS)
    good = owning(LiveStatus(owned=True, pods=pods))
    (write,) = [a for a in actions_of(observation(good), started, NOW) if hasattr(a, "reserves")]
    assert write.reserves == 1  # the table is next
    either = {n: replace(p, role=roles_of(p.role)[1], phase="") for n, p in pods.items()}
    good = owning(LiveStatus(owned=True, pods=either))
    assert write in actions_of(observation(good), started, NOW)

    name = next(iter(pods))
    for wrong in (
        replace(pods[name], role="another"),
        replace(pods[name], role=""),
        replace(pods[name], gpus=0),
        replace(pods[name], ready=False),
    ):
        bad = owning(LiveStatus(owned=True, pods={**pods, name: wrong}))
        actions = actions_of(observation(bad), started, NOW)
        assert not any(getattr(action, "reserves", 0) for action in actions)


def test_workloads_are_compared_again_without_any_event() -> None:
    found = owning()
    state = with_plan(found)
    result = state.to_store
    assert result is not None
    state = state.with_started(result.content_hash, found.generation, None, NOW)
    waits = [
        a.seconds for a in actions_of(observation(found), state, NOW) if isinstance(a, Requeue)
    ]
    assert min(waits) == AGAIN
