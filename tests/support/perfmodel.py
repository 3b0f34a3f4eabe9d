"""Islands that the tests of performance models and of capacity rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from archipelago.perfmodel.calibration.corrections import Calibrated, Correction
from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import (
    ModelArchitecture,
    architecture,
    from_config,
)
from archipelago.perfmodel.literature.bestserve import BestServe
from archipelago.perfmodel.literature.measured import Limits, MeasuredTable, Measurements
from archipelago.perfmodel.literature.shallowsim import Shallowsim
from archipelago.perfmodel.literature.xiong import Fitted, Samples, fit_xiong
from archipelago.perfmodel.model import FloatArray, PerformanceModel
from archipelago.perfmodel.roofline.island import Roofline
from archipelago.perfmodel.roofline.parallelism import Parallelism
from archipelago.perfmodel.roofline.pipeline import Pipeline, Section
from archipelago.perfmodel.roofline.settings import EngineSettings
from archipelago.perfmodel.workload.lengths import RangeMoments

LLAMA_1B: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
"""The config.json of Llama-3.2-1B, by the fields that decide its shape."""


def tiny_model(layers: int) -> ModelArchitecture:
    """A dense model whose times are computed by hand."""
    return from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "hidden_size": 1000,
            "vocab_size": 2000,
            "num_attention_heads": 10,
            "num_key_value_heads": 5,
            "intermediate_size": 3000,
            "max_position_embeddings": 4096,
        },
        "tiny",
    )


def sampled(model: PerformanceModel, most: int) -> tuple[Samples, Samples]:
    """What a profiling run of an island would measure, without noise: prompts and steps."""
    batch, length = (x.ravel() for x in np.meshgrid([1.0, 2, 4, 8], [128.0, 512, 2048, 8192]))
    prefill = Samples(batch, length, batch * model.prefill_occupancy(length))
    sequences = np.unique(np.geomspace(1, most, 12).round())
    b, context = (x.ravel() for x in np.meshgrid(sequences, [16.0, 256, 1024, 4096, 16_384]))
    return prefill, Samples(b, context, model.decode_step_time(b, b * context))


def fitted(
    card: Accelerator, model: ModelArchitecture, split: Parallelism, per_node: int, most: int = 1024
) -> Fitted:
    """Xiong's eight parameters, fitted to what the roofline says of the same island."""
    like = Roofline(card, model, split, per_node, most)
    return Fitted(fit_xiong(*sampled(like, like.max_sequences())), Limits.of(like))


def measured(
    card: Accelerator, model: ModelArchitecture, split: Parallelism, per_node: int, most: int = 1024
) -> MeasuredTable:
    """A table of what the roofline says of the same island, that extends itself."""
    like = Roofline(card, model, split, per_node, most)
    _, decode = sampled(like, like.max_sequences())
    lengths = np.geomspace(1, 131_072, 40)
    points = Measurements(
        lengths,
        like.prefill_time(lengths),
        decode.batch,
        decode.batch * decode.length,
        decode.seconds,
    )
    return MeasuredTable(points, Limits.of(like), copies=split.dp * split.pp, extend=True)


def calibrated(
    card: Accelerator, model: ModelArchitecture, split: Parallelism, per_node: int, most: int = 1024
) -> Calibrated:
    """The roofline, a fifth slower in prefill and a tenth faster in decode."""
    prefill = Correction(card.name, model.name, "prefill", 1.2)
    decode = Correction(card.name, model.name, "decode", 0.9)
    return Calibrated(Roofline(card, model, split, per_node, most), [prefill, decode])


def overlapping(
    card: Accelerator, model: ModelArchitecture, split: Parallelism, per_node: int, most: int = 1024
) -> Roofline:
    """The roofline of an engine that runs two batches beside each other, as vLLM 0.19 does."""
    settings = EngineSettings(engine="vllm", version="0.19.0", two_batch_overlap=True)
    return Roofline(card, model, split, per_node, most, settings=settings)


FAMILIES: dict[str, Callable[..., PerformanceModel]] = {
    "roofline": Roofline,
    "overlapping": overlapping,
    "shallowsim": Shallowsim,
    "fitted": fitted,
    "table": measured,
    "calibrated": calibrated,
    "bestserve": BestServe,
}
"""Every performance model that the conformance suite must accept; later ones join here."""

SHALLOW = {"deepseek/H200/ep8", "deepseek/H800/ep32"}
"""Islands that shallowsim knows model and device of, and has room for."""

LLAMA_BLOCKS = {"llama-8b/H100", "llama-70b/H100/tp8", "qwen-32b/MI300X/tp2"}
"""Islands of the kind that BestServe counts."""

