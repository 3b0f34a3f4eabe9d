"""A user's own measurements: CSV of engine points, or the result files of benchmark tools.

CSV: one closed-loop run per line, columns as in ``COLUMNS``. JSON or JSON lines: what vLLM's and
SGLang's serving benchmarks write (``mean_ttft_ms``, ``mean_tpot_ms``, ``max_concurrency``, token
totals); they do not know the GPUs, so that these come from the command line.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.errors import MeasurementError
from archipelago.perfmodel.measurements.engine_points import EnginePoint
from archipelago.perfmodel.measurements.models import measured_model
from archipelago.perfmodel.measurements.rules import read_csv
from archipelago.perfmodel.parallelism import Parallelism

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COLUMNS = {
    "accelerator": "GPU type of the catalogue",
    "engine": "vllm, sglang, tensorrt-llm, ...",
    "version": "of the engine; may be empty",
    "model": "name in the catalogue",
    "precision": "bf16, fp8 or fp4",
    "tp": "GPUs that a layer is sliced over",
    "pp": "pipeline stages; 1 without",
    "dp": "copies of the attention; 1 without",
    "ep": "GPUs that experts are spread over; 1 without",
    "input": "tokens in",
    "output": "tokens out",
    "clients": "requests at once, all the time",
    "ttft_ms": "mean time to first token; may be empty",
    "tpot_ms": "mean time per output token after the first",
}
"""Columns of the CSV and what they mean."""

_NEEDED = ("input", "output", "clients", "tpot_ms")


def read_points(path: Path, given: Mapping[str, str]) -> tuple[EnginePoint, ...]:
    """The runs of a file.

    Args:
        path: ``.csv``, else JSON or JSON lines.
        given: Values of columns that the file does not state, by the names of ``COLUMNS``.

    Raises:
        MeasurementError: names file, row and what is missing or not understood.
        UnknownName: no such accelerator, model or precision.
    """
    rows = read_csv(path, _NEEDED) if path.suffix == ".csv" else _benchmark_rows(path)
    if not rows:
        raise MeasurementError(f"{path}: no measurement in it; it needs a row per run")
    return tuple(
        _point(f"{path}, row {number}", dict(given) | {k: v for k, v in row.items() if v})
        for number, row in enumerate(rows, start=1)
    )


def _benchmark_rows(path: Path) -> list[dict[str, str]]:
    """Results of serving benchmarks, one document or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
        found = _documents(text)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MeasurementError(f"{path}: cannot be read as JSON: {error}") from error
    return [_benchmark_row(f"{path}, result {n}", each) for n, each in enumerate(found, start=1)]


def _documents(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return found if isinstance(found, list) else [found]


def _benchmark_row(place: str, result: object) -> dict[str, str]:
    if not isinstance(result, dict):
        raise MeasurementError(f"{place}: must be an object with the results of one run")
    completed = result.get("completed")
    clients = result.get("max_concurrency")
    if not completed or not clients or "mean_tpot_ms" not in result:
        raise MeasurementError(
            f"{place}: needs completed, max_concurrency and mean_tpot_ms, as vLLM's and SGLang's "
            f"serving benchmarks write them with --max-concurrency"
        )
    row = {
        "input": result.get("total_input_tokens", 0) / completed,
        "output": result.get("total_output_tokens", 0) / completed,
        "clients": clients,
        "ttft_ms": result.get("mean_ttft_ms", ""),
        "tpot_ms": result["mean_tpot_ms"],
    }
    return {name: str(value) for name, value in row.items()}


def _point(place: str, row: Mapping[str, str]) -> EnginePoint:
    for name in ("accelerator", "engine", "model"):
        if not row.get(name):
            raise MeasurementError(f"{place}: no {name}; state it in a column or as --{name}")
    precision = row.get("precision") or "bf16"
    degrees = {name: _degree(place, row, name) for name in ("tp", "pp", "dp", "ep")}
    return EnginePoint(
        accelerator=accelerator(row["accelerator"]).name,
        engine=row["engine"],
        version=row.get("version", ""),
        model=measured_model(row["model"], precision).name,
        precision=precision,
        parallelism=Parallelism(**degrees),
        inputs=_number(place, row, "input"),
        outputs=_number(place, row, "output"),
        clients=_number(place, row, "clients"),
        ttft=_number(place, row, "ttft_ms", math.nan) / 1e3,
        tpot=_number(place, row, "tpot_ms") / 1e3,
    )


def _degree(place: str, row: Mapping[str, str], name: str) -> int:
    value = _number(place, row, name, 1)
    if value != int(value):
        raise MeasurementError(f"{place}: {name} is {row[name]!r}; it must be a whole number")
    return int(value)


def _number(place: str, row: Mapping[str, str], name: str, default: float | None = None) -> float:
    """A positive number; ``default`` where the cell is empty."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise MeasurementError(
            f"{place}: {name} is {text!r}; it must be a positive number ({COLUMNS[name]})"
        )
    return value
