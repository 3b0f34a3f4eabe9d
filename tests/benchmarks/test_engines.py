"""Whole engines beside their measurements: the bars that are quick to check, where the data are."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.calibration import measurements
from archipelago.perfmodel.calibration.benches import loop_problem, served_model
from archipelago.perfmodel.calibration.measurements import EnginePoint
from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.efficiency import CLASSES, engine_fit
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy import engines, splitwise
from benchmarks.accuracy.case import Report, verdicts
from benchmarks.accuracy.held_out import Line, points
from benchmarks.accuracy.kernels import attention, experts, gemm
from benchmarks.accuracy.kernels.attention import attended
from benchmarks.accuracy.kernels.gemm import LAW as GEMM
from benchmarks.accuracy.kernels.law import Law, Sample
from benchmarks.accuracy.kernels.planned import seconds
from benchmarks.accuracy.kernels.tables import Table, merge_repeats, named, variants

DATA = Path(__file__).parents[2] / "../shared/data"


@pytest.mark.parametrize(
    ("case", "file"),
    [
        (engines.transfer, measurements.FILE),
        (engines.few, measurements.FILE),
        (engines.latent, measurements.FILE),
        (splitwise.splitwise, splitwise.FILE),
    ],
)
def test_held_out_groups_keep_the_bars(case: Callable[[Path], Iterable[Report]], file: str) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"no published measurements below {DATA}")
    for report in case(DATA):
        missed = [(v.figure, v.value, v.bar) for v in verdicts(report) if not v.holds]
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
    plain = replace(run(4, 128, 0.010), engine="tensorrt-llm")
    quantised = replace(plain, model="Llama-3.1-70B", precision="fp8")
    assert served_model(quantised).precision.kv == 1.0
    assert served_model(replace(quantised, engine="vllm")).precision.kv == 2.0
    assert served_model(plain).precision.kv == 2.0


def table(**columns: list[float]) -> Table:
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Table(accelerator("H100"), "vllm 0.14.0", "some", arrays)


def test_repeats_of_a_shape_become_their_median() -> None:
    # Shape 9 comes first in the file, so it stays first: medians of 5, 7, 6 and of 1.
    found, merged = merge_repeats(
        table(isl=[9, 2, 9, 9], latency=[5.0, 1.0, 7.0, 6.0]), ("isl", "absent")
    )
    assert merged == 2
    assert found.floats("isl").tolist() == [9, 2]
    assert found.floats("latency").tolist() == [6.0, 1.0]
    assert found.seconds.tolist() == [6e-3, 1e-3]


def test_variants_are_the_combinations_that_occur() -> None:
    a, b = np.array(["x", "y", "x"]), np.array(["1", "1", "2"])
    assert [(name, rows.tolist()) for name, rows in variants(a, b)] == [
        (("x", "1"), [True, False, False]),
        (("x", "2"), [False, False, True]),
        (("y", "1"), [False, True, False]),
    ]


def test_groups_are_named_by_their_numbers() -> None:
    assert named(np.array([4096.0]), np.array([128.0])).tolist() == ["4096x128"]


def test_a_window_bounds_the_causal_triangle() -> None:
    length, window = np.array([4.0, 4.0]), np.array([np.inf, 2.0])
    # 1 + 2 + 3 + 4, and 1 + 2 + 2 + 2
    assert attended(length, window).tolist() == [10.0, 7.0]


@pytest.mark.parametrize(
    ("law", "operators", "variant"),
    [
        (gemm.LAW, "gemm", "fp8_block"),
        (attention.CONTEXT, "prefill_attention", "bfloat16"),
        (attention.DECODE, "decode_attention", "fp8"),
        (experts.LAW, "experts", "moe vllm_fused_moe fp8"),
    ],
)
def test_a_law_is_the_formula_of_the_operator(law: Law, operators: str, variant: str) -> None:
    """With the catalogue's values a law says what the operator of a plan does."""
    card, rows = accelerator("H100"), 3
    dice = np.random.default_rng(7)
    numbers = {
        "m": dice.integers(1, 9000, rows),
        "n": 1024 * dice.integers(1, 9, rows),
        "k": 1024 * dice.integers(1, 9, rows),
        "sequences": dice.integers(1, 99, rows),
        "heads": np.array([8, 16, 32]),
        "kv_heads": np.array([2, 4, 8]),
        "size": np.full(rows, 128),
        "window": np.full(rows, np.inf),
        "context": dice.integers(100, 9000, rows),
        "length": dice.integers(100, 9000, rows),
        "rows": dice.integers(1, 900, rows),
        "touched": dice.integers(1, 16, rows),
        "pairs": dice.integers(900, 9000, rows),
        "hidden": 1024 * dice.integers(1, 9, rows),
        "width": 256 * dice.integers(1, 9, rows),
        "ranks": np.array([1, 2, 8]),
        "experts": np.full(rows, 64),
    }
    made = {name: value.astype(np.float64) for name, value in numbers.items()}
    form = gemm.FORMATS[variant.rpartition(" ")[2]]
    kv = 1.0 if variant == "fp8" else 2.0
    heads, kv_heads, size = made["heads"], made["kv_heads"], made["size"]
    made |= {
        "weight": np.full(rows, form.size),
        "operand": np.full(rows, 1.0 if form.size < 2 else 2.0),
        "peak": np.full(
            rows, card.half if operators.endswith("attention") else card.peak(form.compute)
        ),
        "bandwidth": np.full(rows, card.bandwidth),
        "cached": made["sequences"] * 2 * kv_heads * size * kv,
        "queries": made["sequences"] * (4 * heads + 2 * kv_heads * kv) * size,
        "per_position": 4 * made["sequences"] * heads * size,
        "operations": 4
        * made["sequences"]
        * heads
        * size
        * attended(made["length"], made["window"]),
        "bytes": made["sequences"] * made["length"] * 4 * (heads + kv_heads) * size,
    }
    sample = Sample("H100", "vllm 0.14.0", variant, made, np.ones(rows), named(made["m"]))
    reached = engine_fit(card, "vllm", "0.14.0").efficiency(form.compute)
    fields = CLASSES[operators]
    values = np.array([getattr(reached, fields[p.name]) for p in law.parameters])
    assert seconds(law, sample) == pytest.approx(law.seconds(made, values), rel=1e-12)


def test_a_small_product_streams_its_weights() -> None:
    # 8192 x 8192 in BF16 at 3.35 TB/s, all of it reached: 134.2 MB in 40.1 us, then 1 us of launch.
    columns = {name: np.array([value]) for name, value in (("m", 1.0), ("n", 8192.0))}
    columns |= {"k": np.array([8192.0]), "weight": np.array([2.0]), "operand": np.array([2.0])}
    columns |= {"peak": np.array([989e12]), "bandwidth": np.array([3.35e12])}
    values = np.array([1e-6, 1.0, 1.0, 1e-15, 0.0, 0.0])
    assert GEMM.seconds(columns, values) == pytest.approx(41.1e-6, rel=2e-3)
