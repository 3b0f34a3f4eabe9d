"""Names of nodes: a bijection between the planner's and the cluster's, and content both ways."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.ownership import PoolSelector
from archipelago.operator.inventory.pools import PlanInventory, PoolInventory
from archipelago.operator.inventory.resolve import node_names, resolved_spec
from archipelago.planner.problem import PlanningProblem
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.table.rename import to_generic, to_real
from archipelago.planner.templates.packing import nodes_of
from tests.operator.inventory.test_resolve import SPEC, ZONES, inventory, resource


def problem(spec: dict[str, Any]) -> PlanningProblem:
    return to_problem("x", load_resource(resource(spec)).spec)


def found() -> tuple[dict[str, Any], PlanInventory]:
    """Pool h100 with nodes n1, n2 in zone-a and n3 in zone-b, l40s with m2, m1; rented counted."""
    there = inventory(SPEC, h100=ZONES, l40s={"": ("m2", "m1")})
    return resolved_spec(SPEC, there), there


def test_the_nth_name_is_the_nth_node_of_its_domain() -> None:
    assert node_names(*found()) == {
        "h100-zone-a-0": "n1",
        "h100-zone-a-1": "n2",
        "h100-zone-b-0": "n3",
        "l40s-0": "m1",
        "l40s-1": "m2",
        "rented-rented-0": "rented-rented-0",
        "rented-rented-1": "rented-rented-1",
    }


NODES = st.lists(st.text("abn-", min_size=1, max_size=4), unique=True, min_size=2, max_size=40)


@given(NODES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_name_of_the_planner_is_one_node_and_the_other_way_round(
    nodes: list[str],
    domains: int,
    dice: Any,  # noqa: ANN401
) -> None:
    """Whatever nodes are called, ``a-0`` of a pool ``a`` included, and however many there are."""
    dice.shuffle(nodes)
    cut = dice.randint(1, len(nodes) - 1)
    one, other = nodes[:cut], nodes[cut:]
    racks = {f"r{n}": tuple(one[n::domains]) for n in range(domains) if one[n::domains]}
    live = (
        PoolInventory(PoolSelector("a", "H100", {"x": "y"}, 8, "rack"), 8, racks),
        PoolInventory(PoolSelector("b", "H100", {"x": "z"}, 8), 8, {"": tuple(other)}),
    )
    counted = {"name": "c", "accelerator": "H100", "count": 16, "maxCount": 32, "gpusPerNode": 8}
    loose = {"name": "d", "accelerator": "H100", "count": 3}
    pools = [
        {"name": "a", "accelerator": "H100", "nodeSelector": {"x": "y"}, "domainLabel": "rack"},
        {"name": "b", "accelerator": "H100", "nodeSelector": {"x": "z"}},
        counted,
        loose,
    ]
    inventory = PlanInventory(live, ())
    spec = resolved_spec({**SPEC, "pipelines": [], "pools": pools}, inventory)
    named = node_names(spec, inventory)
    planned = [n for pool in problem(spec).pools for ns in nodes_of(pool).values() for n in ns]
    assert sorted(named) == sorted(planned)
    real = [named[name] for name in named if not name.startswith("c-")]
    assert sorted(real) == sorted(nodes)
    for pool in problem(spec).pools[:2]:
        for domain, generic in nodes_of(pool).items():
            there = racks.get(domain) or tuple(other)
            assert [named[name] for name in generic] == sorted(there)


def content(*islands: dict[str, Any]) -> dict[str, Any]:
    return {"models": [], "groups": [], "islands": list(islands)}


def island(name: str, pool: str, *nodes: str) -> dict[str, Any]:
    return {"name": name, "pool": pool, "nodes": list(nodes), "gpus": 8}


def test_content_is_translated_and_back() -> None:
    """Nodes of parts are those of the island, in the same order."""
    planned = content(
        island("i", "h100", "h100-zone-a-1", "h100-zone-a-0"),
        island("k", "rented", "rented-rented-1"),
        {
            **island("p", "l40s+h100", "l40s-1", "h100-zone-b-0"),
            "parts": [
                {"pool": "l40s", "gpus": 4, "nodes": ["l40s-1"]},
                {"pool": "h100", "gpus": 4, "nodes": ["h100-zone-b-0"]},
            ],
        },
    )
    named = node_names(*found())
    real = to_real(planned, named)
    assert [i["nodes"] for i in real["islands"]] == [
        ["n2", "n1"],
        ["rented-rented-1"],
        ["m2", "n3"],
    ]
    assert [part["nodes"] for part in real["islands"][2]["parts"]] == [["m2"], ["n3"]]
    assert to_generic(real, named) == planned


def test_islands_on_nodes_that_the_plan_has_no_more_keep_their_names() -> None:
    published = content(
        island("i", "h100", "n1"),
        island("gone", "h100", "n2", "n9"),
        island("other", "left", "left-0"),
        island("k", "loose"),
    )
    back = to_generic(published, node_names(*found()))
    assert [i["nodes"] for i in back["islands"]] == [
        ["h100-zone-a-0"],
        ["n2", "n9"],
        ["left-0"],
        [],
    ]


def test_without_names_nothing_is_translated() -> None:
    """A plan whose pools are all counted."""
    published = content(island("i", "h100", "h100-0"))
    assert to_generic(published, {}) == published
    assert to_real(published, {}) == published


def test_a_node_may_be_called_as_the_planner_calls_one_of_another_pool() -> None:
    """Two names lead to ``c-0``: the pool of the island tells which is meant."""
    named = {"a-0": "c-0", "c-0": "c-0"}
    published = content(island("i", "a", "c-0"), island("k", "c", "c-0"))
    back = to_generic(published, named)
    assert [i["nodes"] for i in back["islands"]] == [["a-0"], ["c-0"]]
