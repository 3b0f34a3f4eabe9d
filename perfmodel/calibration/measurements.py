"""Measured runs of engines: published points, a user's own files, and the rules that drop rows.

Published: ``measured/engine_points/engine_points.csv``, ai-dynamo/aiconfigurator @ 095f58a
(Apache-2.0), TTFT and TPOT of closed loops. Some columns do not contain what was run; the rules
below correct or drop these rows, and reports print each rule with its count.

A user's: CSV with one closed-loop run per line, columns as in ``COLUMNS``; or JSON or JSON lines of
vLLM's and SGLang's serving benchmarks (``mean_ttft_ms``, ``mean_tpot_ms``, ``max_concurrency``,
token totals), whose GPUs come from the command line. Its models and accelerators are found as the
caller says: the catalogue's without.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..catalogue.accelerators import Accelerator, accelerator
from ..catalogue.architectures import ModelArchitecture, architecture
from ..catalogue.precision import PRECISIONS
from ..errors import MeasurementError, PerfModelError
from ..roofline.parallelism import Parallelism

Row = TypeVar("Row")


@dataclass(frozen=True)
class Loaded(Generic[Row]):
    """Rows that can be used; how many rows each rule dropped, and how many it corrected."""

    rows: tuple[Row, ...]
    dropped: dict[str, int] = field(default_factory=dict)
    corrected: dict[str, int] = field(default_factory=dict)

    def only(self, keep: Callable[[Row], bool]) -> tuple[Row, ...]:
        """Return the rows to keep; the others do not count as *dropped*."""
        return tuple(row for row in self.rows if keep(row))


def clean(
    rows: Iterable[Row],
    rules: Mapping[str, Callable[[Row], bool]],
    dropped: Counter[str] | None = None,
) -> tuple[list[Row], Counter[str]]:
    """Return the rows that no rule drops; other rows count for the first rule that does."""
    counts = Counter(dropped or {})
    usable: list[Row] = []
    for row in rows:
        name = next((name for name, drops in rules.items() if drops(row)), None)
        if name is None:
            usable.append(row)
        else:
            counts[name] += 1
    return usable, counts


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Return the rows by key, in the order in which keys first occur."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def read_csv(path: Path, needs: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column name; blanks around names and values are cut off.

    Raises:
        MeasurementError: names the file, and the columns that it lacks.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = [line for line in csv.reader(file) if any(line)] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: cannot be read as CSV: {error}") from error
    names = [name.strip() for name in header]
    if missing := [name for name in needs if name not in names]:
        raise MeasurementError(f"{path}: no column {', '.join(missing)}; it has {names}")
    blank = [""] * len(names)
    return [dict(zip(names, map(str.strip, line + blank), strict=False)) for line in lines]


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

    ``inputs`` and ``outputs`` are as stated [tokens]; ``drawn``: mean of the lengths that were
    drawn over those. ``ttft`` (queueing included) and ``tpot`` (interference of prompts included)
    are means [s]. ``version`` is empty if none is stated, ``kv`` (``bf16`` or ``fp8``, the type of
    the cache) and ``precision`` (then the published one) likewise. ``card`` and ``shape``: what
    ``accelerator`` and ``model`` mean; the catalogue's without.
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
    drawn: float = 1.0
    kv: str = ""
    card: Accelerator | None = None
    shape: ModelArchitecture | None = None

    @property
    def series(self) -> tuple[str, str, str, str]:
        """Return the key of one set of efficiencies: accelerator, engine, model and precision."""
        return (self.accelerator, self.engine, self.model, self.precision)

    @property
    def sweep(self) -> str:
        """Return the name of a sweep over clients: the smallest group of a split."""
        return f"{self.parallelism} {self.inputs:.0f}/{self.outputs:.0f}"

    @property
    def deployment(self) -> str:
        """Return the name of model and parallelism: the larger group of a split."""
        return str(self.parallelism)


def load(root: Path) -> Loaded[EnginePoint]:
    """Return the points of aggregated engines below the folder of all data sets.

    Raises:
        MeasurementError: the file cannot be read or lacks a column.
    """
    usable, dropped = clean(read_csv(root / FILE, _NEEDS), _RULES)
    corrected: Counter[str] = Counter()
    points = [_parse(_correct(row, corrected)) for row in usable]
    # Repeats differ in the parallelism columns; the lower tp is the true one.
    points.sort(key=lambda point: (point.parallelism.tp, point.parallelism.dp))
    first = [repeats[0] for repeats in grouped(points, _identity)]
    dropped["repeat of the same measurement"] += len(points) - len(first)
    capped = set(_capped(first))
    dropped["server's cap: clients wait, the batch is not the clients"] += len(capped)
    uncapped = tuple(point for point in first if point not in capped)
    return Loaded(uncapped, dict(dropped), dict(corrected))


def _is_hybrid(row: _Row) -> bool:
    """Return whether experts are both sliced and spread, which is not modelled."""
    if row["backend_version"] == "gpt-oss-dev":
        return False  # there the columns mean something else, see _true_tp
    tp, ep = float(row["tp_size"] or 1), float(row["moe_ep_size"] or 1)
    return tp == 4 and ep == 2  # noqa: PLR2004


def _speculates(row: _Row) -> bool:
    """Return whether the server drafted tokens (multi-token prediction), three of them or one.

    Dates, image and parallelism are those of InferenceX's recipe ``dsr1-fp8-h200-trt-mtp``; a fit
    without speculation lands above the memory bandwidth.
    """
    return row["model_path"] == "deepseek-ai/DeepSeek-R1" and row["backend"] == "trtllm"


_RULES: Mapping[str, Callable[[_Row], bool]] = {
    "disaggregated: no worker counts, no speculative decoding": lambda row: row["mode"] != "agg",
    "no concurrency stated": lambda row: not row["concurrency"],
    "experts both sliced and spread": _is_hybrid,
    "servers that draft tokens, with an acceptance that is not stated": _speculates,
}

_DRAWN = 0.9
"""Lengths of InferenceX are drawn evenly between 0.8 and 1.0 of the nominal ones."""

_INFERENCEX = {
    *("meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-R1"),
}
"""Models whose runs are those of InferenceX: three pairs of lengths, and its recipes' dates."""


