"""The time to first token in the status."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from archipelago.perfmodel.capacity.rows import prefill_utilisation
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.workload.lengths import from_samples
from archipelago.planner.check.index import PlanIndex
from archipelago.planner.plan import Planned
from archipelago.planner.problem import Phase
from archipelago.planner.service.plan import largest_ttft, mean_ttft
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from tests.support.operator.live import plan_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-llama-on-two-pools.yaml"


def resource(ttft: int | None) -> dict[str, Any]:
    """The first example with that target [ms]."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    slo = found["spec"]["models"][0]["slo"]
    slo.pop("ttftMilliseconds")
    if ttft is not None:
        slo["ttftMilliseconds"] = ttft
    return found


class Seconds:
    """A prompt of n tokens takes n seconds."""

    def prefill_time(self, length: FloatArray) -> FloatArray:
        return np.asarray(length, dtype=np.float64)


def test_the_mean_by_hand() -> None:
    """Half of the prompts take 1 s, half 3 s: E[S] = 2, E[S^2] = 5, so 2 + 1 * 5/4 at rho 1/2."""
    performance: PerformanceModel = Seconds()  # type: ignore[assignment]  # all that is asked of it
    lengths = from_samples([1, 3], [1, 1])

    assert mean_ttft(performance, lengths, 0.0) == 2.0
    assert mean_ttft(performance, lengths, 0.5) == pytest.approx(3.25)
    cap = prefill_utilisation(performance, lengths, 3.25)
    assert cap == pytest.approx(0.5)


@pytest.mark.parametrize("target", [250, 1000])
def test_an_island_at_its_cap_has_the_target_and_no_other_more(target: int) -> None:
    read = load_resource(resource(target))
    problem = to_problem(read.metadata.name, read.spec)
    outcome = strategy("exact").plan(problem)
    assert isinstance(outcome, Planned)
    plan = outcome.plan
    busiest = max(group.utilisation for group in plan.groups if group.phase is Phase.PREFILL)
    ttft = largest_ttft(problem, plan)

    assert ttft is not None
    assert ttft <= target / 1000 * (1 + 1e-6)
    assert busiest > 0.98
    (model,) = problem.models
    idle = min(
        float(model.lengths.probability @ performance.prefill_time(model.lengths.length))
        for group in plan.groups
        if group.phase is Phase.PREFILL
        for performance in [PlanIndex(problem, plan).performance(group)]
    )
    assert idle < ttft


def test_the_status_has_it_where_there_is_a_target_and_only_there() -> None:
    with_target = plan_of(resource(1000))["summary"]
    without = plan_of(resource(None))["summary"]

    assert 900 < with_target["ttftMilliseconds"] <= 1000
    assert "ttftMilliseconds" not in without
    assert without["slo"] == "Met"  # the TPOT target is left
