"""Sources of the numbers of the performance model: value, unit, source, date and kind.

The YAML catalogues state a source for each value or row. ``efficiency.py`` and ``accelerators.py``
decide which row counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from ..catalogue import read
from ..catalogue.accelerators import Accelerator
from ..catalogue.architectures import ModelArchitecture, model_row
from ..catalogue.efficiency import ANY, Efficiency, Overheads, Row, efficiency_rows, overhead_rows
from .corrections import Calibration

_UNITS = {"quantise_bytes": "B", "ramp_rows": "rows"}
_BARE = ("expert_imbalance", "expert_spread", "link", "interference")
_SECONDS = {field.name for field in fields(Overheads)} - set(_BARE)


class SourceKind(StrEnum):
    """How much a number can be trusted."""

    DATA_SHEET = "data sheet"  # stated by a vendor or a catalogue of hardware
    PUBLISHED = "published"  # the model's own config.json
    MEASURED = "measured"  # medians of measured kernels, or fitted to measured runs
    ASSUMED = "assumed"  # nobody measured it
    USER = "user"  # the ServingPlan says so


@dataclass(frozen=True)
class Fact:
    """One number a plan stands on. ``date`` is when the source was read, empty if unknown."""

    subject: str
    name: str
    value: str
    unit: str
    kind: SourceKind
    source: str
    date: str = ""


def accelerator_facts(accelerator: Accelerator) -> Iterator[Fact]:
    """Yield the data sheet of an accelerator."""
    document = read.read("catalogue/data/accelerators.yaml")
    for name, cell in document["accelerators"][accelerator.name].items():
        if isinstance(cell, dict):
            source = document["sources"][cell["source"]]
            value, unit = str(cell["value"]), cell["unit"]
            yield Fact(
                accelerator.name, name, value, unit, SourceKind.DATA_SHEET, *_title_and_date(source)
            )


def weight_types(model: ModelArchitecture) -> tuple[str, ...]:
    """Return the types of a model's weights; attention, router and output head are BF16."""
    precision = model.precision
    return tuple(dict.fromkeys((precision.compute, precision.expert_compute, "bf16")))


def efficiency_facts(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """Yield the efficiencies of engines on an accelerator for a type of weights."""
    operand = accelerator.operand(dtype)
    rows = efficiency_rows(accelerator, operand, engine, version)
    for field in fields(Efficiency):
        row = next(row for row in rows if field.name in row.values)
        subject = f"{accelerator.name} {operand}"
        yield _efficiency_fact(
            subject, field.name, row, _unit(field.name), row.half_width(accelerator)
        )


def overhead_facts(
    accelerator: Accelerator | None = None, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """Yield the fixed costs of an engine; unmeasured ones are marked in the data."""
    rows = overhead_rows(engine, version, accelerator)
    subject = f"engine on {accelerator.name}" if accelerator else "engine"
    for field in fields(Overheads):
        row = next(row for row in rows if field.name in row.values)
        yield _efficiency_fact(subject, field.name, row, _unit(field.name), row.uncertainty)


def calibration_facts(calibration: Calibration) -> Iterator[Fact]:
    """Yield a user's calibration: values, and corrections with their 90 % intervals.

    Values that the runs did not move are those of other engines.
    """
    source = (
        f"calibration of {calibration.engine} {calibration.version} on {calibration.accelerator}"
    )
    source = f"{source} from {calibration.source}" if calibration.source else source
    of = f"{calibration.accelerator} for {', '.join(calibration.models) or 'any model'}"
    for name, value in calibration.values.items():
        kind, moved = SourceKind.MEASURED, source
        if name in calibration.inherited:
            kind, moved = SourceKind.ASSUMED, f"{source}, as other engines have it"
        yield Fact(of, name, f"{value:g}", _unit(name.rpartition(".")[2]), kind, moved)
    for each in calibration.corrections:
        kind = SourceKind.MEASURED if each.rows else SourceKind.ASSUMED
        low, high = each.interval.low, each.interval.high
        subject = f"{each.phase} of {each.model} on {calibration.accelerator}"
        within = f"{each.factor:g} (90 %: {low:g} to {high:g} times that)"
        yield Fact(subject, "factor on times", within, "1", kind, source)


def _unit(name: str) -> str:
    """Return the unit of a value of an engine's fit."""
    return _UNITS.get(name, "s" if name in _SECONDS else "1")


def _efficiency_fact(subject: str, name: str, row: Row, unit: str, half_width: float) -> Fact:
    """Return a value of an efficiency row with its 90 % interval."""
    kind = SourceKind.ASSUMED if row.assumed else SourceKind.MEASURED
    title, date = _title_and_date(
        read.read("catalogue/data/efficiencies.yaml")["sources"][row.source]
    )
    value = f"{row.values[name]:g}"
    return Fact(
        subject, name, value, unit, kind, f"{title}; within a factor {1 + half_width:g}", date
    )


def architecture_fact(model: ModelArchitecture) -> Fact:
    """Return the source of the shape of a model."""
    row = model_row(model.name)
    value = f"{model.parameters / 1e9:.4g}"
    unit = "billion parameters"
    return Fact(
        model.name,
        "architecture",
        value,
        unit,
        SourceKind.PUBLISHED,
        *_title_and_date(row["source"]),
    )


def _title_and_date(source: dict[str, Any]) -> tuple[str, str]:
    return source["title"], str(source["date"])
