"""Reports to plans about nodes and pods: losses at once, other nodes rarely, heartbeats never."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from archipelago.operator.inventory.cluster_inventory import ClusterInventory
from archipelago.operator.inventory.flap_damping import SETTLE
from archipelago.operator.inventory.node_store import DRAINED
from archipelago.operator.inventory.nodes import read_versioned
from archipelago.operator.inventory.ownership import PlanSelector, PoolSelector
from archipelago.operator.inventory.pods import read_pod
from archipelago.operator.inventory.pools import ExclusionReason
from archipelago.operator.resources.names import Key, Permission
from archipelago.operator.resources.status import ConditionStatus, Reason
from tests.operator.inventory.test_nodes import pod
from tests.support.operator.nodes import CLIQUE, H100, L4, ODD, body

BORN = datetime(2026, 1, 1, tzinfo=UTC)
CHAT, CODE = Key("team", "chat"), Key("other", "code")


def plan(key: Key = CHAT, age: int = 0, **pool: Any) -> PlanSelector:  # noqa: ANN401
    """A plan with one pool of H100 nodes, ``age`` days older than the first."""
    selector = PoolSelector(**{"name": "h100", "accelerator": "H100", "gpus_per_node": 8, **pool})
    return PlanSelector(key, f"uid-{key.name}", BORN - timedelta(days=age), (selector,))


STATIC = PlanSelector(CHAT, "uid-chat", BORN, ())


class World:
    """An inventory with a clock of its own; ``news``: (time, plans, whether nodes were lost)."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401
        self.now, self.version, self.lacks = 0.0, 0, 0
        self.news: list[tuple[float, set[Key], bool]] = []
        self.pods: list[Key] = []
        self.inventory = ClusterInventory(
            settings.pop("allowed", {}),
            lambda keys, lost: self.news.append((self.now, set(keys), lost)),
            self.pods.append,
            self.lack,
            lambda: self.now,
            **settings,
        )

    def lack(self) -> None:
        self.lacks += 1

    def node(self, name: str, labels: dict[str, str] | None = None, **state: Any) -> None:  # noqa: ANN401
        """A node reports."""
        self.version += 1
        item = body(name, labels or H100, self.version, **state)
        self.inventory.update_node(*read_versioned(item))

    def listed(self, *names: str) -> None:
        """All nodes are listed, as they were first."""
        self.inventory.begin_list()
        for name in names:
            self.node(name)
        self.inventory.replace_nodes(set(names), self.version)

    def pod(self, name: str, node: str, plan: str = "", **more: Any) -> None:  # noqa: ANN401
        """A pod reports, with eight GPUs or ``gpus``; ``plan``: whose island a it is part of."""
        self.version += 1
        item = pod(more.get("gpus", 8), nodeName=node)
        item["metadata"] = {
            "name": name,
            "uid": f"uid-{name}",
            "namespace": "team",
            "resourceVersion": str(self.version),
        }
        if plan:
            item["metadata"]["labels"] = {
                "archipelago.dev/plan": plan,
                "archipelago.dev/island": "a",
                "archipelago.dev/phase": more.get("phase", "prefill"),
            }
        ready = "True" if more.get("ready", True) else "False"
        item["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        facts = read_pod(item)
        assert facts
        self.inventory.update_pod(facts)

    def delete(self, name: str) -> None:
        """A node is deleted."""
        self.version += 1
        self.inventory.delete_node(name, self.version)

    def run(self, seconds: float, step: float = 0.1) -> None:
        """Time passes; the inventory ticks whenever something is due, as its loop does."""
        end = self.now + seconds
        while self.now < end:
            if self.inventory.wake() <= self.now:
                self.inventory.tick()
            self.now += step

    def count(self, claimant: PlanSelector) -> int:
        """GPUs of the plan's pool, as of its inventory."""
        inventory = self.inventory.inventory(claimant)
        assert inventory
        return inventory.pools[0].count


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(count))


