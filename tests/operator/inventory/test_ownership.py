"""One owner for each node: the first in order that may claim it, whatever state the node is in."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.inventory.claims import NO_RULES, ClaimRule, Claims
from archipelago.operator.inventory.nodes import NodeFacts
from archipelago.operator.inventory.ownership import (
    OverQuota,
    PlanSelector,
    PoolSelector,
    Quota,
    assign_owners,
    in_order,
    label_keys,
)
from archipelago.operator.resources.names import Key
from tests.support.operator.nodes import H100, L4, ODD, body, facts

START = datetime(2026, 1, 1, tzinfo=UTC)
ANY = PoolSelector("any", "H100")


def plan(uid: str, age: int = 0, *pools: PoolSelector) -> PlanSelector:
    """A plan that was made so many seconds after the first."""
    return PlanSelector(Key("team", uid), uid, START + timedelta(seconds=age), pools or (ANY,))


def owners(
    plans: list[PlanSelector],
    nodes: Iterable[NodeFacts],
    allowed: dict[str, str] | None = None,
    claims: Claims = NO_RULES,
) -> dict[str, str]:
    """Uid of the owner by node."""
    ownership = assign_owners(plans, nodes, allowed or {}, claims)
    return {name: owner.uid for name, owner in ownership.owners.items()}


def test_the_oldest_plan_has_the_node() -> None:
    nodes = facts(body("n", H100))
    assert owners([plan("young", 5), plan("old", 1)], nodes) == {"n": "old"}


def test_of_two_plans_of_the_same_second_the_lower_uid_has_the_node() -> None:
    """Timestamps have whole seconds: plans of one `kubectl apply` share theirs."""
    nodes = facts(body("n", H100))
    assert owners([plan("b"), plan("a")], nodes) == {"n": "a"}


def test_a_plan_owns_only_what_its_pools_could_use() -> None:
    """An old plan that selects everything leaves the L4 to the one that wants L4s."""
    nodes = facts(body("h", H100), body("l", L4), body("odd", ODD))
    plans = [plan("old", 0), plan("young", 1, PoolSelector("l4", "L4"))]
    assert owners(plans, nodes) == {"h": "old", "l": "young"}


def test_a_node_needs_every_label_of_a_selector() -> None:
    pool = PoolSelector("a", "H100", {"team": "a", "tier": "gold"})
    nodes = facts(
        body("both", {**H100, "team": "a", "tier": "gold"}),
        body("one", {**H100, "team": "a"}),
        body("other", {**H100, "team": "b", "tier": "gold"}),
        pools=(pool,),
    )
    assert owners([plan("p", 0, pool)], nodes) == {"both": "p"}


def test_an_unknown_product_belongs_to_the_pool_that_names_its_label() -> None:
    mine = PoolSelector("mine", "My-GPU", products=frozenset({"quantum-9000"}))
    nodes = facts(
        body("mine", {**ODD, "nvidia.com/gpu.product": "Quantum-9000"}),
        body("odd", {**ODD, "nvidia.com/gpu.product": "Quantum-8000"}),
        body("h", H100),
    )
    assert owners([plan("p", 0, mine)], nodes) == {"mine": "p"}
    assert owners([plan("p")], nodes) == {"h": "p"}


def test_nodes_outside_the_administrators_selector_have_no_owner() -> None:
    nodes = facts(body("a", {**H100, "serving": "yes"}), body("b", H100), keys=("serving",))
    assert owners([plan("p")], nodes, {"serving": "yes"}) == {"a": "p"}


def test_the_labels_to_keep_are_those_of_selectors_and_domains() -> None:
    pools = (PoolSelector("a", "H100", {"team": "a"}), PoolSelector("b", "L4", domain_label="rack"))
    assert label_keys([plan("p", 0, *pools)], {"serving": "yes"}, NO_RULES) == {
        "team",
        "rack",
        "serving",
    }


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
    expected = owners(plans, well)
    assert owners(shuffled, ill) == expected
    assert {*expected.values()} <= {
        min(plans, key=lambda p: (p.created, p.uid)).uid if plans else ""
    }


@given(PLANS)
def test_a_younger_plan_takes_nothing_from_an_older_one(plans: list[PlanSelector]) -> None:
    nodes = facts(body("a", H100), body("b", L4))
    before = owners(plans, nodes)
    after = owners([*plans, plan("zz", 99, ANY, PoolSelector("l4", "L4"))], nodes)
    assert before.items() <= after.items()
    assert after["b"] == "zz"


def tenant(
    uid: str,
    namespace: str,
    age: int = 0,
    priority: int = 0,
    *pools: PoolSelector,
    suspended: bool = False,
    stated: int = 0,
) -> PlanSelector:
    plan_pools = pools if pools or stated else (ANY,)
    when = START + timedelta(seconds=age)
    counts = {"H100": stated} if stated else {}
    return PlanSelector(Key(namespace, uid), uid, when, plan_pools, priority, suspended, counts)


def rules(*given: dict[str, Any]) -> Claims:
    return Claims(tuple(ClaimRule.model_validate(rule) for rule in given))


def test_a_suspended_plan_leaves_every_node_to_the_others() -> None:
    nodes = facts(body("n", H100))
    assert owners([tenant("old", "a", suspended=True), tenant("new", "b", 9)], nodes) == {
        "n": "new"
    }


def test_priority_counts_in_a_namespace_and_over_others_as_far_as_is_permitted() -> None:
    nodes = facts(body("n", H100))
    own = [tenant("old", "a", 0), tenant("new", "a", 9, 1)]
    assert owners(own, nodes) == {"n": "new"}
    two = [tenant("old", "a", 0), tenant("new", "b", 9, 1000)]
    assert owners(two, nodes) == {"n": "old"}
    permitted = rules({"namespaces": ["b"], "maxPriority": 1}, {"namespaces": ["*"]})
    assert owners(two, nodes, claims=permitted) == {"n": "new"}
    third = [*two, tenant("between", "c", 5, 1000)]  # 1000 of b is 1
    assert owners(third, nodes, claims=permitted) == {"n": "new"}


def test_a_namespace_claims_what_its_first_rule_for_a_node_permits() -> None:
    pool = PoolSelector("p", "H100", {"gpu": "h"})
    nodes = facts(
        *(body(f"n{i}", {**H100, "gpu": "h", "for": "ab"[i % 2]}) for i in range(6)),
        keys=("gpu", "for"),
    )
    claims = rules(
        {"namespaces": ["team-a"], "nodeSelector": {"for": "a"}},
        {"namespaces": ["team-*"], "maxGpus": {"H100": 16}},
    )
    found = owners(
        [tenant("a", "team-a", 0, 0, pool), tenant("x", "x", 1, 0, pool)], nodes, claims=claims
    )
    assert found == dict.fromkeys(
        ("n0", "n2", "n4", "n1", "n3"), "a"
    )  # three, and 16 GPUs of others
    second = owners([tenant("b", "team-b", 0, 0, pool)], nodes, claims=claims)
    assert second == {"n0": "b", "n1": "b"}


def test_a_quota_is_filled_with_the_oldest_nodes_and_stated_gpus_count() -> None:
    nodes = [replace(node, created=f"2026-01-0{9 - i}") for i, node in enumerate(EIGHT)]
    claims = rules({"namespaces": ["a"], "maxGpus": 24})
    plans = [
        tenant("count", "a", 0, stated=8),
        tenant("nodes", "a", 1),
        tenant("more", "a", 2, stated=9),
    ]
    ownership = assign_owners(plans, nodes, {}, claims)
    assert sorted(ownership.owners) == ["n6", "n7"]
    quota = Quota("a", 0, "", 24)
    assert ownership.over == {
        "nodes": (OverQuota(quota, 24, 48),),
        "more": (OverQuota(quota, 24, 9),),
    }
    (other,) = assign_owners([tenant("x", "b", 0, stated=1)], nodes, {}, claims).over.values()
    assert other == (OverQuota(Quota("b", None, "H100", 0), 0, 1),)


EIGHT = facts(*(body(f"n{i}", H100) for i in range(8)))
FLEET = facts(
    *(
        body(
            f"n{i}",
            {**(L4 if i % 5 == 4 else H100), "gpu": "any", "half": "ab"[i % 2]},
            gpus=(8, 4)[i % 3 == 2],
        )
        for i in range(12)
    ),
    keys=("gpu", "half"),
)
SELECTORS = st.sampled_from([{}, {"gpu": "any"}, {"half": "a"}, {"half": "b"}, {"half": "c"}])
TENANTS = st.lists(
    st.builds(
        lambda uid, namespace, age, priority, chosen, suspended, stated: tenant(
            uid,
            namespace,
            age,
            priority,
            *(PoolSelector(f"p{i}", name, labels) for i, (name, labels) in enumerate(chosen)),
            suspended=suspended,
            stated=stated,
        ),
        st.sampled_from("abcdefgh"),
        st.sampled_from(["team-a", "team-b", "x"]),
        st.integers(0, 4),
        st.integers(0, 3),
        st.lists(st.tuples(st.sampled_from(["H100", "L4"]), SELECTORS), max_size=2),
        st.booleans(),
        st.sampled_from([0, 0, 4, 8, 24]),
    ),
    unique_by=lambda p: p.uid,
    max_size=8,
)
RULES = st.lists(
    st.builds(
        lambda names, labels, most, priority: ClaimRule(
            namespaces=names, node_selector=labels, max_gpus=most, max_priority=priority
        ),
        st.sampled_from([("team-a",), ("team-*",), ("*",), ("x", "team-b")]),
        SELECTORS,
        st.one_of(
            st.none(),
            st.integers(0, 40),
            st.dictionaries(st.sampled_from(["H100", "L4"]), st.integers(0, 40)),
        ),
        st.integers(0, 3),
    ),
    max_size=4,
).map(lambda given: Claims(tuple(given)))


@given(TENANTS, RULES, st.randoms(), st.data())
def test_every_rule_of_ownership_holds_for_any_plans_nodes_and_rules(
    plans: list[PlanSelector], claims: Claims, random: Random, data: st.DataObject
) -> None:
    """In any order of the arguments: permitted, within quotas, nothing from those before."""
    ownership = assign_owners(plans, FLEET, {}, claims)
    shuffled, nodes = [*plans], [*FLEET]
    random.shuffle(shuffled)
    random.shuffle(nodes)
    assert assign_owners(shuffled, nodes, {}, claims) == ownership

    claimed: Counter[tuple[str, int, str]] = Counter()
    by_name = {node.name: node.shape for node in FLEET}
    for name, owner in ownership.owners.items():
        assert not owner.suspended
        assert owner.pool_of(by_name[name])
        own = claims.of(owner.key.namespace)
        place = min(i for i, rule in own.items() if by_name[name].matches(rule.node_selector))
        accelerator, limit = own[place].quota(by_name[name].accelerator)
        claimed[owner.key.namespace, place, accelerator] += by_name[name].capacity_gpus
        assert claimed[owner.key.namespace, place, accelerator] <= limit
    for uid in ownership.over:
        assert not next(plan for plan in plans if plan.uid == uid).suspended

    order = in_order(plans, claims)
    for namespace in {plan.key.namespace for plan in order}:  # priority in full among its own
        turns = [plan for plan in order if plan.key.namespace == namespace]
        assert turns == sorted(turns, key=lambda plan: (-plan.priority, plan.created, plan.uid))
    if order:
        least = data.draw(st.sampled_from(order))
        before = order[: order.index(least)]
        alone = assign_owners(before, FLEET, {}, claims).owners
        if in_order(before, claims) == before:
            kept = {plan.uid for plan in before}
            with_all = {n: o.uid for n, o in ownership.owners.items() if o.uid in kept}
            assert {n: o.uid for n, o in alone.items()} == with_all


@given(TENANTS, st.integers(0, 1000))
def test_no_priority_of_a_namespace_takes_a_node_from_another_unless_permitted(
    plans: list[PlanSelector], priority: int
) -> None:
    """Raising any plan of x changes nothing for the other namespaces, as long as x ends up alike.

    Every plan of x selects the same nodes here, so that only the turns decide.
    """
    same = [
        replace(p, pools=(ANY,), suspended=False) if p.key.namespace == "x" else p for p in plans
    ]
    raised = [replace(p, priority=priority) if p.key.namespace == "x" else p for p in same]
    of_others = [
        {
            n: o.uid
            for n, o in assign_owners(each, FLEET, {}, NO_RULES).owners.items()
            if o.key.namespace != "x"
        }
        for each in (same, raised)
    ]
    assert of_others[0] == of_others[1]
