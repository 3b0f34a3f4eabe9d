"""The nodes of pools, counted by hand, and the reasons of those that are excluded."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.nodes import NodeFacts
from archipelago.operator.inventory.ownership import PlanSelector, PoolSelector, assign_owners
from archipelago.operator.inventory.pools import (
    ExclusionReason,
    PlanInventory,
    ResolveContext,
    domain_name,
    inventory_finding,
    resolve_inventory,
)
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.status import MESSAGE_BYTES, ConditionStatus, Reason, bounded
from archipelago.planner.kubernetes.nodes import Why
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
        assign_owners(plans, nodes, allowed or {}),
        held or {},
        lambda n: n not in unsteady,
        allowed or {},
    )
    return resolve_inventory(us, nodes, around)


def exclusions(inventory: PlanInventory) -> dict[str, tuple[Why | ExclusionReason, str]]:
    return {node.node: (node.reason, node.detail) for node in inventory.excluded}


def test_gpus_of_whole_nodes_are_counted() -> None:
    """Ten nodes, each with something else: 2 x 8 GPUs count, and each other one says why not."""
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
    assert stock.fields() == {"count": 16, "gpusPerNode": 8}
    assert stock.nodes == {"": ("n0", "n1")}
    assert exclusions(inventory) == {
        "n2": (Why.CORDONED, ""),
        "n3": (Why.NOT_READY, ""),
        "n4": (ExclusionReason.ODD, "7 of 8 allocatable, not 8"),
        "n5": (ExclusionReason.ODD, "4 of 4 allocatable, not 8"),
        "n6": (ExclusionReason.HELD, "3 of 8"),
        "n7": (ExclusionReason.OTHER, "L4"),
        "n8": (Why.UNKNOWN, "nvidia.com/gpu.product=NVIDIA-X1"),
        "n9": (ExclusionReason.UNSTEADY, ""),
    }


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


def test_an_older_plan_keeps_its_nodes_and_stays_unnamed() -> None:
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
        "7 nodes that this plan selects belong to an older plan: n1, n2, n3, n4, n5 and 2 more; "
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
        st.integers(0, 8),
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
    used = [name for names in stock.nodes.values() for name in names]
    excluded = [item.node for item in inventory.excluded]
    assert sorted(used + excluded) == sorted(n.name for n in nodes)
    random.shuffle(nodes)
    again = inventory_of(*nodes, pools=(PoolSelector("any", "H100"),), held=held, unsteady=unsteady)
    assert again == inventory
    if stock.count:
        Pool.model_validate({"name": "any", "accelerator": "H100", **stock.fields()})
