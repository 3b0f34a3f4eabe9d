"""Golden scenarios: the plan of every problem is the one beside it."""

from pathlib import Path

import pytest
import yaml

from archipelago.planner.check.checker import check_document
from tests.scenarios.regenerate import cases, document, golden_part

EXACT = 1e-6
"""Relative difference of numbers that the rounding of another processor may cause."""
GAP = 1e-3
"""The published gap: the search may end anywhere in it."""
TIED = {"racks-of-two-types"}
"""Scenarios with several layouts in that gap: the processor decides which one is found."""
LAYOUT = ("thetaInterval", "groups", "islands", "routes")


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
    elif isinstance(golden, float) and isinstance(plan, (int, float)):
        assert plan == pytest.approx(golden, rel=within, abs=max(1e-8, within - EXACT)), where
    else:
        assert plan == golden, where


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_plan_is_the_golden_one(case: Path) -> None:
    golden, plan = yaml.safe_load((case / "plan.yaml").read_text()), document(case)
    if case.name not in TIED:
        assert_alike(golden_part(plan), golden)
        return
    assert [result for result in check_document(plan) if result.findings] == []
    for part in LAYOUT:
        del golden[part], plan[part]
    assert_alike(golden_part(plan), golden, GAP)


def test_a_changed_number_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"plan\.a\[1\]"):
        assert_alike({"a": [1.0, 2.0]}, {"a": [1.0, 2.001]})
