"""Where each number of the performance model comes from: value, unit, source, date, and its kind.

The YAML catalogues state a source per value or per row; here they are read as facts that can be
shown. ``efficiency.py`` and ``accelerators.py`` decide which row counts, this module only asks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.efficiency import (
    ANY,
    Efficiency,
    Overheads,
    Row,
    efficiency_rows,
    overhead_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.calibration import Calibration


_UNITS = {"quantise_bytes": "B", "ramp_rows": "rows"}
_BARE = ("expert_imbalance", "expert_spread", "link", "interference")
_SECONDS = {field.name for field in fields(Overheads)} - set(_BARE)


class Kind(StrEnum):
    """How much a number can be trusted."""

    DATA_SHEET = "data sheet"  # stated by a vendor or a catalogue of hardware
    PUBLISHED = "published"  # the model's own config.json
    MEASURED = "measured"  # medians of measured kernels, or fitted to measured runs
    ASSUMED = "assumed"  # nobody measured it
    USER = "user"  # the ServingPlan says so


@dataclass(frozen=True)
class Fact:
    """One number a plan stands on. ``date`` is when the source was read, empty where unknown."""

    subject: str
    name: str
    value: str
    unit: str
    kind: Kind
    source: str
    date: str = ""


def accelerator_facts(accelerator: Accelerator) -> Iterator[Fact]:
    """The data sheet of an accelerator."""
    document = catalogue.read("accelerators.yaml")
    for name, cell in document["accelerators"][accelerator.name].items():
        if isinstance(cell, dict):
            source = document["sources"][cell["source"]]
            value, unit = str(cell["value"]), cell["unit"]
            yield Fact(
                accelerator.name, name, value, unit, Kind.DATA_SHEET, *_title_and_date(source)
            )


def weight_types(model: ModelArchitecture) -> tuple[str, ...]:
    """Types of a model's weights; attention, router and output head are in BF16 in every one."""
    precision = model.precision
    return tuple(dict.fromkeys((precision.compute, precision.expert_compute, "bf16")))


def efficiency_facts(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """What engines reach on an accelerator with weights of a type, field by field."""
    operand = accelerator.operand(dtype)
    rows = efficiency_rows(accelerator, operand, engine, version)
    for field in fields(Efficiency):
        row = next(row for row in rows if field.name in row.values)
        subject = f"{accelerator.name} {operand}"
        yield _stated(subject, field.name, row, _unit(field.name), row.half_width(accelerator))


def overhead_facts(
    accelerator: Accelerator | None = None, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """Fixed costs of an engine; those that nobody measured are marked in the data."""
    rows = overhead_rows(engine, version, accelerator)
    subject = f"engine on {accelerator.name}" if accelerator else "engine"
    for field in fields(Overheads):
        row = next(row for row in rows if field.name in row.values)
        yield _stated(subject, field.name, row, _unit(field.name), row.uncertainty)


def calibration_facts(one: Calibration) -> Iterator[Fact]:
    """What measurements of one's own say: values, and corrections with their 90 % intervals.

    Values that the runs did not move are those of other engines.
    """
    source = f"calibration of {one.engine} {one.version} on {one.accelerator}"
    source = f"{source} from {one.source}" if one.source else source
    of = f"{one.accelerator} for {', '.join(one.models) or 'any model'}"
    for name, value in one.values.items():
        kind, moved = Kind.MEASURED, source
        if name in one.inherited:
            kind, moved = Kind.ASSUMED, f"{source}, as other engines have it"
        yield Fact(of, name, f"{value:g}", _unit(name.rpartition(".")[2]), kind, moved)
    for each in one.corrections:
        kind = Kind.MEASURED if each.rows else Kind.ASSUMED
        low, high = each.interval.low, each.interval.high
        subject = f"{each.phase} of {each.model} on {one.accelerator}"
        within = f"{each.factor:g} (90 %: {low:g} to {high:g} times that)"
        yield Fact(subject, "factor on times", within, "1", kind, source)


def _unit(name: str) -> str:
    """Unit of a value of an engine's fit."""
    return _UNITS.get(name, "s" if name in _SECONDS else "1")


def _stated(subject: str, name: str, row: Row, unit: str, half_width: float) -> Fact:
    """A value of an efficiency row with its 90 % interval."""
    kind = Kind.ASSUMED if row.assumed else Kind.MEASURED
    title, date = _title_and_date(catalogue.read("efficiencies.yaml")["sources"][row.source])
    value = f"{row.values[name]:g}"
    return Fact(
        subject, name, value, unit, kind, f"{title}; within a factor {1 + half_width:g}", date
    )


def architecture_fact(model: ModelArchitecture) -> Fact:
    """Where the shape of a model is published."""
    row = catalogue.read("models.yaml")["models"][model.name]
    value = f"{model.parameters / 1e9:.4g}"
    unit = "billion parameters"
    return Fact(
        model.name, "architecture", value, unit, Kind.PUBLISHED, *_title_and_date(row["source"])
    )


def _title_and_date(source: dict[str, Any]) -> tuple[str, str]:
    return source["title"], str(source["date"])
