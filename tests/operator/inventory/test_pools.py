"""The nodes of pools, counted by hand, and the reasons of those that are excluded."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.claims import NO_RULES
from archipelago.operator.inventory.nodes import NodeFacts
from archipelago.operator.inventory.ownership import PlanSelector, PoolSelector, assign_owners
from archipelago.operator.inventory.pools import (
    ExclusionReason,
    PlanInventory,
    ResolveContext,
    domain_name,
    inventory_finding,
    part_step,
    resolve_inventory,
)
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.status import MESSAGE_BYTES, ConditionStatus, Reason, bounded
from archipelago.planner.kubernetes.nodes import Why
from archipelago.planner.problem import MAX_SHARED
from archipelago.planner.servingplan.pools import Pool
from tests.support.operator.nodes import CLIQUE, H100, L4, ODD, body, facts

POOL = PoolSelector("h100", "H100", gpus_per_node=8)
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def inventory_of(
    *nodes: NodeFacts,
    pools: tuple[PoolSelector, ...] = (POOL,),
    held: dict[str, int] | None = None,
    unsteady: tuple[str, ...] = (),
    elder: tuple[PoolSelector, ...] = (),
    allowed: dict[str, str] | None = None,
) -> PlanInventory:
    """The inventory of plan ``us``; ``elder`` are pools of an older plan."""
    us = PlanSelector(Key("team", "us"), "us", WHEN, pools)
    plans = [us, PlanSelector(Key("secret", "them"), "a-them", WHEN, elder)]
    around = ResolveContext(
        assign_owners(plans, nodes, allowed or {}, NO_RULES),
        held or {},
        lambda n: n not in unsteady,
        allowed or {},
    )
    return resolve_inventory(us, nodes, around)


def exclusions(inventory: PlanInventory) -> dict[str, tuple[Why | ExclusionReason, str]]:
    return {node.node: (node.reason, node.detail) for node in inventory.excluded}


def test_free_gpus_are_counted() -> None:
    """Ten nodes, each with something else: 2 x 8 and 5 GPUs count; each other one says why not."""
    inventory = inventory_of(
        *facts(
            body("n0", H100),
            body("n1", H100),
            body("n2", H100, cordoned=True),
            body("n3", H100, ready="Unknown"),
            body("n4", H100, allocatable={"nvidia.com/gpu": "7"}),
            body("n5", H100, gpus=4),
            body("n6", H100),
            body("n7", L4),
            body("n8", ODD),
            body("n9", H100),
        ),
        held={"n6": 3},
        unsteady=("n9",),
    )
    (stock,) = inventory.pools
    (domain,) = stock.fields()["domains"]
    assert (stock.count, domain["nodes"]) == (21, 2)
    assert domain["sharedNodes"] == [{"gpus": 5, "nodes": 1}]
    assert stock.nodes == {"": ("n0", "n1")}
    assert stock.shared == {"": {"n6": 5}}
    assert inventory_finding(inventory).message.endswith("h100 21 (5 of them on 1 shared nodes)")
    assert exclusions(inventory) == {
        "n2": (Why.CORDONED, ""),
        "n3": (Why.NOT_READY, ""),
        "n4": (ExclusionReason.ODD, "7 of 8 allocatable, not 8"),
        "n5": (ExclusionReason.ODD, "4 of 4 allocatable, not 8"),
        "n7": (ExclusionReason.OTHER, "L4"),
        "n8": (Why.UNKNOWN, "nvidia.com/gpu.product=NVIDIA-X1"),
        "n9": (ExclusionReason.UNSTEADY, ""),
    }


@pytest.mark.parametrize(
    ("smallest", "usable"),
    [
        pytest.param(1, [7, 4, 1, None], id="any island"),
        pytest.param(2, [6, 4, None, None], id="pairs"),
        pytest.param(4, [4, 4, None, None], id="fours"),
        pytest.param(8, [None] * 4, id="whole nodes only"),
        pytest.param(None, [None] * 4, id="paid for as a whole"),
    ],
)
def test_a_shared_node_counts_with_what_islands_can_take(
    smallest: int | None, usable: list[int | None]
) -> None:
    """Others hold 1, 4, 7 and 9 GPUs of nodes of 8; a node of which nothing is left says so."""
    held = {"n0": 1, "n1": 4, "n2": 7, "n3": 9}
    pool = PoolSelector("h100", "H100", gpus_per_node=8, smallest_island=smallest)
    inventory = inventory_of(*facts(*(body(n, H100) for n in held)), pools=(pool,), held=held)
    (stock,) = inventory.pools
    free = {name: gpus for name, gpus in zip(held, usable, strict=True) if gpus}
    assert dict(stock.shared.get("", {})) == free
    assert exclusions(inventory) == {
        name: (ExclusionReason.HELD, f"{gpus} of 8")
        for name, gpus in held.items()
        if name not in free
    }


@given(st.integers(1, 1024), st.sampled_from([1, 2, 3, 4, 8]))
def test_a_domain_never_has_more_numbers_of_free_gpus_than_a_plan_may_state(
    size: int, smallest: int
) -> None:
    step = part_step(PoolSelector("x", "H100", smallest_island=smallest), size)
    usable = {free // step * step for free in range(1, size)} - {0}
    assert len(usable) <= MAX_SHARED
    assert all(gpus % smallest == 0 for gpus in usable)
    assert size > 16 or usable == {free // smallest * smallest for free in range(1, size)} - {0}


def test_three_pods_of_one_gpu_cost_three_gpus() -> None:
    nodes = facts(*(body(f"n{i}", H100) for i in range(3)))
    assert inventory_of(*nodes, held=dict.fromkeys(("n0", "n1", "n2"), 1)).pools[0].count == 21


def test_the_size_of_a_node_is_that_of_most_unless_the_pool_states_it() -> None:
    """A broken GPU does not make a node a small one."""
    nodes = facts(
        body("a", H100, allocatable={"nvidia.com/gpu": "7"}),
        body("b", H100, allocatable={"nvidia.com/gpu": "7"}),
        body("c", H100),
        body("d", H100, gpus=4),
    )
    (stock,) = inventory_of(*nodes, pools=(PoolSelector("any", "H100"),)).pools
    assert (stock.gpus_per_node, stock.count) == (8, 8)
    (small,) = inventory_of(*nodes, pools=(PoolSelector("any", "H100", gpus_per_node=4),)).pools
    assert small.nodes == {"": ("d",)}


def test_two_small_nodes_outvote_a_large_one_and_one_does_not() -> None:
    two = facts(body("a", H100, gpus=4), body("b", H100, gpus=4), body("c", H100))
    sizes = [
        inventory_of(*n, pools=(PoolSelector("any", "H100"),)).pools[0].count
        for n in (two, two[1:])
    ]
    assert sizes == [8, 8]
    assert inventory_of(*two, pools=(PoolSelector("any", "H100"),)).pools[0].nodes == {
        "": ("a", "b")
    }


def test_domains_come_from_a_label_and_a_node_without_it_is_excluded() -> None:
    pool = PoolSelector("racks", "H100", gpus_per_node=8, domain_label=CLIQUE)
    rack = "7B968A6D.1"
    nodes = facts(
        body("a", {**H100, CLIQUE: "r-2"}),
        body("b", {**H100, CLIQUE: rack}),
        body("c", {**H100, CLIQUE: rack}),
        body("d", H100),
        pools=(pool,),
    )
    inventory = inventory_of(*nodes, pools=(pool,))
    names = sorted(("r-2", domain_name(rack)))
    assert inventory.pools[0].fields()["domains"] == [
        {"name": name, "nodes": 1 if name == "r-2" else 2} for name in names
    ]
    assert exclusions(inventory) == {"d": (ExclusionReason.NO_DOMAIN, CLIQUE)}


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=70), unique=True))
def test_domain_names_are_labels_and_differ(values: list[str]) -> None:
    """Of the value alone: a domain keeps its name when others come and go."""
    names = [domain_name(value) for value in values]
    assert len({*names}) == len(values)
    for name in names:
        Pool.model_validate(
            {
                "name": "p",
                "accelerator": "H100",
                "count": 8,
                "gpusPerNode": 8,
                "domains": [{"name": name, "nodes": 1}],
            }
        )


def test_an_older_plan_keeps_its_nodes_and_only_its_namespace_is_told() -> None:
    mine = PoolSelector("x", "H100", {}, 8)
    nodes = facts(
        *(body(f"n{i}", {**H100, "team": "x"} if i else H100) for i in range(8)), keys=("team",)
    )
    inventory = inventory_of(
        *nodes, pools=(mine,), elder=(PoolSelector("e", "H100", {"team": "x"}),)
    )
    assert inventory.pools[0].count == 8
    finding = inventory_finding(inventory)
    assert (finding.status, finding.reason) == (ConditionStatus.FALSE, Reason.POOL_CLAIMED)
    assert finding.message == (
        "7 nodes that this plan selects belong to others (7 to namespace secret): n1, n2, n3, n4, "
        "n5 and 2 more; raise spec.priority over plans of this namespace, or select other nodes; "
        "GPUs in use by pool: x 8"
    )


@pytest.mark.parametrize(("unknown", "text"), [(1, "x0 ("), (5, "x4 ("), (12, "and 7 more")])
def test_unknown_accelerators_are_counted_and_the_others_are_used(unknown: int, text: str) -> None:
    """A42: at most five names and the count."""
    nodes = facts(body("good", H100), *(body(f"x{i}", ODD) for i in range(unknown)))
    inventory = inventory_of(*nodes)
    finding = inventory_finding(inventory)
    assert inventory.pools[0].count == 8
    assert (finding.status, finding.reason) == (ConditionStatus.FALSE, Reason.UNKNOWN_ACCELERATOR)
    assert finding.message.startswith(f"{unknown} nodes have accelerators that are not in")
    assert text in finding.message
    assert sum(f"x{i} " in finding.message for i in range(unknown)) == min(unknown, 5)


def test_names_of_any_length_leave_the_count_readable() -> None:
    nodes = facts(*(body(f"{i}-" + "n" * 250, ODD) for i in range(6)))
    message = inventory_finding(inventory_of(*nodes)).message
    assert bounded(message, MESSAGE_BYTES).startswith("6 nodes have accelerators")


def test_an_empty_pool_has_the_reasons_in_its_message() -> None:
    nodes = facts(body("a", H100, cordoned=True), body("b", L4), body("c", L4))
    finding = inventory_finding(inventory_of(*nodes))
    assert finding.reason is Reason.NO_NODES
    assert "pool h100 has no node (2 another accelerator, 1 cordoned)" in finding.message
    empty = inventory_finding(inventory_of())
    assert "pool h100 has no node: none has the labels that it selects" in empty.message


def test_a_temporary_state_is_no_finding() -> None:
    """A cordoned node is somebody's intention, not a fault of the plan."""
    finding = inventory_finding(
        inventory_of(*facts(body("a", H100), body("b", H100, cordoned=True)))
    )
    assert (finding.status, finding.reason) == (ConditionStatus.TRUE, Reason.NODES_FOUND)
    assert finding.message == "GPUs in use by pool: h100 8"


