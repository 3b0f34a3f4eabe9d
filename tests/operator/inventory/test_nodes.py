"""Facts of nodes and GPUs of pods, as the operator keeps them."""

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.errors import Unreadable
from archipelago.operator.inventory.nodes import NodeTable, read_versioned
from archipelago.operator.inventory.pods import START, PodTable, read_pod, requested
from archipelago.operator.resources.live import LiveStatus, TableIsland
from archipelago.operator.resources.names import Key
from archipelago.planner.documents import Node
from archipelago.planner.kubernetes.labels import ISLAND_LABEL, PLAN_LABEL, ROLE_LABEL
from archipelago.planner.kubernetes.nodes import Why
from tests.support.operator.nodes import CLIQUE, H100, ODD, body

NODES = 5000
BYTES = 200
"""Of a node and its share of what is shared."""


def test_a_heartbeat_is_no_change() -> None:
    table = NodeTable({CLIQUE})
    assert table.update(*read_versioned(body("n", H100, 1)))
    before = table.get("n")
    assert not table.update(*read_versioned(body("n", H100, 2)))
    assert table.get("n") == before
    assert table.get("n") is not before  # the version is newer


@pytest.mark.parametrize(
    "change",
    [
        {"ready": "Unknown"},
        {"cordoned": True},
        {"gpus": 4},
        {"allocatable": {"nvidia.com/gpu": "7"}},
        {"capacity": {"nvidia.com/mig-1g.10gb": "7"}},
    ],
)
def test_a_change_that_a_plan_could_depend_on_is_reported(change: dict[str, Any]) -> None:
    table = NodeTable()
    table.update(*read_versioned(body("n", H100, 1)))
    assert table.update(*read_versioned(body("n", H100, 2, **change)))


def test_a_changed_label_is_reported_if_a_plan_names_it() -> None:
    table = NodeTable({CLIQUE})
    table.update(*read_versioned(body("n", H100, 1)))
    assert not table.update(
        *read_versioned(body("n", {**H100, "nvidia.com/gfd.timestamp": "1711110215"}, 2))
    )
    assert table.update(*read_versioned(body("n", {**H100, CLIQUE: "a.1"}, 3)))
    assert table.update(*read_versioned(body("n", {**ODD, CLIQUE: "a.1"}, 4)))
    assert table.lacks({"rack"})
    assert not table.lacks({CLIQUE})


def test_an_older_version_changes_nothing() -> None:
    """Watch and list may overtake each other."""
    table = NodeTable()
    table.update(*read_versioned(body("n", H100, 5, cordoned=True)))
    assert not table.update(*read_versioned(body("n", H100, 4)))
    (node,) = table
    assert node.shape.temporary_reason is Why.CORDONED


def test_a_cordon_ends_no_pod_but_a_node_that_is_not_ready_serves_none() -> None:
    """Cordoned and lost at once, as a drain leaves it: no plan, and no traffic either."""
    table = NodeTable()
    for name, state in {
        "cordoned": {"cordoned": True},
        "plugin-restarts": {"allocatable": {"nvidia.com/gpu": "0"}},
        "lost": {"ready": "Unknown"},
        "drained": {"cordoned": True, "ready": "Unknown"},
    }.items():
        table.update(*read_versioned(body(name, H100, **state)))  # type: ignore[arg-type]
    assert {n.name for n in table if n.shape.serving} == {"cordoned", "plugin-restarts"}
    assert not any(n.shape.up for n in table)


def test_nodes_without_gpus_are_not_kept() -> None:
    table = NodeTable()
    assert not table.update(*read_versioned(body("cpu", {}, gpus=None)))
    assert not [*table]
    table.update(*read_versioned(body("n", H100, 1)))
    assert table.update(*read_versioned(body("n", {}, 2, gpus=None)))  # its GPUs are gone
    assert not [*table]


def test_a_list_removes_what_is_gone_and_keeps_what_is_newer() -> None:
    table = NodeTable()
    for name, version in {"stays": 1, "goes": 2, "younger": 9}.items():
        table.update(*read_versioned(body(name, H100, version)))
    assert table.delete_unlisted({"stays"}, 5) == ("goes",)
    assert {n.name for n in table} == {"stays", "younger"}
    assert table.delete("younger")
    assert not table.delete("younger")


def test_an_object_that_is_no_node_is_refused_with_the_field() -> None:
    with pytest.raises(Unreadable, match="status: missing"):
        read_versioned({"metadata": {"name": "n", "resourceVersion": "1"}})


OBJECTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([H100, ODD]),
    st.booleans(),
    st.sampled_from([None, 4, 8]),
)


@given(st.lists(OBJECTS, max_size=20))
def test_the_table_has_the_last_versions_and_only_their_shapes(
    objects: list[tuple[str, dict[str, str], bool, int | None]],
) -> None:
    table, last = NodeTable(), NodeTable()
    newest: dict[str, dict[str, Any]] = {}
    for version, (name, labels, cordoned, gpus) in enumerate(objects):
        newest[name] = body(name, labels if gpus else {}, version, cordoned=cordoned, gpus=gpus)
        table.update(*read_versioned(newest[name]))
    for item in newest.values():
        last.update(*read_versioned(item))
    assert {*table} == {*last}
    assert {*table._shapes} == {n.shape for n in table}
    assert table._used.total() == len([*table])


@pytest.mark.slow
def test_five_thousand_nodes_fit_and_are_read_in_seconds(
    record_property: Callable[[str, object], None],
) -> None:
    """5,000 nodes in 70 racks. The share of the table is measured, objects read and dropped."""
    texts = [
        json.dumps(body(f"gpu-pool-a-{i:05}", {**H100, CLIQUE: f"7b968a6d-c8aa.{i // 72}"}, i))
        for i in range(NODES)
    ]
    NodeTable({CLIQUE}).update(*read_versioned(json.loads(texts[0])))
    tracemalloc.start()
    table = NodeTable({CLIQUE})
    for text in texts:
        table.update(*read_versioned(json.loads(text)))
    each = tracemalloc.get_traced_memory()[0] / NODES
    tracemalloc.stop()
    bodies = [json.loads(text) for text in texts]
    began = time.process_time()
    assert not any(
        table.update(*read_versioned(item | {"metadata": _next(item)})) for item in bodies
    )
    seconds = time.process_time() - began
    node = table.get("gpu-pool-a-00000")
    own = sys.getsizeof(node) + sys.getsizeof(node.name) + 32 if node else 0
    record_property("bytes of a node", round(own))
    record_property("bytes of a node with its share of the table", round(each))
    record_property("seconds for 5,000 heartbeats", round(seconds, 2))
    assert own <= BYTES
    assert each <= 1.25 * BYTES
    assert seconds <= 3


def _next(item: dict[str, Any]) -> dict[str, Any]:
    """Metadata a heartbeat later."""
    metadata: dict[str, Any] = item["metadata"]
    return metadata | {"resourceVersion": str(int(metadata["resourceVersion"]) + NODES)}


GPU = "nvidia.com/gpu"


def container(gpus: int, **more: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {GPU: str(gpus), "cpu": "4"}}, **more}


def pod(gpus: int = 2, *, phase: str = "Running", **spec: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "metadata": {
            "namespace": "team",
            "name": "p",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {PLAN_LABEL: "chat"},
        },
        "spec": {"nodeName": "n1", "containers": [container(gpus)], **spec},
        "status": {"phase": phase},
    }


def test_a_running_pod_holds_its_gpus_for_the_plan_of_its_own_namespace() -> None:
    own = read_pod(pod())
    assert own
    assert (own.uid, own.node, own.gpus, own.plan) == ("u", "n1", 2, Key("team", "chat"))
    body = pod()
    del body["metadata"]["labels"]
    foreign = read_pod(body)
    assert foreign
    assert (foreign.gpus, foreign.plan) == (2, None)


@pytest.mark.parametrize(
    "body",
    [pod(0), pod(phase="Succeeded"), pod(phase="Failed"), pod(nodeName=None)],
    ids=["no GPUs", "done", "failed", "not placed"],
)
def test_a_pod_that_is_over_or_not_scheduled_holds_no_gpu(body: dict[str, Any]) -> None:
    facts = read_pod(body)
    assert facts
    assert facts.gpus == 0


def test_a_pod_that_is_being_deleted_still_holds_its_gpus() -> None:
    body = pod()
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    facts = read_pod(body)
    assert facts
    assert (facts.gpus, facts.ready) == (2, False)


