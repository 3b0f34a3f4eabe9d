"""Whole engines beside their measurements: the bars that are quick to check, where the data are."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.fits.series import loop_problem, served_model
from archipelago.perfmodel.measurements import engine_points, splitwise
from archipelago.perfmodel.measurements.engine_points import EnginePoint
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.validation import engines, prompts
from archipelago.perfmodel.validation.case import Report, verdicts
from archipelago.perfmodel.validation.heldout import Line, points

DATA = Path(__file__).parents[2] / "../shared/data"


@pytest.mark.parametrize(
    ("case", "file"),
    [
        (engines.transfer, engine_points.FILE),
        (engines.few, engine_points.FILE),
        (engines.latent, engine_points.FILE),
        (prompts.splitwise, splitwise.FILE),
    ],
)
def test_held_out_groups_keep_the_bars(case: Callable[[Path], Iterable[Report]], file: str) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"no published measurements below {DATA}")
    for report in case(DATA):
        missed = [(v.figure, v.reached, v.bar) for v in verdicts(report) if not v.kept]
        assert missed == [], report.name


def run(clients: float, outputs: float, tpot: float) -> EnginePoint:
    """A run of Llama-3.1-8B on one H100."""
    return EnginePoint(
        accelerator="H100",
        engine="vllm",
        version="",
        model="Llama-3.1-8B",
        precision="bf16",
        parallelism=Parallelism(),
        inputs=1024,
        outputs=outputs,
        clients=clients,
        ttft=0.1,
        tpot=tpot,
    )


def test_a_point_is_the_measurement_times_its_residual() -> None:
    problem = loop_problem([run(4, 128, 0.010), run(8, 128, 0.020)])
    line = Line("H100", "vllm", ["Llama-3.1-8B"] * 2, "decode", "TPOT")
    found = points(problem, np.log([1.1, 0.9]), problem.groups, line, np.log([1.2, 1.05]))
    assert [point.error for point in found] == pytest.approx([0.1, -0.1])
    assert [point.measured for point in found] == pytest.approx([10.0, 20.0])
    assert [point.covered for point in found] == [True, False]
    assert found[0].group == found[1].group == "H100 vllm Llama-3.1-8B tp1 1024/128"


def test_eight_rows_are_drawn_by_design_and_not_by_time() -> None:
    """Two pairs of lengths of one parallelism: the fewest, the most, then the middle clients."""
    rows = [run(c, o, 0.01) for o in (128, 256) for c in (4, 8, 16, 32)]
    problem = loop_problem(rows)
    used = engines.drawn(problem, 0)
    assert used.tolist() == [1, 0, 1, 1, 0, 0, 0, 0]
    assert engines.drawn(problem, 1).tolist() == [0, 0, 0, 0, 1, 0, 1, 1]


def test_only_one_engine_keeps_the_cache_of_fp8_models_in_fp8() -> None:
    assert served_model("Llama-3.1-70B", "fp8", "tensorrt-llm").precision.kv == 1.0
    assert served_model("Llama-3.1-70B", "fp8", "vllm").precision.kv == 2.0
    assert served_model("Llama-3.1-8B", "bf16", "tensorrt-llm").precision.kv == 2.0
