"""The report framework: figures by hand, splits that keep groups whole, words that are honest."""

from pathlib import Path

import numpy as np
import pytest

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.errors import OutOfRange, UnknownName
from archipelago.perfmodel.validation.case import (
    Bar,
    Case,
    Point,
    Report,
    Verdict,
    bias,
    by_key,
    coverage,
    median_error,
    p90_error,
    summarise,
    verdicts,
)
from archipelago.perfmodel.validation.kernels.law import (
    Law,
    Parameter,
    Sample,
    fit_law,
    fold_of,
    held_out,
    smooth_max,
)
from archipelago.perfmodel.validation.page import document
from archipelago.perfmodel.validation.plots import draw, file_name
from archipelago.perfmodel.validation.published import PLANNED, Fleet
from archipelago.perfmodel.validation.replay import Engine, Request, replay
from archipelago.perfmodel.validation.suite import Ran, cases, chosen, run
from archipelago.perfmodel.validation.wideep import Assumption, Layer, WideIsland
from archipelago.perfmodel.validation.words import against, judged, lines

DATA = Path(__file__).parents[2] / "../shared/data"


def point(
    predicted: float,
    measured: float,
    group: str = "g",
    low: float | None = None,
    high: float | None = None,
) -> Point:
    key = ("H100", "vllm 1", "model", "decode", "TPOT")
    return Point(group, *key, predicted, measured, "ms", low, high)


def report(points: list[Point], bar: Bar | None = None, **more: object) -> Report:
    return Report("A claim", bar or Bar(), "one left out", {}, points, **more)  # type: ignore[arg-type]


def test_errors_are_relative_to_the_measurement_and_signed() -> None:
    points = [point(11, 10), point(8, 10), point(10, 10)]
    # +10 %, -20 %, 0 %: median size 10 %, p90 10 + 0.8 x 10 = 18 %, median with sign 0 %
    assert median_error(points) == pytest.approx(0.10)
    assert p90_error(points) == pytest.approx(0.18)
    assert bias(points) == pytest.approx(0.0)
    assert summarise(points).largest == pytest.approx(0.20)


def test_coverage_counts_groups_alike_however_many_points_they_have() -> None:
    points = [point(10, 10, "a", 9, 11)] * 9 + [point(10, 10, "b", 11, 12)]
    assert coverage(points) == pytest.approx(0.5)
    assert coverage([point(10, 10)]) is None


def test_a_bar_that_is_missed_says_so() -> None:
    found = verdicts(report([point(12, 10)], Bar(median=0.1, p90=0.3)))
    assert [(v.figure, v.kept) for v in found] == [("median", False), ("p90", True)]
    assert judged(found[0]) == "median 20.0 %, bar <= 10.0%: NOT reached"


def test_the_worst_line_has_a_bar_of_its_own() -> None:
    other = Point("g", "H200", "vllm 1", "model", "decode", "TPOT", 13, 10, "ms")
    found = verdicts(report([point(10, 10), point(10, 10), other], Bar(each=0.1)))
    assert found[0].key == other.key
    assert not found[0].kept


def test_checks_beside_the_errors_are_judged_too() -> None:
    check = Verdict("pairs ranked otherwise", 0.5, "= 0.0%", kept=False)
    assert verdicts(report([point(1, 1)], checks=(check,))) == [check]


def test_lines_are_by_accelerator_engine_model_phase_and_metric() -> None:
    other = Point("g", "A100", "vllm 1", "model", "decode", "TPOT", 13, 10, "ms")
    assert list(by_key([point(10, 10), other])) == [other.key, point(1, 1).key]
    assert [line[0] for line in lines(report([point(10, 10), other]))] == ["A100", "H100", "all"]


def test_a_simpler_model_that_is_better_is_called_better() -> None:
    ours, theirs = [point(12, 10)], [point(11, 10)]
    said = against(report(ours, baseline=theirs, baseline_name="four parameters"))
    assert "four parameters: 10.0 % / 10.0 %, BETTER than" in said