def test_before_the_first_list_no_node_is_known_or_lost_and_its_end_is_reported() -> None:
    world, chat = World(), plan()
    world.node("n0")
    assert world.inventory.inventory(chat) is None
    assert world.inventory.lost({"n0", "never-seen"}) == set()
    finding = world.inventory.finding(chat)
    assert (finding.status, finding.reason) == (ConditionStatus.UNKNOWN, Reason.NO_NODES)
    assert finding.message == "the nodes of the cluster are being listed"

    world.listed("n0", "n1")

    assert world.news == [(0.0, {CHAT}, False)]
    assert world.count(chat) == 16
    assert world.inventory.finding(chat).reason is Reason.NODES_FOUND
    assert world.inventory.lost({"n0", "never-seen"}) == {"never-seen"}


def test_a_lost_node_is_repaired_in_half_a_second_and_replanned_in_five() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1", "n2")
    assert world.count(chat) == 24
    world.run(10)
    world.node("n1", ready="Unknown")
    assert world.inventory.lost(names(3)) == {"n1"}
    world.run(60)

    (repaired, *repair), (replanned, *replan) = world.news
    assert (repair, replan) == ([{CHAT}, True], [{CHAT}, False])
    assert repaired == pytest.approx(10.2, abs=0.3)
    assert replanned == pytest.approx(15, abs=0.3)
    assert world.count(chat) == 16


def test_the_inventory_of_a_plan_stays_until_a_change_is_reported() -> None:
    """Whoever asks between: an edit of the workload must not undo the distance of re-plans."""
    world, chat = World(), plan()
    world.listed(*names(4))
    assert world.count(chat) == 32
    world.node("n0", cordoned=True)
    world.run(4)
    assert world.count(chat) == 32
    world.run(2)
    assert world.count(chat) == 24
    world.node("n1", cordoned=True)
    world.run(55)
    assert world.count(chat) == 24
    world.run(10)
    assert world.count(chat) == 16
    changes = [when for when, _, lost in world.news if not lost]
    assert changes == [pytest.approx(t, abs=0.3) for t in (5, 65)]


def test_changed_pools_are_resolved_at_once() -> None:
    world = World()
    world.listed(*names(4))
    assert world.count(plan()) == 32
    world.delete("n0")
    assert world.count(plan(domain_label=None, name="other")) == 24


def test_a_cordon_is_no_loss_and_a_heartbeat_no_change() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    for _ in range(20):
        world.node("n0")
        world.run(10)
    assert world.news == []
    assert world.inventory.wake() == float("inf")
    world.node("n0", cordoned=True)
    assert world.inventory.lost({"n0"}) == set()
    world.run(10)
    assert [lost for _, _, lost in world.news] == [False]
    assert world.inventory.counts() == {"usable": 1, "lost": 0, "excluded": 1}


def test_gpus_that_no_plan_knows_are_not_usable() -> None:
    world, chat = World(), plan()
    world.listed("n0")
    world.node("n1", labels=ODD)
    world.count(chat)
    world.run(10)
    assert world.inventory.counts() == {"usable": 1, "lost": 0, "excluded": 1}
    world.count(plan(CODE, products=frozenset({"nvidia-x1"})))
    world.run(10)
    assert world.inventory.counts() == {"usable": 2, "lost": 0, "excluded": 0}


def test_a_node_that_stays_cordoned_leaves_while_it_still_serves() -> None:
    """A drain usually follows: its requests go first. It counts once, and waits to come back."""
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    world.node("n0", cordoned=True)
    world.run(DRAINED - 1)
    assert world.inventory.lost({"n0", "n1"}) == set()
    world.run(2)
    assert world.inventory.lost({"n0", "n1"}) == {"n0"}
    assert [lost for _, _, lost in world.news].count(True) == 1
    assert world.news[-1][0] == pytest.approx(DRAINED, abs=0.5)

    for allocatable in ("7", "8"):  # other reports of it are no second loss
        world.node("n0", cordoned=True, allocatable={"nvidia.com/gpu": allocatable})
        world.run(5)
    world.node("n0", cordoned=True, ready="False")
    world.run(1)
    assert [lost for _, _, lost in world.news].count(True) == 1
    world.node("n0")
    world.run(SETTLE - 2)
    assert world.inventory.lost({"n0"}) == {"n0"}
    world.run(SETTLE + 4)
    assert world.inventory.lost({"n0"}) == set()


def test_a_node_that_is_cordoned_for_moments_again_and_again_is_never_lost() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    for _ in range(10):
        world.node("n0", cordoned=True)
        world.run(DRAINED / 2)
        world.node("n0")
        world.run(1)
    assert True not in [lost for _, _, lost in world.news]
    assert world.inventory.lost({"n0"}) == set()


