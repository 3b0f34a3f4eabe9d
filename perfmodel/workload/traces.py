"""Request traces: input length, output length and arrival of every request.

The first line tells three forms apart: Azure's CSV (``TIMESTAMP,ContextTokens,GeneratedTokens``),
Mooncake's JSON lines (``timestamp`` [ms], ``input_length``, ``output_length``), and plain CSV with
a header that names its columns, or two to three bare columns: input, output, and arrival in
seconds.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from ..errors import TraceError
from ..model import FloatArray

_INPUT = ("contexttokens", "input_length", "input_tokens", "prompt_tokens", "input", "isl")
_OUTPUT = (
    "generatedtokens",
    "output_length",
    "output_tokens",
    "completion_tokens",
    "output",
    "osl",
)
_ARRIVAL = ("timestamp", "arrived_at", "arrival", "arrival_s", "time")

_MILLISECONDS = 1e-3
_DATE = re.compile(
    r"(19|20|21)\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|\+00:00)?", re.ASCII
)
"""An arrival that is no number. numpy would read "now" and "" as dates too, and count dates of
other centuries wrong without a word."""

_Row: TypeAlias = tuple[float, float, float | None]
"""Input [tokens], output [tokens], arrival [s]."""


class Trace(NamedTuple):
    """Requests in the order of the file; arrays of equal shape.

    Lengths in tokens. ``timestamps`` in seconds from the first arrival; None if the file has
    none.
    """

    inputs: FloatArray
    outputs: FloatArray
    timestamps: FloatArray | None


class _Columns(NamedTuple):
    """Where a row keeps what; ``arrival`` None if it keeps none."""

    input: int
    output: int
    arrival: int | None


def read_trace(path: str | Path) -> Trace:
    """Return the requests of a trace file.

    Raises:
        TraceError: names file, line and remedy.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as text: {error}") from error
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise TraceError(f"{path}: the file is empty; it needs one request per line")
    rows = list(_mooncake(path, lines) if first.lstrip().startswith("{") else _csv(path, lines))
    if not rows:
        raise TraceError(f"{path}: there is a header but no request below it")
    inputs, outputs, arrivals = zip(*rows, strict=True)
    times = None if None in arrivals else np.array(arrivals, dtype=np.float64)
    return Trace(
        np.array(inputs, dtype=np.float64),
        np.array(outputs, dtype=np.float64),
        None if times is None else times - times[0],
    )


def _mooncake(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict) or not {"input_length", "output_length"} <= record.keys():
            raise TraceError(
                f"{path}, line {number}: needs the fields input_length and output_length"
            )
        arrival = record.get("timestamp")
        yield (
            _tokens(path, number, "input_length", record["input_length"]),
            _tokens(path, number, "output_length", record["output_length"]),
            None
            if arrival is None
            else _MILLISECONDS * _number(path, number, "timestamp", arrival),
        )


def _csv(path: Path, lines: list[str]) -> Iterator[_Row]:
    reader = csv.reader(lines)
    columns: _Columns | None = None
    try:
        for fields in reader:
            cells, number = [field.strip() for field in fields], reader.line_num
            if not any(cells):
                continue
            if columns is None:
                columns = _columns(path, number, cells)
                if not _is_number(cells[columns.input]):
                    continue
            inputs, outputs, arrival = columns
            if max(inputs, outputs, arrival or 0) >= len(cells):
                raise TraceError(
                    f"{path}, line {number}: only {len(cells)} columns; complete the line"
                )
            yield (
                _tokens(path, number, "input", cells[inputs]),
                _tokens(path, number, "output", cells[outputs]),
                None if arrival is None else _arrival(path, number, cells[arrival]),
            )
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV: {error}") from error


def _columns(path: Path, number: int, cells: list[str]) -> _Columns:
    """Return the columns by the names of a header; without one input, output and maybe arrival."""
    names = [cell.lower() for cell in cells]
    inputs, outputs, arrival = (
        next((names.index(name) for name in synonyms if name in names), None)
        for synonyms in (_INPUT, _OUTPUT, _ARRIVAL)
    )
    if inputs is not None and outputs is not None:
        return _Columns(inputs, outputs, arrival)
    if len(cells) in (2, 3) and all(_is_number(cell) for cell in cells[:2]):
        return _Columns(0, 1, 2 if len(cells) == 3 else None)  # noqa: PLR2004
    raise TraceError(
        f"{path}, line {number}: no column for input and output lengths; name them in a header, "
        f"input as one of {', '.join(_INPUT)}, output as one of {', '.join(_OUTPUT)}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(path: Path, number: int, what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TraceError(f"{path}, line {number}: {what} is {value!r}; it must be a number")
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        parsed = float("nan")
    if not np.isfinite(parsed):
        raise TraceError(f"{path}, line {number}: {what} is {value!r}; it must be a number")
    return parsed


def _tokens(path: Path, number: int, what: str, value: object) -> float:
    count = _number(path, number, what, value)
    if count < 0 or count != int(count):
        raise TraceError(
            f"{path}, line {number}: {what} is {value!r}; a length is a whole number of tokens"
        )
    return count


def _arrival(path: Path, number: int, text: str) -> float:
    """Return seconds of a plain number, or of a date with up to nine decimals of a second."""
    if _is_number(text):
        return _number(path, number, "arrival", text)
    if _DATE.fullmatch(text):
        with suppress(ValueError):
            # Azure's stamps have 100 ns digits, which datetime cannot hold; its 2024 traces end in
            # a zone that is always UTC.
            moment = np.datetime64(text.removesuffix("+00:00").removesuffix("Z"), "ns")
            return float(moment.astype(np.int64)) * 1e-9
    raise TraceError(
        f"{path}, line {number}: arrival {text!r} is neither seconds nor a date such as "
        f"2023-11-16 18:17:03.9799600"
    )