def _correct(row: _Row, corrected: Counter[str]) -> _Row:
    """Return the row with columns corrected that mean something else in it."""
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
        drawn=_DRAWN if row["model_path"] in _INFERENCEX else 1.0,
        kv=_cache(row),
    )


def _cache(row: _Row) -> str:
    """Return the type of the cache that InferenceX's recipes of dense quantised models state."""
    return "fp8" if "70B" in row["model_path"] and row["precision"] in ("fp8", "fp4") else ""


def _identity(point: EnginePoint) -> tuple[object, ...]:
    """Return the identity of a measurement; the last digits of a float may differ."""
    place = (point.model, point.accelerator, point.engine)
    load_ = (point.inputs, point.outputs, point.clients)
    return (*place, *load_, round(1e3 * point.ttft, 3), round(1e3 * point.tpot, 4))


def _capped(points: Sequence[EnginePoint]) -> list[EnginePoint]:
    """Return gpt-oss rows in which clients queue, so that the TPOT belongs to fewer clients."""
    capped = []
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
            capped.append(point)
    return capped


COLUMNS = {
    "accelerator": "GPU type, as pools name it",
    "engine": "vllm, sglang, tensorrt-llm, ...",
    "version": "of the engine; may be empty",
    "model": "name or identifier, as plans name its architecture",
    "precision": "bf16, fp8, fp4, int8 or int4; the published one without",
    "tp": "GPUs that a layer is sliced over",
    "pp": "pipeline stages; 1 without",
    "dp": "copies of the attention; 1 without",
    "ep": "GPUs that experts are spread over; 1 without",
    "input": "tokens in",
    "output": "tokens out",
    "clients": "requests at once, all the time",
    "kv": "type of the cache, bf16 or fp8; the engine's default without",
    "ttft_ms": "mean time to first token; may be empty",
    "tpot_ms": "mean time per output token after the first",
}
"""Columns of the CSV and what they mean."""

_NEEDED = ("input", "output", "clients", "tpot_ms")


