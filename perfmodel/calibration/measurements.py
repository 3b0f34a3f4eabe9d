"""End-to-end points of engines: TTFT and TPOT against closed-loop clients.

``measured/engine_points/engine_points.csv``: ai-dynamo/aiconfigurator @ 095f58a (Apache-2.0). The
rules below were found by fitting: what a column says is not always what was run.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.perfmodel.measurements.rules import Loaded, Rule, first_of_each, read_csv, sift
from archipelago.perfmodel.parallelism import Parallelism

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "measured/engine_points/engine_points.csv"

_MODELS = {
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-R1": "DeepSeek-R1",
    "meta-llama/Llama-3.1-70B": "Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
_ENGINES = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}
_NEEDS = ("model_path", "system", "mode", "concurrency", "silicon_ttft_ms", "silicon_tpot_ms")

_CAPPED = 10.0
"""A mean TTFT beyond this [s] is a queue in front of a full server."""

_SAME = 1.1
"""Steps that take no longer than this times those of a fraction of the clients have their batch."""

_Row = dict[str, str]


@dataclass(frozen=True)
class EnginePoint:
    """One closed-loop run of an aggregated engine: ``clients`` always have a request each.

    ``inputs`` and ``outputs`` are nominal [tokens]; ``ttft`` (queueing included) and ``tpot``
    (interference of prompts included) are means [s]. ``version`` is empty where none is stated.
    """

    accelerator: str
    engine: str
    version: str
    model: str
    precision: str
    parallelism: Parallelism
    inputs: float
    outputs: float
    clients: float
    ttft: float
    tpot: float

    @property
    def series(self) -> tuple[str, str, str, str]:
        """What one set of efficiencies speaks of: accelerator, engine, model and precision."""
        return (self.accelerator, self.engine, self.model, self.precision)

    @property
    def sweep(self) -> str:
        """Points that differ in the number of clients only: the smallest group of a split."""
        return f"{self.parallelism} {self.inputs:.0f}/{self.outputs:.0f}"

    @property
    def deployment(self) -> str:
        """Points of one way to spread the model: the larger group of a split."""
        return str(self.parallelism)


def load(root: Path) -> Loaded[EnginePoint]:
    """Points of aggregated engines below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    rows = read_csv(root / FILE, _NEEDS)
    kept, dropped = sift(rows, _RULES)
    corrected: Counter[str] = Counter()
    points = [_parse(_correct(row, corrected)) for row in kept]
    # Repeats differ in the parallelism columns; the lower tp is the true one.
    points.sort(key=lambda point: (point.parallelism.tp, point.parallelism.dp))
    points, repeats = first_of_each(points, _identity)
    dropped["repeat of the same measurement"] += len(repeats)
    capped = set(_capped(points))
    dropped["server's cap: clients wait, the batch is not the clients"] += len(capped)
    kept_points = tuple(point for point in points if point not in capped)
    return Loaded(kept_points, dict(dropped), dict(corrected))


def _is_stray(row: _Row) -> bool:
    """TensorRT-LLM tp8 ep8 1024/8192 at 64 clients stands twice; 32.16 ms is out of its series."""
    key = (row["model_path"], row["backend"], row["isl"], row["osl"], row["concurrency"])
    stray = ("deepseek-ai/DeepSeek-R1", "trtllm", "1024", "8192", "64.0")
    return key == stray and float(row["silicon_tpot_ms"]) > 30  # noqa: PLR2004  # [ms]


def _is_hybrid(row: _Row) -> bool:
    """Experts both sliced and spread (moe_tp 2, moe_ep 2 at tp 4), which is not modelled."""
    if row["backend_version"] == "gpt-oss-dev":
        return False  # there the columns mean something else, see _true_tp
    tp, ep = float(row["tp_size"] or 1), float(row["moe_ep_size"] or 1)
    return tp == 4 and ep == 2  # noqa: PLR2004


