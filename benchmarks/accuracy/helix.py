"""One layer of LLaMA-30B and LLaMA-2-70B on T4, L4, V100 and A100: prompts and decode batches.

Source: Thesys-lab/Helix-ASPLOS25 @ 148b733 (Apache-2.0), vLLM 0.4.0 in FP16, ms per layer. Prompt
times, and decode times of more than 100 sequences, are rounded to 1 ms.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.model import FloatArray
from benchmarks.accuracy.case import Bar, Case, Point, Report, Verdict
from benchmarks.accuracy.kernels.law import (
    CHOSEN,
    Columns,
    Law,
    Parameter,
    Sample,
    fit_law,
    fold_of,
    smooth_max,
)

FOLDER = "measured/helix_layers"

PADDING = "first row 0,0 of each file: padding"
SLICED = "l4x2, t4x2, t4x4: tensor parallel over a PCIe that is not described"

MODELS = {"llama1_30b": (6656, 17920, 52, 52), "llama2_70b": (8192, 28672, 64, 8)}
"""Hidden size, feed-forward width, heads and KV heads of one layer; heads of 128."""

PHASES = {"prompt": "prefill", "decode": "decode"}

_PARTS = 8
"""A curve is cut into so many parts of equal length; parts are what is left out."""

_CONTEXT = 830.0
"""Tokens of context in the decode profile: not stated, about 740 to 930; it only scales."""

_TILES = (32, 64, 128)
"""Rows that a product's tile can have; a fit takes the one that suits its rows best."""

_NARROW = 32
"""Rows of the tile with which cuBLAS begins; more rows read the weights again."""


def t4() -> Accelerator:
    """Return NVIDIA T4: 65 TFLOP/s in FP16, 16 GB at 320 GB/s (data sheet)."""
    return Accelerator("T4", "turing", 65e12, 16e9, 320e9, 1, pcie=16e9)


@dataclass(frozen=True)
class Curve:
    """Times of one layer over a number of tokens or sequences [s], shape (rows,)."""

    card: Accelerator
    model: str
    phase: str
    x: FloatArray
    seconds: FloatArray


def curves(data: Path) -> dict[str, list[Curve]]:
    """Return curves of the single GPUs, by accelerator."""
    cards = {"a100": accelerator("A100-40GB"), "v100": accelerator("V100-32GB")}
    cards |= {"l4": accelerator("L4"), "t4": t4()}
    return {
        card.name: [_curve(data, folder, card, m, p) for m in MODELS for p in PHASES]
        for folder, card in cards.items()
    }


def _curve(data: Path, folder: str, card: Accelerator, model: str, phase: str) -> Curve:
    text = (data / FOLDER / model / folder / f"{phase}_bs2time.csv").read_text()
    x, milliseconds = np.array([[float(v) for v in row] for row in csv.reader(text.split())]).T
    return Curve(card, model, PHASES[phase], x[x > 0], milliseconds[x > 0] * 1e-3)


def _law(tile: int) -> Law:
    def seconds(columns: Columns, values: FloatArray) -> FloatArray:
        """Return a prompt of x tokens, or a batch of x sequences [s].

        A prompt: operations and elementwise traffic. A batch: weights, read again by every narrow
        tile until a wide kernel takes over, or operations in whole tiles; the cache, and work per
        query head.
        """
        launch, stream, compute, decode, cached, head, again, wide = values
        x, work = columns["x"], 2 * columns["parameters"]
        traffic = 2 * (10 * columns["hidden"] + 4 * columns["width"]) * x / columns["bandwidth"]
        prompt = work * x / (compute * columns["peak"])
        reads = np.minimum(np.ceil(x / _NARROW) ** again, wide)
        weights = work / (stream * columns["bandwidth"]) * reads  # FP16: 2 B per parameter
        products = work * np.ceil(x / tile) * tile / (decode * columns["peak"])
        cache = columns["kv_bytes"] / (cached * columns["bandwidth"]) + head * columns["heads"]
        batch = smooth_max(weights, products, power=3.0) + x * _CONTEXT * cache
        return np.asarray(launch + traffic + np.where(columns["is_prompt"] > 0, prompt, batch))

    return Law(f"layer, tiles of {tile}", _PARAMETERS, seconds)


_PARAMETERS = (
    Parameter("launch", "s", 1e-4, 1e-6, 2e-3),
    Parameter("stream", "share of the memory bandwidth, weights", 0.8, 0.3, 1.1),
    Parameter("compute", "share of the peak, prompts", 0.6, 0.1, 1.2),
    Parameter("decode", "share of the peak, batches", 0.6, 0.1, 1.2),
    Parameter("cached", "share of the memory bandwidth, cache", 0.7, 0.1, 2.0),
    Parameter("head", "s per head and token of context", 1e-11, 1e-15, 1e-8),
    Parameter("again", "exponent of reading weights again", 0.3, 0.01, 1.0),
    Parameter("wide", "reads after which a wide kernel is faster", 1.3, 1.0, 4.0),
)


def _sample(curves: list[Curve]) -> Sample:
    """Return curves of one accelerator as rows; a group is one part of one curve."""
    parts = [_columns(curve) for curve in curves]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    seconds = np.concatenate([curve.seconds for curve in curves])
    groups = np.concatenate([_groups(curve) for curve in curves])
    return Sample(curves[0].card.name, "vllm 0.4.0", "FP16", columns, seconds, groups)


def _groups(curve: Curve) -> NDArray[np.str_]:
    part = np.arange(len(curve.x)) * _PARTS // len(curve.x)
    return np.array([f"{curve.model} {curve.phase} part {1 + p}" for p in part])