def read_points(
    path: Path,
    defaults: Mapping[str, str],
    card: Callable[[str], Accelerator] = accelerator,
    shape: Callable[[str, str | None], ModelArchitecture] = architecture,
) -> tuple[EnginePoint, ...]:
    """Return the runs of a file.

    Args:
        path: ``.csv``, else JSON or JSON lines.
        defaults: Values of columns that the file does not state, by the names of ``COLUMNS``.
        card: Finds an accelerator by its name.
        shape: Finds a model by its name, in a precision or the published one.

    Raises:
        MeasurementError: names file, row and what is missing or not understood.
        UnknownName: no such accelerator or model; names file, row and column.
    """
    rows = read_csv(path, _NEEDED) if path.suffix == ".csv" else _benchmark_rows(path)
    if not rows:
        raise MeasurementError(f"{path}: no measurement in it; it needs a row per run")
    return tuple(
        _point(
            f"{path}, row {number}",
            dict(defaults) | {k: v for k, v in row.items() if v},
            card,
            shape,
        )
        for number, row in enumerate(rows, start=1)
    )


def _benchmark_rows(path: Path) -> list[dict[str, str]]:
    """Return results of serving benchmarks, one document or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
        try:
            document = json.loads(text)
        except ValueError:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MeasurementError(f"{path}: cannot be read as JSON: {error}") from error
    rows = []
    for number, result in enumerate(document if isinstance(document, list) else [document], 1):
        place = f"{path}, result {number}"
        if not isinstance(result, dict):
            raise MeasurementError(f"{place}: must be an object with the results of one run")
        completed = _amount(place, result, "completed")
        clients = result.get("max_concurrency")
        if not completed or not clients or "mean_tpot_ms" not in result:
            raise MeasurementError(
                f"{place}: needs completed, max_concurrency and mean_tpot_ms, as vLLM's and "
                f"SGLang's serving benchmarks write them with --max-concurrency"
            )
        row = {
            "input": _amount(place, result, "total_input_tokens") / completed,
            "output": _amount(place, result, "total_output_tokens") / completed,
            "clients": clients,
            "ttft_ms": result.get("mean_ttft_ms", ""),
            "tpot_ms": result["mean_tpot_ms"],
        }
        rows.append({name: str(value) for name, value in row.items()})
    return rows


def _amount(place: str, result: Mapping[str, Any], name: str) -> float:
    """Return a number of a result; 0 if it is absent."""
    value = result.get(name) or 0
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        shown = str(value)[:60]
        raise MeasurementError(f"{place}: {name} is {shown}; it must be a number of at least 0")
    return number


def _point(
    place: str,
    row: Mapping[str, str],
    card: Callable[[str], Accelerator],
    shape: Callable[[str, str | None], ModelArchitecture],
) -> EnginePoint:
    for name in ("accelerator", "engine", "model"):
        if not row.get(name):
            raise MeasurementError(f"{place}: no {name}; state it in a column or as --{name}")
    precision = row.get("precision", "")
    with _cell(place, "accelerator"):
        gpu = card(row["accelerator"])
    if precision not in ("", *PRECISIONS):
        raise MeasurementError(
            f"{place}: unknown precision {precision!r}; known: {', '.join(PRECISIONS)}"
        )
    with _cell(place, "model"):
        model = shape(row["model"], precision or None)
    degrees = {name: _number(place, row, name, 1) for name in ("tp", "pp", "dp", "ep")}
    for name, degree in degrees.items():
        if degree != int(degree):
            raise MeasurementError(f"{place}: {name} is {row[name]!r}; it must be a whole number")
    return EnginePoint(
        accelerator=gpu.name,
        engine=row["engine"],
        version=row.get("version", ""),
        model=model.name,
        precision=precision,
        parallelism=Parallelism(**{name: int(degree) for name, degree in degrees.items()}),
        inputs=_number(place, row, "input"),
        outputs=_number(place, row, "output"),
        clients=_number(place, row, "clients"),
        ttft=_number(place, row, "ttft_ms", math.nan) / 1e3,
        tpot=_number(place, row, "tpot_ms") / 1e3,
        kv=_kv(place, row),
        card=gpu,
        shape=model,
    )


@contextmanager
def _cell(place: str, column: str) -> Iterator[None]:
    """Name the cell in an error about what it names."""
    try:
        yield
    except PerfModelError as error:
        raise type(error)(f"{place}, {column}: {error}") from None


def _kv(place: str, row: Mapping[str, str]) -> str:
    kv = row.get("kv", "")
    if kv not in ("", "bf16", "fp8"):
        raise MeasurementError(f"{place}: kv is {kv!r}; it must be bf16, fp8 or empty")
    return kv


def _number(place: str, row: Mapping[str, str], name: str, default: float | None = None) -> float:
    """Return a positive number; ``default`` if the cell is empty."""
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
