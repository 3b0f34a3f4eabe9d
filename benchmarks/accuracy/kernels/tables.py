"""Tables of kernel times as columns, with the rules by which rows are merged or left out.

Source: ai-dynamo/aiconfigurator @ 095f58a (Apache-2.0), parquet; ``latency`` in ms. Tables are laid
out as system / class / engine / version / name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.model import FloatArray

FOLDER = "measured/operators"

SYSTEMS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}
"""The catalogue's name of each system."""

MERGED = "repeats of one shape, merged into their median"


@dataclass(frozen=True)
class Table:
    """One file: its columns, and the accelerator and engine it is about."""

    accelerator: Accelerator
    engine: str
    name: str
    columns: dict[str, NDArray[Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.columns["latency"])

    def floats(self, name: str) -> FloatArray:
        """Return a column as numbers, shape (rows,)."""
        return self.columns[name].astype(np.float64)

    def texts(self, name: str, absent: str = "") -> NDArray[np.str_]:
        """Return a column as texts, shape (rows,); ``absent`` in every row if there is none."""
        if name not in self.columns:
            return np.full(len(self), absent)
        return self.columns[name].astype(np.str_)

    @property
    def seconds(self) -> FloatArray:
        """Return measured times [s]."""
        return self.floats("latency") * 1e-3

    def where(self, chosen: NDArray[np.bool_]) -> Table:
        """Return the same table with the chosen rows."""
        rows = {name: column[chosen] for name, column in self.columns.items()}
        return Table(self.accelerator, self.engine, self.name, rows)

    def constant(self, value: float) -> FloatArray:
        """Return one number for every row."""
        return np.full(len(self), value)


def tables(folder: Path, pattern: str) -> Iterator[Table]:
    """Yield the tables of the systems in ``folder`` whose path matches, in order of paths."""
    for system, name in SYSTEMS.items():
        for path in sorted((folder / system).glob(pattern)):
            yield _read(path, accelerator(name))


def _read(path: Path, card: Accelerator) -> Table:
    from pyarrow import parquet  # noqa: PLC0415  # an extra, only needed here

    table = parquet.read_table(path)
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    *_, engine, version, name = PurePath(path).parts
    return Table(card, f"{engine} {version}", name.removesuffix("_perf.parquet"), columns)


def merge_repeats(table: Table, keys: Sequence[str]) -> tuple[Table, int]:
    """Return one row per distinct key, with the median time; and how many rows that takes away.

    Keys that the table lacks are skipped. Engines' patch versions count as one.
    """
    present = [key for key in keys if key in table.columns]
    codes = [np.unique(table.columns[key], return_inverse=True)[1] for key in present]
    _, first, place = np.unique(
        np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
    )
    merged = table.where(np.isin(np.arange(len(table)), first))
    order = np.argsort(place.ravel(), kind="stable")
    parts = np.split(table.columns["latency"][order], np.cumsum(np.bincount(place.ravel()))[:-1])
    # ``where`` keeps the order of the file, np.unique that of the keys: sort medians by first row.
    medians = np.array([np.median(part) for part in parts])[np.argsort(first)]
    columns = merged.columns | {"latency": medians}
    return Table(table.accelerator, table.engine, table.name, columns), len(table) - len(merged)


def variants(*texts: NDArray[np.str_]) -> Iterator[tuple[tuple[str, ...], NDArray[np.bool_]]]:
    """Yield every combination of texts that occurs, with its rows."""
    for combinations in sorted(set(zip(*(column.tolist() for column in texts), strict=True))):
        rows = np.ones(len(texts[0]), dtype=np.bool_)
        for column, value in zip(texts, combinations, strict=True):
            rows &= column == value
        yield combinations, rows


def named(*columns: FloatArray) -> NDArray[np.str_]:
    """Return a group's name per row from its numbers: ``4096x1024``."""
    texts = [column.astype(np.int64).astype(np.str_) for column in columns]
    name = texts[0]
    for text in texts[1:]:
        name = np.char.add(np.char.add(name, "x"), text)
    return name
