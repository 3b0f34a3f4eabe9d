"""Writes every scenario's plan.yaml anew: ``python -m tests.scenarios.regenerate``.

A golden plan is documentation and regression test at once; changing one is a reviewed act.
"""

from pathlib import Path
from typing import Any

import yaml

from archipelago.planner.formats.plan_file import infeasible_document, plan_document
from archipelago.planner.plan import Infeasible
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy

SCENARIOS = Path(__file__).parent
NOT_CONTENT = ("planSeconds", "hash", "problem")
"""Left out of the golden file: a time, what follows from the rest, and the problem beside it."""


def cases() -> list[Path]:
    """Folders with a problem."""
    return sorted(path.parent for path in SCENARIOS.glob("*/problem.yaml"))


def document(case: Path) -> dict[str, Any]:
    """The plan document of a case."""
    resource = load_resource((case / "problem.yaml").read_text())
    outcome = strategy("exact").plan(to_problem(resource.metadata.name, resource.spec))
    if isinstance(outcome, Infeasible):
        return infeasible_document(resource, outcome)
    return plan_document(resource, outcome)


def golden_part(plan: dict[str, Any]) -> dict[str, Any]:
    """What of a document is golden: of the prices, what they prove; others may prove the same."""
    golden = {key: value for key, value in plan.items() if key not in NOT_CONTENT}
    if "pricedBound" in golden:
        golden["pricedBound"] = {"bound": golden["pricedBound"]["bound"]}
    return golden


def main() -> None:
    """Overwrite every golden plan."""
    for case in cases():
        text = yaml.safe_dump(
            golden_part(document(case)), sort_keys=False, width=100, default_flow_style=None
        )
        (case / "plan.yaml").write_text(text)


if __name__ == "__main__":
    main()
