"""Conditions and reasons; what is remembered of plans."""

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.resources.cache import Cache
from archipelago.operator.resources.names import Key
from archipelago.operator.resources.objects import PlanObject
from archipelago.operator.resources.status import ConditionType, Reason, bounded
from tests.support.operator.situations import KEY, plan, stored

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "runbook.md"
EVENT = "(Event only.)"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", re.MULTILINE)


def rows(heading: str) -> dict[str, tuple[str, str]]:
    """Rows of the table below a heading: name -> what it means, what to do."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name: (means, remedy) for name, means, remedy in ROW.findall(section)}


def test_every_reason_is_explained_and_no_other() -> None:
    assert set(rows("Reasons")) == {reason.value for reason in Reason}


def test_every_condition_type_is_explained_and_no_other() -> None:
    assert set(rows("Condition types")) == {kind.value for kind in ConditionType}


def test_each_explanation_says_something() -> None:
    for heading in ("Reasons", "Condition types"):
        for name, texts in rows(heading).items():
            assert all(len(text) >= 12 for text in texts), name


def test_reasons_are_few_and_camel_case() -> None:
    of_conditions = [name for name, (meaning, _) in rows("Reasons").items() if EVENT not in meaning]
    assert len(of_conditions) <= 36
    assert all(re.fullmatch(r"[A-Z][A-Za-z]{2,40}", reason.value) for reason in Reason)


@given(st.text(), st.integers(min_value=8, max_value=64))
def test_a_bounded_message_is_the_message_or_its_marked_beginning(text: str, limit: int) -> None:
    cut = bounded(text, limit)

    assert len(cut.encode()) <= limit
    assert cut == text or (cut.endswith(" ...") and text.startswith(cut.removesuffix(" ...")))


def version(number: int, uid: str = "uid-1") -> PlanObject:
    return replace(plan(uid=uid), resource_version=str(number))


def test_an_old_or_equal_version_is_not_news() -> None:
    cache = Cache()

    assert cache.update_plan(version(9)) == KEY
    assert cache.update_plan(version(9)) is None  # our own write comes back by the watch
    assert cache.update_plan(version(8)) is None
    assert cache.update_plan(version(10)) == KEY  # 10 > 9: numbers, not text
    assert cache.observe(KEY).plan == version(10)


def test_the_end_of_a_predecessor_does_not_take_the_namesake() -> None:
    cache = Cache()
    cache.update_plan(version(20, uid="uid-2"))

    assert cache.delete_plan(KEY, "uid-1") is None
    assert cache.observe(KEY).plan is not None


def test_an_answer_that_was_on_its_way_does_not_bring_back_what_is_deleted() -> None:
    cache = Cache()
    table = replace(stored(plan()), resource_version="9")
    cache.update_plan(plan())
    cache.update_table(table)

    # A read of version 11 is under way; the watch says that version 12 deleted it.
    assert cache.delete_table(table.key, table.uid, "12") == KEY
    assert cache.update_table(replace(table, resource_version="11")) is None
    assert cache.observe(KEY).table is None
    assert cache.update_table(replace(table, uid="anew", resource_version="13")) == KEY


def test_an_answer_that_there_is_none_may_be_too_old() -> None:
    cache = Cache()
    table = replace(stored(plan()), resource_version="9")
    cache.update_plan(plan())
    cache.update_table(table)  # the watch was quicker

    assert cache.delete_table(table.key) == KEY
    assert cache.update_table(table) == KEY  # read again


def test_what_has_left_the_selection_of_the_watch_is_still_read() -> None:
    cache = Cache()
    table = replace(stored(plan()), resource_version="9")
    cache.update_plan(plan())
    cache.update_table(table)

    assert cache.delete_table(table.key, table.uid, "12") == KEY
    assert cache.update_table(replace(table, resource_version="12")) == KEY


def test_a_table_leads_to_its_plan_whatever_its_labels() -> None:
    cache = Cache()
    table = replace(stored(plan()), labels={}, owner_reference=None)

    assert cache.update_table(table) is None  # no plan of that name is known
    cache.update_plan(plan())
    assert cache.update_table(replace(table, resource_version="201")) == KEY
    assert cache.delete_table(table.key, table.uid) == KEY


def test_a_list_deletes_what_is_gone_and_keeps_what_is_younger() -> None:
    cache = Cache()
    old, young, elsewhere = Key("team", "old"), Key("team", "young"), Key("other", "old")
    cache.update_plan(replace(version(5), key=old))
    cache.update_plan(replace(version(50), key=young))
    cache.update_plan(replace(version(5), key=elsewhere))

    assert cache.plans.delete_unlisted(set(), "40", "team") == (old,)
    assert set(cache.plans.keys()) == {young, elsewhere}
    assert cache.plans.delete_unlisted({young}, "60", None) == (elsewhere,)
