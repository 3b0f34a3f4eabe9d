"""The performance model's operators at the shapes of the tables, with the catalogue's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.catalogue.accelerators import accelerator
from archipelago.perfmodel.catalogue.architectures import architecture
from archipelago.perfmodel.catalogue.efficiency import engine_fit
from archipelago.perfmodel.catalogue.layers import Experts, GroupedAttention
from archipelago.perfmodel.catalogue.precision import Format, Precision
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.communication import Network
from archipelago.perfmodel.roofline.experts import SparseBlock
from archipelago.perfmodel.roofline.operators import ATTENTION, Kernels
from archipelago.perfmodel.roofline.operators import attention as attention_block
from archipelago.perfmodel.roofline.parallelism import Parallelism
from benchmarks.accuracy.kernels import attention, experts, gemm
from benchmarks.accuracy.kernels.law import Law, Sample, band_medians

ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""The catalogue's name of an engine by that of the tables."""

WIDE = ("moe_", "wideep")
"""How variants of experts begin that are of one model's wide expert parallelism alone."""

_MODEL = architecture("Llama-3.1-8B")


def measured(folder: Path) -> Iterator[tuple[Law, Iterator[Sample]]]:
    """Yield the laws that operators have, each with its samples of the tables in ``folder``."""
    dropped: dict[str, int] = {}
    yield gemm.LAW, gemm.samples(folder)
    yield attention.DECODE, attention.decode_samples(folder, dropped)
    yield attention.CONTEXT, attention.context_samples(folder, dropped)
    yield experts.LAW, experts.samples(folder)


def key(sample: Sample) -> tuple[str, str, str, str]:
    """Return accelerator, class of products, engine and version, as the catalogue names them."""
    engine, _, version = sample.engine.partition(" ")
    operand = gemm.operand(accelerator(sample.accelerator), _format(sample))
    return sample.accelerator, operand, ENGINES[engine], version


def _format(sample: Sample) -> Format:
    return gemm.FORMATS[sample.variant.rpartition(" ")[2]]


def band_errors(law: Law, samples: Iterable[Sample]) -> dict[str, float]:
    """Return the median of |planned / measured - 1| by band of sizes, every table counting alike.

    Empty for a law that no operator has. Kernels of wide expert parallelism are no part of it.
    """
    if law.name not in _PLANNED:
        return {}
    bands: dict[int, list[float]] = {}
    for sample in samples:
        if sample.variant.startswith(WIDE):
            continue
        for number, median in band_medians(law, sample, seconds(law, sample)).items():
            bands.setdefault(number, []).append(median)
    return {
        _named(law, number): float(np.median(medians)) for number, medians in sorted(bands.items())
    }


def _named(law: Law, number: int) -> str:
    low, high = (0.0, *law.bands)[number], (*law.bands, None)[number]
    ends = f"{low:,.0f}", "more" if high is None else f"{high:,.0f}"
    return f"from {ends[0]} to {ends[1]} tokens"


def seconds(law: Law, sample: Sample) -> FloatArray:
    """Return what a plan would take for each row of a table [s]."""
    name, _, engine, version = key(sample)
    card, form = accelerator(name), _format(sample)
    precision = replace(Precision.of("measured", form, form), kv=min(2.0, form.size))
    model = replace(_MODEL, precision=precision)
    return _PLANNED[law.name](Kernels(card, model, engine_fit(card, engine, version)), sample)


def _by_shape(
    sample: Sample,
    names: tuple[str, ...],
    time: Callable[[Mapping[str, float], Sample], FloatArray],
) -> FloatArray:
    """Return times of all rows: one operator for each distinct shape."""
    shapes = np.stack([sample.columns[name] for name in names], axis=1)
    distinct, at = np.unique(shapes, axis=0, return_inverse=True)
    total = np.empty_like(sample.seconds)
    for number, values in enumerate(distinct):
        rows: NDArray[np.bool_] = at.ravel() == number
        total[rows] = time(dict(zip(names, values.tolist(), strict=True)), sample.only(rows))
    return total


def _product(kernels: Kernels, sample: Sample) -> FloatArray:
    def time(shape: Mapping[str, float], rows: Sample) -> FloatArray:
        operator = kernels.product("measured", shape["k"], shape["n"])
        return operator.seconds(rows.columns["m"], np.zeros(len(rows.seconds)))

    return _by_shape(sample, ("n", "k"), time)


def _attention(phase: str) -> Callable[[Kernels, Sample], FloatArray]:
    def of(kernels: Kernels, sample: Sample) -> FloatArray:
        def time(shape: Mapping[str, float], rows: Sample) -> FloatArray:
            heads, kv_heads, size = (int(shape[name]) for name in ("heads", "kv_heads", "size"))
            window = None if np.isinf(shape["window"]) else int(shape["window"])
            mixer = GroupedAttention(heads, kv_heads, size, window=window)
            core = next(o for o in attention_block(kernels, mixer, 1, phase) if o.name == ATTENTION)
            columns = rows.columns
            if phase == "decode":
                reach = np.minimum(columns["context"], shape["window"])
                return core.seconds(columns["sequences"], columns["sequences"] * reach)
            pairs = attention.attended(columns["length"], columns["window"])
            return core.seconds(
                columns["sequences"] * columns["length"], columns["sequences"] * pairs
            )

        return _by_shape(sample, ("heads", "kv_heads", "size", "window"), time)

    return of


def _experts(kernels: Kernels, sample: Sample) -> FloatArray:
    def time(shape: Mapping[str, float], rows: Sample) -> FloatArray:
        ranks = int(shape["ranks"])
        sliced = replace(kernels, model=replace(kernels.model, hidden=int(shape["hidden"])))
        routed = Experts(
            routed=int(shape["experts"]), per_token=1, intermediate=int(shape["width"])
        )
        block = SparseBlock(
            sliced, routed, Parallelism(tp=1, dp=ranks, ep=ranks), Network(kernels.accelerator, 8)
        )
        columns = rows.columns
        grouped = block.grouped(columns["rows"], columns["touched"])
        return block.fixed + block.sorting(columns["pairs"]) + grouped

    return _by_shape(sample, ("hidden", "width", "experts", "ranks"), time)


_PLANNED: dict[str, Callable[[Kernels, Sample], FloatArray]] = {
    gemm.LAW.name: _product,
    attention.DECODE.name: _attention("decode"),
    attention.CONTEXT.name: _attention("prefill"),
    experts.LAW.name: _experts,
}