def test_the_page_has_figures_rules_and_pictures(tmp_path: Path) -> None:
    one = Report("A claim", Bar(median=0.1), "s", {"rule": 3}, [point(12, 10)] * 3, ("note",))
    case = Case("c", "Title", (), lambda _: ())
    text = document([Ran(case, (one,)), Ran(case, skipped="no data")], {"A claim": "x/a.png"})
    for part in ("median 20.0 % | <= 10.0% | **not reached**", "* rule: 3", "note", "(x/a.png)"):
        assert part in text
    assert "Skipped: no data." in text
    draw(one, tmp_path / file_name(one))
    first = (tmp_path / "a-claim.png").read_bytes()
    draw(one, tmp_path / "again.png")
    assert first == (tmp_path / "again.png").read_bytes()


def test_cases_have_names_of_their_own_and_unknown_ones_are_refused() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names))
    with pytest.raises(UnknownName, match="unknown case 'nonsense'; known: "):
        chosen(["nonsense"])


def test_a_case_without_its_data_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (ran,) = run(tmp_path, ["distserve"])
    assert not ran.reports
    assert ran.skipped.startswith("no measured/distserve")


LINE = Law(
    "line",
    (Parameter("wait", "s", 1e-3, 1e-6, 1.0), Parameter("pace", "s", 1e-3, 1e-6, 1.0)),
    lambda columns, values: np.asarray(values[0] + values[1] * columns["n"]),
)


def test_a_fit_finds_the_values_that_made_the_times() -> None:
    n = np.arange(1.0, 20.0)
    assert fit_law(LINE, {"n": n}, 0.02 + 0.003 * n) == pytest.approx([0.02, 0.003], rel=1e-4)


def test_whole_groups_are_held_out() -> None:
    groups = np.array(["a", "b", "c", "d"] * 25)
    fold = fold_of(groups, 3)
    assert all(len(set(fold[groups == name])) == 1 for name in "abcd")
    assert sorted(set(fold)) == [0, 1, 2]


def test_a_group_is_predicted_by_the_others_alone() -> None:
    # Group b is three times slower than the line that a and c lie on: nobody may have seen that.
    n = np.arange(1.0, 31.0)
    groups = np.array(["a", "b", "c"] * 10)
    line = 0.02 + 0.003 * n
    seconds = np.where(groups == "b", 3 * line, line)
    found = held_out(LINE, Sample("H100", "e", "v", {"n": n}, seconds, groups), folds=3)
    assert found[groups == "b"] == pytest.approx(line[groups == "b"], rel=1e-3)


def test_a_soft_corner_lies_between_sum_and_maximum() -> None:
    a, b = np.array([3.0]), np.array([4.0])
    assert smooth_max(a, b, power=1.0) == pytest.approx(7.0)
    assert smooth_max(a, b, power=2.0) == pytest.approx(5.0)


class Clock:
    """Steps of 1 s, and 1 ms more per prompt token."""

    def decode_step_time(self, sequences: np.ndarray, kv_tokens: np.ndarray) -> np.ndarray:
        return np.ones_like(sequences + kv_tokens)

    def mixed_step_time(
        self,
        sequences: np.ndarray,
        kv_tokens: np.ndarray,
        prompt_tokens: np.ndarray,
        pairs: np.ndarray,
    ) -> np.ndarray:
        return np.asarray(1.0 + 1e-3 * prompt_tokens + 0.0 * (sequences + kv_tokens + pairs))


def test_a_replayed_server_chunks_prompts_and_then_decodes() -> None:
    # 150 prompt tokens in chunks of 100: 1.1 s and 1.05 s, the first token after both; 2 more steps
    only = Request(0.0, 150, 3)
    assert replay(Engine(100, 16, 8, 100), Clock(), [only]) == pytest.approx(4.15)
    assert only.first_token_time == pytest.approx(2.15)
    assert only.token_time == pytest.approx(1.0)