def test_nodes_outside_the_operators_selector_are_excluded() -> None:
    nodes = facts(body("a", {**H100, "serving": "yes"}), body("b", H100), keys=("serving",))
    inventory = inventory_of(*nodes, allowed={"serving": "yes"})
    assert inventory.pools[0].count == 8
    assert exclusions(inventory) == {"b": (ExclusionReason.FORBIDDEN, "")}


NODES = st.lists(
    st.tuples(
        st.sampled_from([H100, L4, ODD]),
        st.sampled_from([4, 8]),
        st.booleans(),
        st.sampled_from([0, 0, 1, 2, 3, 5, 7, 8]),
        st.booleans(),
    ),
    max_size=10,
)


@given(NODES, st.randoms())
def test_every_selected_node_is_used_or_excluded_and_the_pool_is_valid(
    rows: list[tuple[dict[str, str], int, bool, int, bool]], random: Random
) -> None:
    nodes = [
        *facts(
            *(
                body(f"n{i}", labels, gpus=gpus, cordoned=cordoned)
                for i, (labels, gpus, cordoned, _, _) in enumerate(rows)
            )
        )
    ]
    held = {f"n{i}": min(row[3], row[1]) for i, row in enumerate(rows)}
    unsteady = tuple(f"n{i}" for i, row in enumerate(rows) if row[4])
    inventory = inventory_of(
        *nodes, pools=(PoolSelector("any", "H100"),), held=held, unsteady=unsteady
    )
    (stock,) = inventory.pools
    used = [name for names in stock.in_order().values() for name in names]
    assert inventory.names == frozenset(used)
    sizes = {n.name: n.shape.capacity_gpus for n in nodes}
    whole = [name for names in stock.nodes.values() for name in names]
    free = {name: gpus for part in stock.shared.values() for name, gpus in part.items()}
    assert not any(held[name] for name in whole)
    assert all(0 < gpus == sizes[name] - held[name] < sizes[name] for name, gpus in free.items())
    assert stock.count == sum(sizes[name] for name in whole) + sum(free.values())
    excluded = [item.node for item in inventory.excluded]
    assert sorted(used + excluded) == sorted(n.name for n in nodes)
    random.shuffle(nodes)
    again = inventory_of(*nodes, pools=(PoolSelector("any", "H100"),), held=held, unsteady=unsteady)
    assert again == inventory
    if stock.count:
        Pool.model_validate({"name": "any", "accelerator": "H100", **stock.fields()})
