"""What a plan uses by default, and with eight rows of one's own, on series that were left out.

``python -m benchmarks.accuracy.defaults DATA`` prints the bars and the tables; ``--page FILE``
writes them as a page, ``--values`` prints the values of the catalogue's rows ``loop-fits`` anew.
DATA is the folder of all data sets. A series is an engine, a model and an accelerator; what the
catalogue has from it is fitted again without it. Every series counts alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from archipelago.perfmodel.calibration.benches import ClosedLoopBench, loop_problem
from archipelago.perfmodel.calibration.from_runs import calibrate
from archipelago.perfmodel.calibration.measurements import EnginePoint, grouped
from archipelago.perfmodel.calibration.uncertainty import log_half_widths
from archipelago.perfmodel.capacity.closed_loop import ClosedLoop, collocated_tpot
from archipelago.perfmodel.catalogue.architectures import LatentAttention
from archipelago.perfmodel.catalogue.efficiency import EngineFit
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from benchmarks.accuracy import deepseek
from benchmarks.accuracy.kernels import worst_bands
from benchmarks.accuracy.pooled import COMMON, Series, all_series, pooled

BANDS = ((1, 4), (5, 32), (33, 256), (257, 10_000))
"""Bands of clients, ends included."""

_OWN = 8
_DRAWS = 3
_ENOUGH = 12
"""Rows below which a series cannot give eight and still judge."""

_GOOD = 0.08


@dataclass(frozen=True, eq=False)
class Judged:
    """Rows of one series as a plan would predict them, with half-widths of their intervals [log].

    ``own``: residuals with eight own rows, of the rows that were not drawn, over all draws;
    ``inside`` and ``width`` of the intervals that such a calibration states.
    """

    series: Series
    residuals: FloatArray
    widths: FloatArray
    own: dict[str, FloatArray]
    inside: FloatArray
    width: FloatArray

    @property
    def kind(self) -> str:
        """Return the kind of model."""
        model = self.series.benches[0].deployment.model
        if isinstance(model.attention, LatentAttention):
            return "latent attention"
        return "dense" if model.experts is None else "mixture of experts"


@dataclass(frozen=True)
class Figures:
    """Median and 90th percentile of |predicted / measured - 1|, signed median, coverage, width."""

    rows: int
    median: float
    p90: float
    bias: float
    inside: float
    width: float


@cache
def judged(root: Path) -> tuple[Judged, ...]:
    """Return every series, predicted without what the catalogue has from it."""
    every = all_series(root)
    full = pooled(every)
    start = np.log([full[parameter.name] for parameter in COMMON])
    return tuple(_judge(each, pooled(every, (each.key,), start)) for each in every)


def _judge(series: Series, values: dict[str, float]) -> Judged:
    bases = series.fits(values)
    widths = np.concatenate(
        [_widths(bench, base) for bench, base in zip(series.benches, bases, strict=True)]
    )
    own: dict[str, FloatArray] = {}
    inside, width = [np.zeros(0)], [np.zeros(0)]
    for points in grouped(series.points, lambda point: point.precision):
        if len(points) >= _ENOUGH:
            drawn = [_calibrated(points, bases[0], seed) for seed in range(_DRAWS)]
            own[points[0].precision] = np.concatenate([left for left, _ in drawn])
            inside += [(np.abs(left) <= w).astype(np.float64) for left, w in drawn]
            width += [np.full(len(left), w) for left, w in drawn]
    return Judged(
        series,
        series.residuals(values),
        widths,
        own,
        np.concatenate(inside),
        np.concatenate(width),
    )


def _widths(bench: ClosedLoopBench, fit: EngineFit) -> FloatArray:
    """Return half-widths [log] of the intervals that a plan shows for each row of a bench."""
    model, loop = bench.deployment.roofline(fit), bench.loop
    names = zip(loop.clients, loop.length, loop.output, strict=True)
    return np.array([_width(model, ClosedLoop(*map(np.asarray, row)), fit) for row in names])


def _width(model: PerformanceModel, loop: ClosedLoop, fit: EngineFit) -> float:
    def seconds(of: PerformanceModel) -> float:
        return float(collocated_tpot(of, loop, fit.overheads.interference))

    return next(iter(log_half_widths(model, seconds, "decode").values()))


def _calibrated(
    points: Sequence[EnginePoint], base: EngineFit, seed: int
) -> tuple[FloatArray, float]:
    """Return residuals of the rows that were not drawn, and the stated half-width [log]."""
    drawn = np.random.default_rng(seed).choice(len(points), _OWN, replace=False)
    own = [points[at] for at in drawn]
    (calibration,) = calibrate([_versionless(point) for point in own], base=base)
    rest = [_versionless(point) for at, point in enumerate(points) if at not in drawn]
    problem = loop_problem(rest, base)
    fit = base.replaced(calibration.values)
    predicted = np.concatenate([bench.predict(fit) for bench in problem.benches])
    correction = next(each for each in calibration.corrections if each.phase == "decode")
    return np.log(predicted / problem.measured), correction.log_half_width


def _versionless(point: EnginePoint) -> EnginePoint:
    """Return the point as of one version: a user's runs are."""
    return replace(point, version="")