def _columns(curve: Curve) -> dict[str, FloatArray]:
    hidden, width, heads, kv_heads = MODELS[curve.model]
    parameters = hidden * 128 * (2 * heads + 2 * kv_heads) + 3 * hidden * width
    constants = {
        "parameters": parameters,
        "hidden": hidden,
        "width": width,
        "heads": heads,
        "kv_bytes": 2 * kv_heads * 128 * 2,
        "peak": curve.card.half,
        "bandwidth": curve.card.bandwidth,
        "is_prompt": curve.phase == "prefill",
    }
    return {"x": curve.x} | {k: np.full(len(curve.x), float(v)) for k, v in constants.items()}


def _predicted(sample: Sample, fold: NDArray[np.intp]) -> FloatArray:
    """Return times of every row by a fit to the rows of other folds."""
    predicted = np.empty_like(sample.seconds)
    for out in np.unique(fold):
        fitted = {name: column[fold != out] for name, column in sample.columns.items()}
        unseen = {name: column[fold == out] for name, column in sample.columns.items()}
        law, values = _best(fitted, sample.seconds[fold != out])
        predicted[fold == out] = law.seconds(unseen, values)
    return predicted


def _best(columns: Columns, seconds: FloatArray) -> tuple[Law, FloatArray]:
    """Return the law of the tile that fits these rows best, and its values."""
    laws = [_law(tile) for tile in _TILES]
    fits = [fit_law(law, columns, seconds) for law in laws]
    misses = [
        float(np.median(np.abs(np.log(law.seconds(columns, values) / seconds))))
        for law, values in zip(laws, fits, strict=True)
    ]
    best = int(np.argmin(misses))
    return laws[best], fits[best]


def layers(data: Path) -> Iterator[Report]:
    """Yield both reports: parts of curves left out, and a whole model left out."""
    by_card = {name: (collected, _sample(collected)) for name, collected in curves(data).items()}
    inside = {n: _predicted(s, fold_of(s.groups, _PARTS)) for n, (_, s) in by_card.items()}
    smallest = min(hidden for hidden, *_ in MODELS.values())
    models = {
        name: _predicted(sample, (sample.columns["hidden"] == smallest).astype(np.intp))
        for name, (_, sample) in by_card.items()
    }
    parts = [p for n, (collected, _) in by_card.items() for p in _points(collected, inside[n])]
    whole = [p for n, (collected, _) in by_card.items() for p in _points(collected, models[n])]
    files = (data / FOLDER).glob("*/*x?/*_bs2time.csv")
    sliced = sum(len(path.read_text().split()) - 1 for path in files)
    dropped = {PADDING: 4 * len(MODELS) * len(PHASES), SLICED: sliced}
    yield Report(
        "Helix: one layer",
        Bar(median=0.04, p90=0.12),
        f"every curve (model, phase) in {_PARTS} parts of consecutive sizes, parts left out",
        dropped,
        parts,
        _NOTES,
        checks=_rankings(by_card, inside),
    )
    prompts = [point for point in whole if point.phase == "prefill"]
    split = "each model predicted by a fit to the other one alone, accelerator by accelerator"
    yield Report(
        "Helix: prompts of a left-out model",
        Bar(median=0.06, p90=0.12),
        split,
        dropped,
        prompts,
        (CHOSEN,),
    )
    batches = [point for point in whole if point.phase == "decode"]
    note = "no goal: one model cannot separate cache bytes from work for each query head"
    yield Report("Helix: decode of a left-out model", Bar(), split, dropped, batches, (note,))


_NOTES = (
    f"{len(_PARAMETERS)} parameters per accelerator, for both models and phases",
    CHOSEN,
    "times of a few milliseconds are rounded to 1 ms, so errors of up to 0.5 ms are rounding",
)


def _points(collected: list[Curve], predicted: FloatArray) -> Iterator[Point]:
    ours = iter(predicted)
    for curve in collected:
        for group, theirs in zip(_groups(curve), curve.seconds, strict=True):
            key = (curve.card.name, "vllm 0.4.0", curve.model, curve.phase, "layer time")
            yield Point(str(group), *key, 1e3 * float(next(ours)), 1e3 * float(theirs), "ms")


def _rankings(
    by_card: dict[str, tuple[list[Curve], Sample]], predicted: dict[str, FloatArray]
) -> tuple[Verdict, ...]:
    """Return the share of pairs of accelerators that the prediction orders otherwise."""
    times = {name: _table(curves, predicted[name]) for name, (curves, _) in by_card.items()}
    wrong = total = 0
    for card, other in combinations(times, 2):
        for key in times[card].keys() & times[other].keys():
            (ours, mine), (theirs, others) = times[card][key], times[other][key]
            if round(1e3 * mine) != round(1e3 * others):
                total += 1
                wrong += (ours < theirs) != (mine < others)
    figure = f"pairs of GPU types ranked otherwise, of {total:,} whose whole milliseconds differ"
    return (Verdict(figure, wrong / total, "= 0.0%", wrong == 0),)


def _table(
    curves: list[Curve], predicted: FloatArray
) -> dict[tuple[str, str, float], tuple[float, float]]:
    """Return predicted and measured time by model, phase and size [s]."""
    ours = iter(predicted)
    return {
        (curve.model, curve.phase, float(x)): (float(next(ours)), float(theirs))
        for curve in curves
        for x, theirs in zip(curve.x, curve.seconds, strict=True)
    }


CASES = (Case("helix", "Single layers on older GPUs: Helix", (FOLDER,), layers),)