def test_a_node_that_was_cordoned_before_the_operator_began_has_its_minute() -> None:
    world, chat = World(), plan()
    world.inventory.begin_list()
    world.node("n0", cordoned=True)
    world.node("n1")
    world.inventory.replace_nodes({"n0", "n1"}, world.version)
    assert world.count(chat) == 8
    world.run(DRAINED - 1)
    assert world.inventory.lost({"n0"}) == set()
    world.run(2)
    assert world.inventory.lost({"n0"}) == {"n0"}


@pytest.mark.parametrize(
    ("taint", "effect", "lost"),
    [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", True),
        ("karpenter.sh/disrupted", "NoSchedule", True),
        ("cloud.google.com/impending-node-termination", "NoSchedule", True),
        ("aws-node-termination-handler/spot-itn", "NoSchedule", True),
        ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule", True),
        ("karpenter.sh/disrupted", "PreferNoSchedule", False),
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", False),
        ("node.kubernetes.io/unschedulable", "NoSchedule", False),
        ("team.example/gpus", "NoSchedule", False),
    ],
)
def test_a_node_whose_removal_is_announced_is_lost_at_once(
    taint: str, effect: str, lost: bool
) -> None:
    world = World()
    world.listed("n0", "n1")
    world.count(plan())
    item = body("n0", H100, version=100)
    item["spec"]["taints"] = [{"key": taint, "effect": effect}]
    world.inventory.update_node(*read_versioned(item))
    world.run(1)
    assert (world.inventory.lost({"n0"}) == {"n0"}) == lost
    world.run(DRAINED)
    left = lost or taint == "node.kubernetes.io/unschedulable"
    assert (world.inventory.lost({"n0"}) == {"n0"}) == left


def test_a_node_and_a_pod_can_say_that_their_islands_are_not_to_be_disturbed() -> None:
    world = World()
    world.listed("n0", "n1")
    chat = plan()
    world.count(chat)
    world.pod("p", "n0", plan="chat")
    assert world.inventory.pinned({"n0", "n1"}) == set()
    assert not world.inventory.island_pods(CHAT)["a"].pinned
    for value, pinned in (("true", True), ("false", False)):
        world.version += 1
        item = body("n1", H100, version=world.version)
        item["metadata"]["annotations"]["archipelago.dev/do-not-disrupt"] = value
        world.inventory.update_node(*read_versioned(item))
        assert (world.inventory.pinned({"n0", "n1"}) == {"n1"}) == pinned
        facts = pod(8, nodeName="n0")
        facts["metadata"]["labels"]["archipelago.dev/island"] = "a"
        facts["metadata"]["annotations"] = {"archipelago.dev/do-not-disrupt": value}
        read = read_pod(facts)
        assert read
        assert read.pinned == pinned