def figures(
    series: Sequence[Judged], keep: Callable[[Judged, EnginePoint], bool] = lambda *_: True
) -> Figures | None:
    """Return the figures of the rows to keep, each series weighing alike; None without any."""
    residuals, weights, inside, widths = [], [], [], []
    for each in series:
        kept = np.array([keep(each, point) for point in each.series.points])
        if kept.any():
            residuals.append(each.residuals[kept])
            widths.append(each.widths[kept])
            inside.append(np.abs(each.residuals[kept]) <= each.widths[kept])
            weights.append(np.full(kept.sum(), 1 / kept.sum()))
    if not residuals:
        return None
    logs, weight = np.concatenate(residuals), np.concatenate(weights)
    errors = np.expm1(logs)
    return Figures(
        len(logs),
        quantile(np.abs(errors), weight, 0.5),
        quantile(np.abs(errors), weight, 0.9),
        quantile(errors, weight, 0.5),
        float(np.average(np.concatenate(inside), weights=weight)),
        quantile(np.expm1(np.concatenate(widths)), weight, 0.5),
    )


def quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the smallest value that ``share`` of the weight does not exceed."""
    order: NDArray[np.intp] = np.argsort(values)
    below = np.cumsum(weights[order]) / weights.sum()
    at = min(int(np.searchsorted(below, share)), len(order) - 1)
    return float(values[order[at]])


def strata(series: Sequence[Judged]) -> dict[str, dict[str, Figures]]:
    """Return figures by what distinguishes series and rows."""
    splits: dict[str, Callable[[Judged, EnginePoint], str]] = {
        "kind of model": lambda each, _: each.kind,
        "accelerator": lambda _, point: point.accelerator,
        "engine": lambda _, point: point.engine,
        "precision": lambda _, point: point.precision,
        "clients": lambda _, point: band(point.clients),
    }
    made: dict[str, dict[str, Figures]] = {}
    for name, of in splits.items():
        keys = dict.fromkeys(of(each, point) for each in series for point in each.series.points)
        made[name] = {}
        for key in sorted(keys, key=_numbers):

            def keep(
                each: Judged,
                point: EnginePoint,
                of: Callable[[Judged, EnginePoint], str] = of,
                key: str = key,
            ) -> bool:
                return of(each, point) == key

            if found := figures(series, keep):
                made[name][key] = found
    return made


def _numbers(key: str) -> tuple[int, str]:
    return (
        int(key.split("-", maxsplit=1)[0].split(maxsplit=1)[0]) if key[:1].isdigit() else 0,
        key,
    )


def band(clients: float) -> str:
    """Return the band of a number of clients: ``5-32``."""
    low, high = next(ends for ends in BANDS if ends[0] <= clients <= ends[1])
    return f"{low}-{high}" if high < BANDS[-1][1] else f"{low} and more"


@dataclass(frozen=True)
class Bar:
    """One figure beside its bar: ``before`` as filed, ``reached`` as text, and whether it holds."""

    name: str
    before: str
    bar: str
    reached: str
    holds: bool


def bars(series: Sequence[Judged], data: Path) -> list[Bar]:
    """Return the bars of what plans use; ``data`` is the folder of all data sets."""
    total, by = figures(series), strata(series)
    if total is None:
        return []
    kinds = by["kind of model"]
    worst = max(kinds, key=lambda kind: kinds[kind].median)
    covered = min(kinds, key=lambda kind: kinds[kind].inside)
    biases = {
        f"{key} {'clients' if name == 'clients' else ''}".strip(): found.bias
        for name in ("clients", "precision")
        for key, found in by[name].items()
    }
    most = max(biases, key=lambda key: abs(biases[key]))
    own = [np.median(np.abs(np.expm1(left))) for each in series for left in each.own.values()]
    inside = np.concatenate([each.inside for each in series])
    width = float(np.median(np.expm1(np.concatenate([each.width for each in series]))))
    above = sum(median > _GOOD for median in own)
    middle = float(np.median(own))
    kernels = worst_bands(data)
    return [
        Bar(
            "default TPOT, all series: median / p90",
            "18 / 48 %",
            "<= 12 / 32 %",
            f"{percent(total.median)} / {percent(total.p90)}",
            total.median <= 0.12 and total.p90 <= 0.32,  # noqa: PLR2004
        ),
        Bar(
            "default TPOT, worst kind of model: median",
            "58 %",
            "<= 25 %",
            f"{percent(kinds[worst].median)} ({worst})",
            kinds[worst].median <= 0.25,  # noqa: PLR2004
        ),
        Bar(
            "bias in any band of clients, any precision",
            "-13 ... +36 %",
            "within +-10 %",
            f"{biases[most]:+.1%} ({most})",
            abs(biases[most]) <= 0.10,  # noqa: PLR2004
        ),
        Bar(
            "coverage of 90 % intervals: all / worst kind",
            "80 / 37 %",
            "86-94 / >= 75 %",
            f"{percent(total.inside)} / {percent(kinds[covered].inside)} ({covered})",
            0.86 <= total.inside <= 0.94 and kinds[covered].inside >= 0.75,  # noqa: PLR2004
        ),
        Bar(
            "width of the interval with eight own rows over that of the default",
            "-",
            "<= 1/2",
            f"{width / total.width:.2f} ({percent(width)} for {percent(total.width)}), "
            f"covers {percent(float(inside.mean()))}",
            width <= total.width / 2,
        ),
        Bar(
            "eight own rows: median of series; series above 8 %",
            "7.2 %; 20 of 34",
            "<= 5 %; <= 6 of 34",
            f"{percent(middle)}; {above} of {len(own)}",
            middle <= 0.05 and above / len(own) <= 6 / 34,  # noqa: PLR2004
        ),
        Bar(
            "DeepSeek's published figures, by one rule",
            "-45 ... +14 %",
            "within 15 % or in the interval",
            ", ".join(f"{each.name} {each.error:+.1%}" for each in deepseek.published()),
            all(each.holds for each in deepseek.published()),
        ),
        Bar(
            "operators beside kernel tables, worst band of sizes: median",
            "82 %",
            "<= 15 %",
            ", ".join(f"{name} {percent(value)}" for name, value in kernels.items()),
            max(kernels.values()) <= 0.15,  # noqa: PLR2004
        ),
        Bar(
            "nearest shipped fit on a new series",
            "59 %",
            "no worse than the default",
            "none is shipped: the default is fitted to all of them",
            holds=True,
        ),
    ]


def percent(value: float) -> str:
    """Return a share as text: ``4.1 %``."""
    return f"{100 * value:.1f} %"


HEAD = """# Accuracy of the performance model