_RULES: Sequence[Rule[_Row]] = (
    Rule("disaggregated: no worker counts, no speculative decoding", lambda r: r["mode"] != "agg"),
    Rule("no concurrency stated", lambda r: not r["concurrency"]),
    Rule("stray value of a doubled key (DeepSeek-R1, 32.16 ms)", _is_stray),
    Rule("experts both sliced and spread", _is_hybrid),
)


def _correct(row: _Row, corrected: Counter[str]) -> _Row:
    """Undoes what columns are known to mean in some rows."""
    row = dict(row)
    tp = float(row["tp_size"] or 1)
    if (true := _true_tp(row, tp)) != tp:
        row["tp_size"] = str(true)
        row["moe_ep_size"], row["moe_tp_size"] = str(true), "1"
        corrected["tp_size is tp x ep"] += 1
    if float(row["attention_dp_size"] or 1) == 64:  # noqa: PLR2004
        row["attention_dp_size"] = "8"
        corrected["attention_dp 64 means 8"] += 1
    if not row["attention_dp_size"] and row["model_path"].startswith("Qwen/"):
        copies = float(row["moe_tp_size"]) * float(row["moe_ep_size"]) / float(row["tp_size"])
        row["attention_dp_size"] = str(copies)
        corrected["attention_dp from the experts' split"] += copies > 1
    if "8B" in row["model_path"] and row["precision"] != "bf16":
        row["precision"] = "bf16"
        corrected["precision of Llama-3.1-8B is bf16 (inferred)"] += 1
    if "gpt-oss" in row["model_path"] and row["precision"] != "fp4":
        row["precision"] = "fp4"
        corrected["gpt-oss is published with MXFP4 experts"] += 1
    return row


def _true_tp(row: _Row, tp: float) -> float:
    if tp >= 16:  # noqa: PLR2004  # no measured deployment has more than 8 GPUs
        return math.sqrt(tp)
    split = (tp, float(row["moe_tp_size"] or 1), float(row["moe_ep_size"] or 1))
    if row["backend_version"] == "gpt-oss-dev" and split == (4.0, 2.0, 2.0):
        return 2.0
    return tp


def _parse(row: _Row) -> EnginePoint:
    tp, dp = int(float(row["tp_size"] or 1)), int(float(row["attention_dp_size"] or 1))
    spread = float(row["moe_ep_size"] or 1) > 1 or dp > 1
    # Copies that slice their experts together hold what copies that spread them hold.
    ep = tp * dp if spread and "Llama" not in row["model_path"] else 1
    return EnginePoint(
        accelerator=row["system"].split("_")[0].upper(),
        engine=_ENGINES[row["backend"]],
        version=row["backend_version"],
        model=_MODELS[row["model_path"]],
        precision=row["precision"],
        parallelism=Parallelism(tp=tp, pp=int(float(row["pp_size"] or 1)), dp=dp, ep=ep),
        inputs=float(row["isl"]),
        outputs=float(row["osl"]),
        clients=float(row["concurrency"]),
        ttft=float(row["silicon_ttft_ms"]) / 1e3,
        tpot=float(row["silicon_tpot_ms"]) / 1e3,
    )


def _identity(point: EnginePoint) -> tuple[object, ...]:
    """What makes two rows the same measurement; the last digits of a float may differ."""
    place = (point.model, point.accelerator, point.engine)
    load_ = (point.inputs, point.outputs, point.clients)
    return (*place, *load_, round(1e3 * point.ttft, 3), round(1e3 * point.tpot, 4))


def _capped(points: Sequence[EnginePoint]) -> list[EnginePoint]:
    """gpt-oss rows whose TTFT says that clients queue, and whose TPOT is that of a lower number."""
    found = []
    for point in points:
        if point.model != "gpt-oss-120b" or point.ttft <= _CAPPED:
            continue
        rest = [
            other.tpot
            for other in points
            if replace(other, version="").series == replace(point, version="").series
            and other.sweep == point.sweep
            and other.clients < point.clients
        ]
        if rest and point.tpot < _SAME * max(rest):
            found.append(point)
    return found