def test_a_pod_that_ends_without_end_does_not_keep_its_successor_from_serving() -> None:
    """On a lost node a deleted pod stays; the island is what the pod beside it is."""

    def of_role(role: str, uid: str) -> dict[str, Any]:
        body = pod()
        body["metadata"] |= {"uid": uid}
        body["metadata"]["labels"] |= {ISLAND_LABEL: "decode-0", ROLE_LABEL: role}
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        return body

    table, chat = PodTable(), Key("team", "chat")
    old = of_role("old", "u-1")
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for number, seen in enumerate((old, of_role("new-decode", "u-2"))):
        facts = read_pod(seen)
        assert facts
        table.update(facts, 0.0)
        (island,) = table.islands(chat).values()
        assert (island.ready, island.role) == ((False, "old"), (True, "new-decode"))[number]
    whole = TableIsland("llama", "decode", ("n1",), gpus=2, role="new-decode")
    assert LiveStatus(pods=table.islands(chat)).serves("decode-0", whole)
    assert not LiveStatus(pods=table.islands(chat)).serves("decode-0", replace(whole, gpus=4))


@pytest.mark.parametrize(
    ("init", "containers", "expected"),
    [
        ([], [1, 2], 3),  # they run together
        ([(4, "")], [1, 2], 4),  # an init container runs alone, and is the larger
        ([(4, ""), (3, "")], [1], 4),  # one after the other
        ([(1, "Always")], [2], 3),  # a sidecar stays
        ([(1, "Always"), (4, "")], [2], 5),  # and is there while the next one runs
        ([(4, ""), (1, "Always")], [2], 4),  # but not while the one before it does
    ],
)
def test_requests_are_summed_as_the_scheduler_does(
    init: list[tuple[int, str]], containers: list[int], expected: int
) -> None:
    spec = {
        "initContainers": [container(n, **({"restartPolicy": p} if p else {})) for n, p in init],
        "containers": [container(n) for n in containers],
    }
    assert requested(Node(spec)) == expected


def test_a_request_beside_its_limit_counts_once() -> None:
    both = {"resources": {"limits": {GPU: "2"}, "requests": {GPU: "2"}}}
    assert requested(Node({"containers": [both]})) == 2


def test_a_pod_holds_gpus_while_it_runs_or_may_still_start() -> None:
    """A name of a node that somebody wrote into it takes nothing; never to start, neither."""
    named = pod(1, phase="Pending")
    named["metadata"] |= {"uid": "x", "labels": {}}
    table, chat, nodes = PodTable(), Key("team", "chat"), {"n1": 8}

    def report(version: int, now: float, body: dict[str, Any], **status: Any) -> dict[str, int]:  # noqa: ANN401
        body["metadata"]["resourceVersion"] = str(version)
        body["status"] |= status
        facts = read_pod(body)
        assert facts
        table.update(facts, now)
        return table.held_by_others(chat, nodes)

    assert report(1, 0.0, named) == {}
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    assert report(2, 0.0, named, conditions=scheduled) == {"n1": 1}
    assert report(3, 500.0, named, message="pulling") == {"n1": 1}
    assert table.wake() == START
    assert [late.uid for late in table.take_late(START)] == ["x"]
    assert table.held_by_others(chat, nodes) == {}
    assert report(4, 700.0, named, message="still pulling") == {}
    init: list[dict[str, Any]] = [{"state": {"running": {}}}]
    assert report(5, 701.0, named, initContainerStatuses=init) == {"n1": 1}
    assert report(6, 702.0, pod(8, phase="Running")) == {"n1": 1}  # our own beside it
    rival = pod(8, phase="Pending")
    rival["metadata"] |= {"uid": "y", "namespace": "other"}
    assert report(7, 703.0, rival, conditions=scheduled) == {"n1": 1}  # ours hold those
    assert report(8, 704.0, rival, phase="Running") == {"n1": 9}
    assert report(9, 705.0, rival, phase="Failed") == {"n1": 1}


def test_a_plan_of_the_same_name_in_another_namespace_is_another_plan() -> None:
    """A label alone takes no GPUs from a plan's books: anybody can write one."""
    table = PodTable()
    for uid, namespace, node, gpus in [("a", "team", "n1", 2), ("b", "other", "n1", 1)]:
        body = pod(gpus, nodeName=node)
        body["metadata"] |= {"uid": uid, "namespace": namespace}
        facts = read_pod(body)
        assert facts
        table.update(facts, 0.0)
    unlabelled = pod(4, nodeName="n2")
    unlabelled["metadata"] |= {"uid": "c", "labels": {}}
    facts = read_pod(unlabelled)
    assert facts
    table.update(facts, 0.0)
    nodes = {"n1": 8, "n2": 8}
    assert table.held_by_others(Key("team", "chat"), nodes) == {"n1": 1, "n2": 4}
    assert table.held_by_others(Key("other", "chat"), nodes) == {"n1": 2, "n2": 4}