def test_a_replayed_server_has_waiting_requests_for_lack_of_sequences() -> None:
    one, two = Request(0.0, 10, 2), Request(0.0, 10, 2)
    replay(Engine(100, 16, 1, 100), Clock(), [one, two])
    # The first takes 1.01 s and 1 s; only then does the second begin.
    assert (one.last, two.first) == pytest.approx((2.01, 3.02))


def test_a_replayed_server_preempts_the_latest_when_blocks_run_out() -> None:
    # Three blocks of 4 tokens: both prompts fit, one more token each does not.
    one, two = Request(0.0, 4, 6), Request(0.0, 4, 6)
    replay(Engine(3, 4, 8, 100), Clock(), [one, two])
    assert one.last < two.last
    assert two.made == 6
    assert two.token_time > one.token_time


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(OutOfRange, match="more cache than the server has"):
        replay(Engine(1, 4, 8, 100), Clock(), [Request(0.0, 100, 1)])


def test_micro_batches_hide_transfers_and_reserved_multiprocessors_cost() -> None:
    layer = Layer(attention=6.0, experts=8.0, dispatch=3.0, combine=7.0, dense=0.0)
    plain = Assumption("plain", overlap=False, reserved=0.5, imbalance=1.0)
    hidden = Assumption("hidden", overlap=True, reserved=0.5, imbalance=1.0)
    assert layer.seconds(plain, prefill=True) == 24.0
    # Half of the multiprocessors: 12 and 16 s of work, behind which 7 and 3 s disappear.
    assert layer.seconds(hidden, prefill=True) == 28.0
    # In decode none are reserved: max(6, 7) + max(8, 3).
    assert layer.seconds(hidden, prefill=False) == 15.0


def test_deepseeks_day_at_the_stated_rates_is_arithmetic() -> None:
    # 608e9 / 86400 / 73700 and 168e9 / 86400 / 14800; islands of 4 and 18 nodes: 96 + 144
    stated = Fleet(608e9 / 86400 / 73_700, 168e9 / 86400 / 14_800)
    assert (stated.prefill, stated.decode) == pytest.approx((95.48, 131.38), abs=0.01)
    assert stated.continuous == pytest.approx(226.86, abs=0.01)
    assert stated.whole == 240


def test_a_batch_is_the_largest_that_keeps_the_pace() -> None:
    island = WideIsland(accelerator("H800"), architecture("DeepSeek-V3"), 144, PLANNED)
    batch = island.batch_at(0.05, 4989.0)
    assert island.step(batch, 4989.0) <= 0.05 < island.step(batch + 1, 4989.0)


def test_cached_prompts_cost_only_their_new_tokens() -> None:
    island = WideIsland(accelerator("H800"), architecture("DeepSeek-V3"), 32, PLANNED)
    whole, half = island.prefill_rate(16384, 4096), island.prefill_rate(16384, 4096, hit=0.5)
    # The same new tokens a pass, which attend to a little more: twice as many tokens but for that.
    assert 1.7 * whole < half < 2 * whole


def judge(name: str) -> dict[str, list[Verdict]]:
    """Verdicts of one case on the reference data, by report; skipped where they are absent."""
    (ran,) = run(DATA, [name])
    if ran.skipped:
        pytest.skip(f"reference data: {ran.skipped}")
    return {one.name: verdicts(one) for one in ran.reports}


@pytest.mark.parametrize(
    "name", ["distserve", "kv-blocks", "helix", "deepseek", "deepseek-day", "all-reduce"]
)
def test_bars_on_published_measurements_are_reached(name: str) -> None:
    found = [verdict for several in judge(name).values() for verdict in several]
    assert found
    assert [judged(verdict) for verdict in found if not verdict.kept] == []