@pytest.mark.parametrize("leaving", [True, False])
def test_a_deleted_node_and_a_node_that_is_being_removed_are_lost(leaving: bool) -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    if leaving:
        item = body("n0", H100, version=100)
        item["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
        world.inventory.update_node(*read_versioned(item))
    else:
        world.delete("n0")
    world.run(1)
    assert world.inventory.lost({"n0", "n1"}) == {"n0"}
    assert [lost for _, _, lost in world.news] == [True]


def test_a_list_from_before_a_deletion_does_not_bring_the_node_back() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    world.delete("n0")
    old = body("n0", H100, version=1)
    world.inventory.update_node(*read_versioned(old))
    assert world.count(chat) == 8
    world.node("n0")  # made anew under its name
    assert world.inventory.counts()["lost"] == 1  # until it has stayed
    world.run(SETTLE + 1)
    assert world.inventory.counts()["lost"] == 0


def test_nodes_that_a_list_lacks_are_deleted() -> None:
    world, chat = World(), plan()
    world.listed(*names(3))
    assert world.count(chat) == 24
    world.inventory.begin_list()
    world.inventory.replace_nodes({"n0"}, world.version)
    world.run(1)
    assert world.inventory.lost(names(3)) == {"n1", "n2"}
    assert [lost for _, _, lost in world.news] == [True]


def test_a_node_that_comes_back_is_used_after_the_settling_time() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    world.node("n0", ready="Unknown")
    world.run(30)
    world.node("n0")
    world.run(SETTLE - 1)
    assert world.inventory.lost({"n0"}) == {"n0"}
    assert world.count(chat) == 8
    world.run(10)
    assert world.inventory.lost({"n0"}) == set()
    assert world.count(chat) == 16
    assert [lost for _, _, lost in world.news] == [True, False, False]


def test_half_the_nodes_within_a_second_are_one_or_two_repairs_and_one_replan() -> None:
    """B13, the inventory's half of it."""
    world, chat = World(), plan()
    world.listed(*names(100))
    assert world.count(chat) == 800
    for i in range(50):
        world.delete(f"n{i}")
        world.run(0.02, 0.01)
    world.run(30)
    repairs = [when for when, _, lost in world.news if lost]
    assert len(repairs) <= 3
    assert repairs[-1] <= 1.6
    assert [when for when, _, lost in world.news if not lost] == [pytest.approx(6, abs=0.3)]
    assert world.count(chat) == 400


def test_100_flapping_nodes_are_each_lost_once_and_cause_one_replan() -> None:
    """B12: every 10 s for ten minutes; two plans, one of which has nothing to do with them."""
    world, chat, code = World(), plan(), plan(CODE, accelerator="L4")
    world.listed(*names(200))
    world.node("l4", L4)
    assert (world.count(chat), world.count(code)) == (1600, 8)
    for turn in range(60):
        for i in range(100):
            world.node(f"n{i}", ready="Unknown" if turn % 2 == 0 else "True")
        world.run(10, 0.25)
    reports = Counter((lost, key) for _, keys, lost in world.news for key in keys)
    assert reports == {(True, CHAT): 1, (False, CHAT): 1}
    assert world.count(chat) == 800


def test_nodes_that_flap_out_of_step_are_replanned_once_a_minute_at_most() -> None:
    world, chat = World(), plan()
    world.listed(*names(40))
    assert world.count(chat) == 320
    for second in range(900):
        for i in range(40):
            phase = (second + 2 * i) % 80
            if phase in (0, 10):
                world.node(f"n{i}", ready="Unknown" if phase == 0 else "True")
        world.run(1, 0.25)
    replans = [when for when, _, lost in world.news if not lost]
    assert 2 <= len(replans) <= 16
    assert min(b - a for a, b in pairwise(replans)) >= 59.9


def test_a_younger_plan_is_reconciled_when_an_older_one_takes_or_leaves_its_nodes() -> None:
    world, chat, code = World(), plan(), plan(CODE, age=1)
    world.listed(*names(2))
    assert world.count(chat) == 16
    assert world.count(code) == 0  # the younger one is still planned with them
    world.run(20)
    assert [(keys, lost) for _, keys, lost in world.news] == [({CHAT}, False), ({CODE}, False)]
    assert (world.count(chat), world.count(code)) == (0, 16)
    assert world.inventory.finding(chat).reason is Reason.POOL_CLAIMED
    assert "code" not in world.inventory.finding(chat).message

    world.inventory.delete_plan(CODE)
    world.run(60)
    assert world.count(chat) == 16


def test_a_node_with_pods_of_others_is_excluded_and_with_its_own_is_not() -> None:
    world, chat = World(), plan()
    world.listed("n0", "n1")
    assert world.count(chat) == 16
    world.pod("own", "n0", plan="chat")
    world.run(20)
    assert (world.news, world.pods) == ([], [CHAT])
    world.pod("stranger", "n1")
    world.run(20)
    assert [lost for _, _, lost in world.news] == [False]
    inventory = world.inventory.inventory(chat)
    assert inventory
    assert [(node.node, node.reason) for node in inventory.excluded] == [
        ("n1", ExclusionReason.HELD)
    ]
    world.inventory.delete_pod("uid-stranger", world.version + 1)
    world.run(61)
    assert world.count(chat) == 16


def test_an_island_is_ready_if_all_its_pods_are_and_has_their_phase() -> None:
    world = World()
    world.inventory.update_plan(STATIC)
    world.listed("n0", "n1")
    world.pod("p0", "n0", plan="chat")
    world.pod("p1", "n1", plan="chat", ready=False)
    (island,) = world.inventory.island_pods(CHAT).values()
    assert (island.ready, island.phase, island.pods, island.gpus) == (False, "prefill", 2, 16)
    world.pod("p1", "n1", plan="chat", phase="decode")
    (island,) = world.inventory.island_pods(CHAT).values()
    assert (island.ready, island.phase, {*island.nodes}) == (True, "", {"n0", "n1"})
    assert world.pods == [CHAT] * 3
    world.pod("p1", "n1", plan="chat", phase="decode")  # a report without news
    assert world.pods == [CHAT] * 3
    world.node("n1", ready="Unknown")  # a plan that states its counts hears through its pods
    world.run(1)
    assert [(keys, lost) for _, keys, lost in world.news] == [({CHAT}, True)]


def test_pods_that_a_list_lacks_are_deleted_in_its_namespace_only() -> None:
    world = World()
    world.inventory.update_plan(STATIC)
    world.listed("n0")
    world.pod("p0", "n0", plan="chat")
    world.inventory.replace_pods(set(), world.version, "elsewhere")
    assert world.inventory.island_pods(CHAT)
    world.inventory.replace_pods(set(), world.version, "team")
    assert world.inventory.island_pods(CHAT) == {}


def test_a_label_that_was_not_kept_needs_another_list_and_other_plans_continue() -> None:
    world, chat, racks = World(), plan(), plan(CODE, age=1, domain_label=CLIQUE)
    world.inventory.update_plan(chat)
    world.listed("n0")
    assert world.count(chat) == 8
    assert world.lacks == 0
    assert world.inventory.inventory(racks) is None
    assert world.lacks == 1
    assert world.count(chat) == 8
    world.inventory.begin_list()
    world.node("n0", {**H100, CLIQUE: "r1"})
    world.node("n1", {**H100, CLIQUE: "r2"})
    world.inventory.replace_nodes({"n0", "n1"}, world.version)
    assert world.news == [(0.0, {CODE}, False)]
    assert world.count(racks) == 8
    world.run(20)  # the younger plan leaves the other node
    inventory = world.inventory.inventory(racks)
    assert inventory
    assert inventory.pools[0].nodes == {"r1": ("n0",), "r2": ("n1",)}


def test_a_missing_permission_and_the_switch_are_named() -> None:
    world, chat = World(), plan()
    assert world.inventory.inventory(chat) is None
    world.inventory.forbid((Permission("list", "", "nodes"),))
    assert world.news == [(0.0, {CHAT}, False)]
    finding = world.inventory.finding(chat)
    assert finding.status is ConditionStatus.UNKNOWN
    assert finding.message.startswith("missing right: list nodes in the cluster; grant")
    off = World(off=True)
    assert "ARCHIPELAGO_INVENTORY=Auto" in off.inventory.finding(chat).message


def test_no_plan_gets_a_node_outside_the_administrators_selector() -> None:
    """B39: whatever the plan selects."""
    world = World(allowed={"serving": "yes"})
    chat = plan(selector={"kubernetes.io/hostname": "n0"})
    world.inventory.update_plan(chat)
    world.inventory.begin_list()
    world.node("n0")
    world.inventory.replace_nodes({"n0"}, world.version)
    inventory = world.inventory.inventory(chat)
    assert inventory
    assert [node.reason for node in inventory.excluded] == [ExclusionReason.FORBIDDEN]


async def test_the_loop_reports_a_loss_in_time_and_sleeps_otherwise() -> None:
    """On the real clock: 0.2 s of quiet, then the repair, and no tick without need."""
    reported = asyncio.Event()
    inventory = ClusterInventory(
        {}, lambda _keys, lost: reported.set() if lost else None, print, print
    )
    inventory.begin_list()
    inventory.update_node(*read_versioned(body("n0", H100, 1)))
    inventory.replace_nodes({"n0"}, 1)
    assert inventory.inventory(plan())
    task = asyncio.create_task(inventory.run())
    await asyncio.sleep(0.1)
    started = asyncio.get_running_loop().time()
    inventory.delete_node("n0", 2)
    await asyncio.wait_for(reported.wait(), 2)
    assert 0.15 <= asyncio.get_running_loop().time() - started < 1.0
    task.cancel()