OVERLAPPING = {"qwen-235b/H200/ep8", "deepseek/H800/ep32", "deepseek/GB200/ep64", "gpt-oss/B200"}
"""Islands with copies between which tokens travel, and one without."""

ONLY = {"shallowsim": SHALLOW, "bestserve": LLAMA_BLOCKS, "overlapping": OVERLAPPING}

ISLANDS = {
    "llama-8b/H100": ("H100", "Llama-3.1-8B", "bf16", Parallelism()),
    "llama-70b/H100/tp8": ("H100", "Llama-3.1-70B", "fp8", Parallelism(tp=8)),
    "llama-70b/A100/tp4-pp2": ("A100-80GB", "Llama-3.1-70B", "bf16", Parallelism(tp=4, pp=2)),
    "llama-8b/L40S/pp4": ("L40S", "Llama-3.1-8B", "bf16", Parallelism(pp=4)),
    "qwen-32b/MI300X/tp2": ("MI300X", "Qwen3-32B", "bf16", Parallelism(tp=2)),
    "mixtral/H100/tp4": ("H100", "Mixtral-8x7B", "bf16", Parallelism(tp=4)),
    "qwen-235b/H200/ep8": ("H200", "Qwen3-235B-A22B", "fp8", Parallelism(tp=4, dp=2, ep=8)),
    "gpt-oss/B200": ("B200", "gpt-oss-120b", "fp4", Parallelism()),
    "deepseek/H20/tp8": ("H20", "DeepSeek-V3", "fp8", Parallelism(tp=8, ep=8)),
    "deepseek/H200/ep8": ("H200", "DeepSeek-V3", "fp8", Parallelism(dp=8, ep=8)),
    "deepseek/H800/ep32": ("H800", "DeepSeek-V3", "fp8", Parallelism(dp=32, ep=32)),
    "deepseek/GB200/ep64": ("GB200", "DeepSeek-R1", "fp8", Parallelism(tp=2, dp=32, ep=64)),
}

PIPELINES = {
    "llama-8b/L40S-H100": ("Llama-3.1-8B", "bf16", 1, (("L40S", 1, 9), ("H100", 1, 23))),
    "llama-70b/A100-H100/tp4": (
        "Llama-3.1-70B",
        "bf16",
        4,
        (("A100-80GB", 8, 40), ("H100", 4, 40)),
    ),
    "gpt-oss/L40S-H100/tp2": ("gpt-oss-120b", "fp4", 2, (("L40S", 4, 15), ("H100", 2, 21))),
    "deepseek/H20-H800-H200/tp8": (
        "DeepSeek-V3",
        "fp8",
        8,
        (("H20", 8, 19), ("H800", 8, 15), ("H200", 8, 27)),
    ),
}
"""Islands of several pools: model, precision, tp, and (accelerator, GPUs, layers) per section."""

CASES = (
    *(
        (family, name)
        for family, name in product(FAMILIES, ISLANDS)
        if name in ONLY.get(family, ISLANDS)
    ),
    *(("pipeline", name) for name in PIPELINES),
)
"""Every island that keeps the promises of ``PerformanceModel``, as arguments of ``island``."""


KEEPING = tuple(case for case in CASES if case[0] in ("roofline", "pipeline"))
"""Those of them that break no promise: bounds are tight, and steps have one fixed point."""


@cache
def island(family: str, name: str, max_sequences: int = 1024) -> PerformanceModel:
    """One of ``ISLANDS`` in one of ``FAMILIES``, or one of ``PIPELINES``."""
    if family == "pipeline":
        model, precision, tp, parts = PIPELINES[name]
        sections = [Section(accelerator(card), gpus, layers, 8) for card, gpus, layers in parts]
        return Pipeline(sections, architecture(model, precision), tp, max_sequences)
    card, model, precision, parallelism = ISLANDS[name]
    return FAMILIES[family](
        accelerator(card), architecture(model, precision), parallelism, 8, max_sequences
    )


@dataclass(frozen=True)
class Line:
    """A model whose times are simple enough for paper: prefill 1 ms per token, an affine step."""

    a: float = 0.010
    beta: float = 0.0001
    kappa: float = 1e-7
    name: str = "line"
    max_length: int = 100_000

    def prefill_time(self, length: FloatArray) -> FloatArray:
        return 0.001 * np.asarray(length)

    prefill_occupancy = prefill_time
    kv_bytes = prefill_time

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        return np.asarray(self.a + self.beta * sequences + self.kappa * kv_tokens)

    def kv_capacity(self) -> int:
        return 200_000

    def max_sequences(self) -> int:
        return 512


def moments(output: float, context: float) -> RangeMoments:
    """One range that all requests lie in."""
    return RangeMoments(np.array([1.0]), np.array([output]), np.array([context]))
