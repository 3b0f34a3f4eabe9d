"""The vocabulary of conditions and its page agree, and messages stay small."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from archipelago.operator.conditions import ConditionType, Reason, bounded

PAGE = Path(__file__).parents[2] / "docs" / "conditions.md"
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
    assert len(of_conditions) <= 30
    assert all(re.fullmatch(r"[A-Z][A-Za-z]{2,40}", reason.value) for reason in Reason)


@given(st.text(), st.integers(min_value=8, max_value=64))
def test_a_bounded_message_is_the_message_or_its_marked_beginning(text: str, limit: int) -> None:
    cut = bounded(text, limit)

    assert len(cut.encode()) <= limit
    assert cut == text or (cut.endswith(" ...") and text.startswith(cut.removesuffix(" ...")))
