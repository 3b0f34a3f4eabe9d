"""What a table has to hold, found by planning the stored spec here: no operator is asked."""

import json
from functools import cache
from typing import Any

from archipelago.planner.documents import canonical_bytes
from archipelago.planner.errors import SpecError
from archipelago.planner.plan import Infeasible
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.table.write import routing_content
from tests.support.e2e.operators import resource


def content(spec: dict[str, Any]) -> bytes | None:
    """The content of plan(spec) as canonical JSON; None where there is no plan."""
    effective = {field: value for field, value in spec.items() if field != "suspend"}
    return _content(json.dumps(effective, sort_keys=True))


@cache
def _content(text: str) -> bytes | None:
    try:
        # No content depends on the plan's name; if one did, every comparison would fail.
        wanted = load_resource(resource("expected", json.loads(text)))
        problem = to_problem("expected", wanted.spec)
    except SpecError:
        return None
    outcome = strategy(problem.solver.strategy).plan(problem)
    if isinstance(outcome, Infeasible):
        return None
    return canonical_bytes(routing_content(wanted.spec, outcome.plan))
