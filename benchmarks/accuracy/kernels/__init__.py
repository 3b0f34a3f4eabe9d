"""Kernel times beside the operators of the performance model, and the catalogue's rows of them.

``python -m benchmarks.accuracy.kernels FOLDER`` prints ``catalogue/data/kernels.csv`` anew from the
tables in FOLDER, ``--bands`` the errors of the catalogue's values by size. A law is the operator's
own formula, fitted per (accelerator, engine and version, type). Reports judge it on shapes that it
has not seen; bands judge what a plan has: the operators with the values of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Bar, Case, Report, Verdict
from benchmarks.accuracy.kernels import allreduce, attention, experts, gemm, latent
from benchmarks.accuracy.kernels.law import CHOSEN, Law, Sample, fitted, points
from benchmarks.accuracy.kernels.planned import band_errors, measured
from benchmarks.accuracy.kernels.tables import FOLDER, SYSTEMS

_BAND = 0.15
"""Largest median of any band of sizes, over all tables."""

_POOLED = ("A100-80GB", "H100", "H200", "B200")
_LEFT_OUT = (
    "not pooled: L40S (weights of 4-16 MB lie in its 96 MB L2 cache; its FP8 context attention "
    "exceeds the peak 19 times)"
)

_NEGLIGIBLE = 1e-3
"""Relative change of every time, for a tenth more of a parameter, that counts as none."""

_OLD_FP8 = (
    "vllm 0.14's FP8 products on the H100 take 2.1-2.5 times as long as vllm 0.19's on the H200, "
    "although peaks are equal: values stay with their version"
)

_ROUNDED = (
    "of few tokens most of a power law's load is what rounding leaves over: until 2026-04-19 the "
    "collector gave it to neighbouring experts on one rank, since then to each rank in turn; its "
    "times tell which rule a table has"
)


def worst_bands(data: Path) -> dict[str, float]:
    """Return the worst band's median of |planned / measured - 1| by class of operators."""
    return {
        law.name: max(band_errors(law, _pooled(samples)).values())
        for law, samples in measured(data / FOLDER)
    }


def _pooled(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(each for each in samples if each.accelerator in _POOLED)


def gemm_report(data: Path) -> Iterator[Report]:
    """Yield matrix products."""
    split = f"{gemm.FOLDS} folds over pairs (n, k), per accelerator, engine and type"
    made = _report(gemm.LAW, gemm.samples(data / FOLDER), (gemm.FOLDS, split), {})
    yield replace(made, notes=(*made.notes, _OLD_FP8))


def all_reduce_report(data: Path) -> Iterator[Report]:
    """Yield all-reduce."""
    dropped: dict[str, int] = {}
    split = "each number of GPUs (2, 4, 8) predicted by a fit to the other two"
    samples = list(allreduce.samples(data / FOLDER, dropped))
    yield _report(allreduce.LAW, samples, (allreduce.FOLDS, split), dropped)


def latent_report(data: Path) -> Iterator[Report]:
    """Yield latent attention."""
    split = "each number of heads per rank predicted by a fit to the others, per table and variant"
    how = (latent.FOLDS, split)
    yield _report(latent.DECODE, latent.decode_samples(data / FOLDER), how, {})
    yield _report(latent.CONTEXT, latent.context_samples(data / FOLDER), how, {})


def attention_report(data: Path) -> Iterator[Report]:
    """Yield grouped attention."""
    split = f"{attention.FOLDS} folds over (heads, KV heads, head size, window), per cache type"
    for law, samples in (
        (attention.CONTEXT, attention.context_samples),
        (attention.DECODE, attention.decode_samples),
    ):
        dropped: dict[str, int] = {}
        rows = list(samples(data / FOLDER, dropped))
        yield _report(law, rows, (attention.FOLDS, split), dropped)


def experts_report(data: Path) -> Iterator[Report]:
    """Yield routed experts."""
    split = (
        f"{experts.FOLDS} folds over model shapes (hidden, intermediate, k, E), and degrees of "
        "expert parallelism where a table has one shape only"
    )
    made = _report(experts.LAW, experts.samples(data / FOLDER), (experts.FOLDS, split), {})
    yield replace(made, notes=(*made.notes, _ROUNDED))


def _report(
    law: Law,
    samples: Iterable[Sample],
    how: tuple[int, str],
    dropped: dict[str, int],
) -> Report:
    folds, split = how
    samples = _pooled(samples)
    collected = tuple(point for sample in samples for point in points(law, sample, "time", folds))
    notes = (
        f"parameters per accelerator, engine and variant: {len(law.parameters)}",
        CHOSEN,
        _LEFT_OUT,
    )
    name = f"Operators: {law.name}"
    checks = [
        Verdict(f"catalogue's values, median {band}", value, f"<= {_BAND:.0%}", value <= _BAND)
        for band, value in band_errors(law, samples).items()
    ]
    values = _values(law, samples)
    return Report(name, Bar(), split, dropped, collected, notes, checks=checks, values=values)


def _values(law: Law, samples: Iterable[Sample]) -> list[list[str]]:
    """Return the values of a fit to all rows of each sample, by parameter with its unit."""
    rows = [["accelerator", "engine", "variant", *(f"{p.name} [{p.unit}]" for p in law.parameters)]]
    for sample in samples:
        values = fitted(law, sample)
        key = [sample.accelerator, sample.engine, sample.variant]
        rows.append([*key, *(_value(law, sample, values, i) for i in range(len(values)))])
    return rows


def _value(law: Law, sample: Sample, values: FloatArray, index: int) -> str:
    """Return a value; ``-`` if the times hardly depend on it, starred on its bound."""
    more = values.copy()
    more[index] *= 1.1
    ratio = law.seconds(sample.columns, more) / law.seconds(sample.columns, values)
    if np.abs(np.log(ratio)).max() < _NEGLIGIBLE:
        return "-"
    parameter, value = law.parameters[index], float(values[index])
    on_bound = np.isclose(value, [parameter.low, parameter.high], rtol=1e-2, atol=0).any()
    return f"{value:.3g}" + ("*" if on_bound else "")


_NEEDS = tuple(f"{FOLDER}/{system}" for system, name in SYSTEMS.items() if name in _POOLED)

CASES = tuple(
    Case(name, title, _NEEDS, run, ("pyarrow",))
    for name, title, run in (
        ("gemm", "Operators: matrix products", gemm_report),
        ("all-reduce", "Operators: all-reduce", all_reduce_report),
        ("mla", "Operators: latent attention", latent_report),
        ("attention", "Operators: grouped attention", attention_report),
        ("moe", "Operators: routed experts", experts_report),
    )
)
