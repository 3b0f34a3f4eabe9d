"""Golden scenarios: the plan of every problem is the one beside it."""

from pathlib import Path

import pytest
import yaml

from tests.scenarios.regenerate import answer, cases

DIGITS = 1e-6
"""Relative difference of numbers that another processor's rounding may cause."""


def assert_alike(found: object, golden: object, where: str = "plan") -> None:
    """Equal structure and words, numbers to six digits."""
    if isinstance(golden, dict):
        assert isinstance(found, dict), where
        assert found.keys() == golden.keys(), where
        for key, value in golden.items():
            assert_alike(found[key], value, f"{where}.{key}")
    elif isinstance(golden, list):
        assert isinstance(found, list), where
        assert len(found) == len(golden), where
        for index, value in enumerate(golden):
            assert_alike(found[index], value, f"{where}[{index}]")
    elif isinstance(golden, float) and isinstance(found, (int, float)):
        assert found == pytest.approx(golden, rel=DIGITS, abs=1e-8), where
    else:
        assert found == golden, where


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_plan_is_the_golden_one(case: Path) -> None:
    golden = yaml.safe_load((case / "plan.yaml").read_text())
    assert_alike(answer(case), golden)


def test_a_changed_number_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"plan\.a\[1\]"):
        assert_alike({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]})
