"""One owner for each node: the oldest plan that selects it, whatever state the node is in."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.ownership import (
    PlanSelector,
    PoolSelector,
    assign_owners,
    label_keys,
)
from archipelago.operator.resources.names import Key
from tests.support.operator.nodes import H100, L4, ODD, body, facts

START = datetime(2026, 1, 1, tzinfo=UTC)
ANY = PoolSelector("any", "H100")


def plan(uid: str, age: int = 0, *pools: PoolSelector) -> PlanSelector:
    """A plan that was made so many seconds after the first."""
    return PlanSelector(Key("team", uid), uid, START + timedelta(seconds=age), pools or (ANY,))


def test_the_oldest_plan_has_the_node() -> None:
    nodes = facts(body("n", H100))
    assert assign_owners([plan("young", 5), plan("old", 1)], nodes, {}) == {"n": "old"}


def test_of_two_plans_of_the_same_second_the_lower_uid_has_the_node() -> None:
    """Timestamps have whole seconds: plans of one `kubectl apply` share theirs."""
    nodes = facts(body("n", H100))
    assert assign_owners([plan("b"), plan("a")], nodes, {}) == {"n": "a"}


def test_a_plan_owns_only_what_its_pools_could_use() -> None:
    """An old plan that selects everything leaves the L4 to the one that wants L4s."""
    nodes = facts(body("h", H100), body("l", L4), body("odd", ODD))
    plans = [plan("old", 0), plan("young", 1, PoolSelector("l4", "L4"))]
    assert assign_owners(plans, nodes, {}) == {"h": "old", "l": "young"}


def test_a_node_needs_every_label_of_a_selector() -> None:
    pool = PoolSelector("a", "H100", {"team": "a", "tier": "gold"})
    nodes = facts(
        body("both", {**H100, "team": "a", "tier": "gold"}),
        body("one", {**H100, "team": "a"}),
        body("other", {**H100, "team": "b", "tier": "gold"}),
        pools=(pool,),
    )
    assert assign_owners([plan("p", 0, pool)], nodes, {}) == {"both": "p"}


def test_nodes_outside_the_administrators_selector_have_no_owner() -> None:
    nodes = facts(body("a", {**H100, "serving": "yes"}), body("b", H100), keys=("serving",))
    assert assign_owners([plan("p")], nodes, {"serving": "yes"}) == {"a": "p"}


def test_the_labels_to_keep_are_those_of_selectors_and_domains() -> None:
    pools = (PoolSelector("a", "H100", {"team": "a"}), PoolSelector("b", "L4", domain_label="rack"))
    assert label_keys([plan("p", 0, *pools)], {"serving": "yes"}) == {"team", "rack", "serving"}


def test_of_two_pools_of_a_plan_the_first_by_name_has_the_node() -> None:
    (node,) = facts(body("n", H100))
    both = (PoolSelector("b", "H100"), PoolSelector("a", "H100"))
    pool = plan("p", 0, *both).pool_of(node.shape)
    assert pool is not None
    assert pool.name == "a"


STATES = st.sampled_from(
    [{}, {"cordoned": True}, {"ready": "False"}, {"allocatable": {"nvidia.com/gpu": "0"}}]
)
PLANS = st.lists(
    st.builds(plan, st.sampled_from("abcdef"), st.integers(0, 2), st.just(ANY)),
    unique_by=lambda p: p.uid,
    max_size=6,
)


@given(PLANS, st.lists(STATES, max_size=6), st.randoms())
def test_ownership_does_not_depend_on_order_or_on_temporary_states(
    plans: list[PlanSelector], states: list[dict[str, Any]], random: Random
) -> None:
    names = [f"n{i}" for i in range(len(states))]
    well = facts(*(body(name, H100) for name in names))
    ill = [*facts(*(body(n, H100, **s) for n, s in zip(names, states, strict=True)))]
    shuffled = [*plans]
    random.shuffle(shuffled)
    random.shuffle(ill)
    expected = assign_owners(plans, well, {})
    assert assign_owners(shuffled, ill, {}) == expected
    assert {*expected.values()} <= {
        min(plans, key=lambda p: (p.created, p.uid)).uid if plans else ""
    }


@given(PLANS)
def test_a_younger_plan_takes_nothing_from_an_older_one(plans: list[PlanSelector]) -> None:
    nodes = facts(body("a", H100), body("b", L4))
    before = assign_owners(plans, nodes, {})
    after = assign_owners([*plans, plan("zz", 99, ANY, PoolSelector("l4", "L4"))], nodes, {})
    assert before.items() <= after.items()
    assert after["b"] == "zz"
