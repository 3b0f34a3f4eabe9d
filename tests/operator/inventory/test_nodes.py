"""What is kept of nodes: little, shared, and equal after a heartbeat."""

import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.nodefacts import NodeTable
from archipelago.planner.errors import PlanFileError
from archipelago.planner.nodes import Why
from tests.operator.nodes import CLIQUE, H100, ODD, body

NODES = 5000
BYTES = 200
"""Of a node and its share of what is shared."""


def test_a_heartbeat_is_no_news() -> None:
    table = NodeTable({CLIQUE})
    assert table.see(body("n", H100, 1))
    before = table.get("n")
    assert not table.see(body("n", H100, 2))
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
def test_what_a_plan_could_care_about_is_news(change: dict[str, Any]) -> None:
    table = NodeTable()
    table.see(body("n", H100, 1))
    assert table.see(body("n", H100, 2, **change))


def test_labels_are_news_where_somebody_looks_at_them() -> None:
    table = NodeTable({CLIQUE})
    table.see(body("n", H100, 1))
    assert not table.see(body("n", {**H100, "nvidia.com/gfd.timestamp": "1711110215"}, 2))
    assert table.see(body("n", {**H100, CLIQUE: "a.1"}, 3))
    assert table.see(body("n", {**ODD, CLIQUE: "a.1"}, 4))
    assert table.lacks({"rack"})
    assert not table.lacks({CLIQUE})


def test_an_older_version_changes_nothing() -> None:
    """Watch and list may overtake each other."""
    table = NodeTable()
    table.see(body("n", H100, 5, cordoned=True))
    assert not table.see(body("n", H100, 4))
    (known,) = table
    assert known.shape.passing is Why.CORDONED


def test_a_cordon_ends_no_pod_but_a_node_that_is_not_ready_serves_none() -> None:
    """Cordoned and lost at once, as a drain leaves it: no plan, and no traffic either."""
    table = NodeTable()
    for name, state in {
        "cordoned": {"cordoned": True},
        "plugin-restarts": {"allocatable": {"nvidia.com/gpu": "0"}},
        "lost": {"ready": "Unknown"},
        "drained": {"cordoned": True, "ready": "Unknown"},
    }.items():
        table.see(body(name, H100, **state))  # type: ignore[arg-type]
    assert {n.name for n in table if n.shape.serving} == {"cordoned", "plugin-restarts"}
    assert not any(n.shape.up for n in table)


def test_nodes_without_gpus_are_not_kept() -> None:
    table = NodeTable()
    assert not table.see(body("cpu", {}, gpus=None))
    assert len(table) == 0
    table.see(body("n", H100, 1))
    assert table.see(body("n", {}, 2, gpus=None))  # its GPUs are gone
    assert len(table) == 0


def test_a_list_tells_what_is_gone_but_not_what_came_after_it() -> None:
    table = NodeTable()
    for name, version in {"stays": 1, "goes": 2, "younger": 9}.items():
        table.see(body(name, H100, version))
    assert table.list_ended({"stays"}, 5) == ("goes",)
    assert {n.name for n in table} == {"stays", "younger"}
    assert table.drop("younger")
    assert not table.drop("younger")


def test_what_is_no_node_is_refused_with_the_place() -> None:
    with pytest.raises(PlanFileError, match="status: missing"):
        NodeTable().see({"metadata": {"name": "n", "resourceVersion": "1"}})


OBJECTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([H100, ODD]),
    st.booleans(),
    st.sampled_from([None, 4, 8]),
)


@given(st.lists(OBJECTS, max_size=20))
def test_the_table_is_what_was_said_last_and_shapes_do_not_pile_up(
    objects: list[tuple[str, dict[str, str], bool, int | None]],
) -> None:
    table, last = NodeTable(), NodeTable()
    newest: dict[str, dict[str, Any]] = {}
    for version, (name, labels, cordoned, gpus) in enumerate(objects):
        newest[name] = body(name, labels if gpus else {}, version, cordoned=cordoned, gpus=gpus)
        table.see(newest[name])
    for item in newest.values():
        last.see(item)
    assert {*table} == {*last}
    assert {*table._shapes} == {n.shape for n in table}
    assert table._used.total() == len(table)


def test_five_thousand_nodes_fit_and_are_read_in_seconds(
    record_property: Callable[[str, object], None],
) -> None:
    """5,000 nodes in 70 racks. The share of the table is measured, objects read and dropped."""
    texts = [
        json.dumps(body(f"gpu-pool-a-{i:05}", {**H100, CLIQUE: f"7b968a6d-c8aa.{i // 72}"}, i))
        for i in range(NODES)
    ]
    NodeTable({CLIQUE}).see(json.loads(texts[0]))  # what is read once for all nodes
    tracemalloc.start()
    table = NodeTable({CLIQUE})
    for text in texts:
        table.see(json.loads(text))
    each = tracemalloc.get_traced_memory()[0] / NODES
    tracemalloc.stop()
    bodies = [json.loads(text) for text in texts]
    began = time.process_time()
    assert not any(table.see(item | {"metadata": _next(item)}) for item in bodies)
    seconds = time.process_time() - began
    one = table.get("gpu-pool-a-00000")
    own = sys.getsizeof(one) + sys.getsizeof(one.name) + 32 if one else 0
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