<!-- Generated by `make validate`; do not edit. -->

How far may you trust the times of a plan? This page compares them with published runs of engines
that the times were not derived from: for each series (an engine, a model, a GPU type) the
catalogue's values are fitted again without it. Every series counts alike. The error of a point is
|predicted / measured - 1|, the bias is the signed median, and "inside" is the share of points
inside the 90 % interval that a plan shows; "width" is the middle half-width of these.

* Without measurements of your own, expect the first table.
* Eight rows of a benchmark of your own ([how](../how-to/calibrate.md)) bring the second.
* Formulas, kernels, whole batches and published clusters are compared on
  [a page of their own](accuracy/comparisons.md).

Measurements: ai-dynamo/aiconfigurator @ 095f58a, closed loops of TensorRT-LLM, vLLM and SGLang.
Runs with speculative decoding at an unknown acceptance, and series of fewer than five rows, are
left out. Run it: `python -m benchmarks.accuracy.defaults ../shared/data`.

Which formulas and which free values there are was decided while looking at these figures. A series
that was not looked at may be further off, above all of a new engine or a new kind of model.
"""


def page(series: Sequence[Judged], data: Path) -> str:
    """Return the page that a reader decides by."""
    parts = [
        HEAD,
        "## Bars\n",
        _table(("measure", "at first", "bar", "reached", ""), _bar_rows(series, data)),
    ]
    head = ("points", "median", "p90", "bias", "inside", "width")
    parts += ["## Times by default\n"]
    rows = [("all", *_row(figures(series)))]
    for name, found in strata(series).items():
        rows += [(f"{name}: {key}", *_row(each)) for key, each in found.items()]
    parts.append(_table(("", *head), rows))
    parts.append("### By series\n")
    parts.append(_table(("series", *head), [(_name(e), *_row(figures([e]))) for e in series]))
    parts += ["## With eight rows of your own\n", _OWN_TEXT]
    rows = [
        (f"{_name(each)} {precision}", str(len(left)), *_medians(left))
        for each in series
        for precision, left in each.own.items()
    ]
    parts.append(_table(("series", "points", "median", "p90"), rows))
    return "\n".join(parts).rstrip("\n") + "\n"


_OWN_TEXT = f"""{_OWN} rows are drawn, `archipelago calibrate` fits them, and the other rows of the
series are judged; {_DRAWS} draws each. The default that it starts from has not seen the series.
"""


def _medians(left: FloatArray) -> tuple[str, str]:
    errors = np.abs(np.expm1(left))
    return percent(float(np.median(errors))), percent(float(np.quantile(errors, 0.9)))


def _bar_rows(series: Sequence[Judged], data: Path) -> list[tuple[str, ...]]:
    words = {True: "reached", False: "**not reached**"}
    return [(b.name, b.before, b.bar, b.reached, words[b.holds]) for b in bars(series, data)]


def _name(each: Judged) -> str:
    return " ".join(each.series.key)


def _row(found: Figures | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * 6
    shares = (found.median, found.p90)
    bias = f"{100 * found.bias:+.1f} %"
    return (
        str(found.rows),
        *map(percent, shares),
        bias,
        percent(found.inside),
        percent(found.width),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows)) + "\n"


def main() -> int:
    """Print or write the page; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--values", action="store_true")
    arguments = parser.parse_args()
    if arguments.values:
        print(yaml.safe_dump(pooled(all_series(arguments.data)), sort_keys=False))
        return 0
    series = judged(arguments.data)
    text = page(series, arguments.data)
    if arguments.page:
        arguments.page.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0 if all(bar.holds for bar in bars(series, arguments.data)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
