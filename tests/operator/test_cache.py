"""The newest version wins, whichever way it comes."""

from dataclasses import replace

from archipelago.operator.cache import Cache
from archipelago.operator.manifests import Key
from archipelago.operator.observe import SeenPlan
from tests.operator.situations import KEY, plan, stored


def version(number: int, uid: str = "uid-1") -> SeenPlan:
    return replace(plan(uid=uid), resource_version=str(number))


def test_an_old_or_equal_version_is_not_news() -> None:
    cache = Cache()

    assert cache.see_plan(version(9)) == KEY
    assert cache.see_plan(version(9)) is None  # our own write comes back by the watch
    assert cache.see_plan(version(8)) is None
    assert cache.see_plan(version(10)) == KEY  # 10 > 9: numbers, not text
    assert cache.observe(KEY).plan == version(10)


def test_the_end_of_a_predecessor_does_not_take_the_namesake() -> None:
    cache = Cache()
    cache.see_plan(version(20, uid="uid-2"))

    assert cache.drop_plan(KEY, "uid-1") is None
    assert cache.observe(KEY).plan is not None


def test_a_table_leads_to_its_plan_whatever_its_labels() -> None:
    cache = Cache()
    table = replace(stored(plan()), labels={}, owner_reference=None)

    assert cache.see_table(table) is None  # no plan of that name is known
    cache.see_plan(plan())
    assert cache.see_table(replace(table, resource_version="201")) == KEY
    assert cache.drop_table(table.key, table.uid) == KEY


def test_a_list_tells_what_is_gone_but_spares_what_is_younger() -> None:
    cache = Cache()
    old, young, elsewhere = Key("team", "old"), Key("team", "young"), Key("other", "old")
    cache.see_plan(replace(version(5), key=old))
    cache.see_plan(replace(version(50), key=young))
    cache.see_plan(replace(version(5), key=elsewhere))

    assert cache.plans.list_ended(set(), "40", "team") == (old,)
    assert set(cache.plans.keys()) == {young, elsewhere}
    assert cache.plans.list_ended({young}, "60", None) == (elsewhere,)
