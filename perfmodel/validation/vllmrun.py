"""A whole vLLM run on an RTX 4090, predicted from the card's operators and the server's scheduler.

Source: casys-kaist/LLMServingSim @ 5daddb2 (MIT), vLLM 0.19 with Llama-3.1-8B in bfloat16; seconds.
Efficiencies of the card come from its operator tables alone, overheads are the catalogue's, and
nothing is fitted to the run itself.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.efficiency import engine_fit
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.roofline import EngineSettings, Roofline
from archipelago.perfmodel.validation.capacity import rtx_4090
from archipelago.perfmodel.validation.case import Bar, Case, Point, Report
from archipelago.perfmodel.validation.replay import Engine, Request, replay
from archipelago.perfmodel.validation.rtx4090 import KV_BYTES, OPERATORS, products

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.efficiency import EngineFit

RUN = "measured/llmservingsim_rtx4090/vllm"

_SPLIT = "nothing of the run is fitted"
_NOTE = "the server's own scheduler is replayed; prefix hits between turns are not known"

_FEW, _MANY = 16, 1024
"""Rows up to which a product streams weights, and from which it is bound by operations."""


def run(data: Path) -> Iterator[Report]:
    """The run, replayed: 300 requests, 10 a second, far more than the card can serve."""
    meta = json.loads((data / RUN / "meta.json").read_text())
    rows = [json.loads(line) for line in (data / RUN / "requests.jsonl").read_text().splitlines()]
    card = rtx_4090(meta["hardware"]["device_total_memory_bytes"])
    for name, fit in (("operator tables", _fit(data, card)), ("catalogue", None)):
        settings = EngineSettings(chunk=meta["engine_kwargs"]["max_num_batched_tokens"], fit=fit)
        model = Roofline(card, architecture("Llama-3.1-8B"), Parallelism(), settings=settings)
        requests = _requests(rows)
        span = replay(_engine(meta), model, requests)
        bar = Bar() if fit is None else Bar(largest=0.15)
        title = f"RTX 4090: a vLLM run, efficiencies of the {name}"
        yield Report(title, bar, _SPLIT, {}, _compared(requests, rows, span), (_NOTE,))


def _engine(meta: dict[str, dict[str, int]]) -> Engine:
    cache, limits = meta["kv_cache"], meta["engine_kwargs"]
    sizes = limits["max_num_seqs"], limits["max_num_batched_tokens"]
    return Engine(cache["num_gpu_blocks"], cache["block_size"], *sizes)


def _requests(rows: list[dict[str, float]]) -> list[Request]:
    start = min(row["queued_ts"] for row in rows)
    return [
        Request(row["queued_ts"] - start, int(row["input_toks"]), int(row["output_toks"]))
        for row in rows
    ]


def _fit(data: Path, card: Accelerator) -> EngineFit:
    """The catalogue's values with the shares of the peaks that the operator tables show."""
    folder = data / OPERATORS
    measured, few, many = products(folder), _FEW, _MANY
    m, k, n = (measured.columns[name] for name in ("m", "k", "n"))
    compute = 2 * m * k * n / measured.seconds / card.bf16
    stream = 2 * k * n / measured.seconds / card.bandwidth
    rows = list(csv.DictReader((folder / "attention.csv").read_text().splitlines()))
    table = np.array([[float(value) for value in row.values()] for row in rows]).T
    chunk, before, sequences, context, micros = table
    seconds = micros * 1e-6
    cached = sequences * context * KV_BYTES
    decode = (chunk == 0) & (sequences >= few) & (context >= _MANY)
    pairs = chunk * before + chunk * (chunk + 1) / 2
    prefill = (sequences == 0) & (chunk >= _MANY)
    values = {
        "mfu": float(np.median(compute[m >= many])),
        "mbu": float(np.median(stream[m <= few])),
        "kv_mbu": float(np.median((cached / seconds)[decode])) / card.bandwidth,
        "prefill_attention_mfu": float(np.median((4 * 32 * 128 * pairs / seconds)[prefill]))
        / card.bf16,
        "decode_attention_mfu": 1.0,  # the kernel reads the cache; its operations hide behind
    }
    return engine_fit(card).replaced(values)


def _compared(requests: list[Request], rows: list[dict[str, float]], span: float) -> list[Point]:
    start = min(row["queued_ts"] for row in rows)
    first = np.array([row["first_token_ts"] - row["queued_ts"] for row in rows])
    token = np.array(
        [
            (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1)
            for row in rows
            if row["output_toks"] > 1
        ]
    )
    ours = np.array([request.first_token_time for request in requests])
    pace = np.array([request.token_time for request in requests if request.output > 1])
    pairs = {
        ("whole run", "mean TTFT", "s"): (ours.mean(), first.mean()),
        ("whole run", "mean TPOT", "s"): (pace.mean(), token.mean()),
        ("whole run", "duration", "s"): (span, max(row["last_token_ts"] for row in rows) - start),
        ("whole run", "p90 TTFT", "s"): (np.quantile(ours, 0.9), np.quantile(first, 0.9)),
        ("whole run", "p90 TPOT", "s"): (np.quantile(pace, 0.9), np.quantile(token, 0.9)),
    }
    key = ("RTX-4090", "vllm 0.19.0", "Llama-3.1-8B")
    return [
        Point("run", *key, phase, metric, float(value), float(measured), unit)
        for (phase, metric, unit), (value, measured) in pairs.items()
    ]


CASES = (Case("rtx4090-run", "RTX 4090: a vLLM run", (OPERATORS, RUN), run),)
