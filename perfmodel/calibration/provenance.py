"""Sources of the numbers of the performance model: value, unit, source, date and kind.

The YAML catalogues state a source for each value or row. ``efficiency.py`` and ``accelerators.py``
decide which row counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from ..catalogue import read
from ..catalogue.accelerators import UNITS, Accelerator, accelerators, figures, source, unit_of
from ..catalogue.architectures import ModelArchitecture, architecture, model_row
from ..catalogue.efficiency import (
    ANY,
    COSTS,
    POSITIVE,
    Efficiency,
    Overheads,
    Row,
    deciding,
    efficiency_rows,
    overhead_rows,
)
from ..errors import UnknownName
from .corrections import Calibration

_UNITS = (
    dict.fromkeys(COSTS, "s")
    | dict.fromkeys(POSITIVE, "1")
    | {"exposed": "1", "interference": "1", "quantise_bytes": "B"}
    | {"ramp_rows": "rows", "expert_pad": "rows"}
)
"""Units of the values of an engine's fit."""
_FIGURES = dict.fromkeys(("bf16", "fp16", "fp8", "fp4"), "TFLOP/s") | {
    "memory": "GiB",
    "bandwidth": "GB/s",
    "scale_up": "GB/s",
    "nic": "GB/s",
    "pcie": "GB/s",
    "domain": "GPU",
}
"""Figures of an accelerator, and the unit that they are shown in."""


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
    """Yield its data sheet: the catalogue's figures, shares of a card's, or its user's own.

    The source of a figure that is not sure says within which factor it lies.
    """
    subject, like = accelerator.name, accelerator.like
    if subject not in {each.name for each in accelerators()}:
        cut, share = subject.startswith(f"{like}-MIG-"), source("mig-parted")[0]
        for name, unit in _FIGURES.items():
            if value := getattr(accelerator, name):
                kind, said = SourceKind.ASSUMED, f"as {like} has it"
                if name in accelerator.stated or not like:
                    kind, said = SourceKind.USER, "ServingPlan"
                elif cut:
                    kind, said = (
                        SourceKind.DATA_SHEET,
                        f"share of {like}, {share}",
                    )
                yield Fact(subject, name, f"{value / UNITS[unit]:.6g}", unit, kind, said)
        return
    doubt = accelerator.uncertainty
    within = f"; {accelerator.confidence} confidence, within a factor {1 + doubt:g}"
    for name, figure in figures(subject).items():
        title, date = source(figure.source)
        text = f"{title}{within if doubt else ''}"
        kind = SourceKind.DATA_SHEET
        yield Fact(subject, name, f"{figure.value:g}", figure.unit, kind, text, date)


def precision_facts(accelerator: Accelerator, dtypes: Iterable[str]) -> Iterator[Fact]:
    """Yield what weights of a type are multiplied in, where the hardware has no such unit."""
    for dtype in dtypes:
        if sentence := accelerator.becomes(dtype):
            half = "bf16" if accelerator.bf16 else "fp16"
            kind = SourceKind.DATA_SHEET
            what = f"{unit_of(dtype)} weights"
            yield Fact(accelerator.name, what, half, "operands", kind, sentence)


def weight_types(model: ModelArchitecture) -> tuple[str, ...]:
    """Return the types of a model's weights; attention, router and output head are BF16."""
    precision = model.precision
    return tuple(dict.fromkeys((precision.compute, precision.expert_compute, "bf16")))


def efficiency_facts(
    accelerator: Accelerator, operand: str, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """Yield the efficiencies of engines on an accelerator for a class of products."""
    rows = deciding(efficiency_rows(accelerator, operand, engine, version))
    for field in fields(Efficiency):
        row, subject = rows[field.name], f"{accelerator.name} {operand}"
        yield _efficiency_fact(subject, field.name, row, row.half_width(accelerator, version))


def overhead_facts(
    accelerator: Accelerator | None = None, engine: str = ANY, version: str = ANY
) -> Iterator[Fact]:
    """Yield the fixed costs of an engine; unmeasured ones are marked in the data."""
    rows = deciding(overhead_rows(engine, version, accelerator))
    subject = f"engine on {accelerator.name}" if accelerator else "engine"
    for field in fields(Overheads):
        row = rows[field.name]
        yield _efficiency_fact(subject, field.name, row, row.uncertainty)


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
        yield Fact(of, name, f"{value:g}", _UNITS[name.rpartition(".")[2]], kind, moved)
    for each in calibration.corrections:
        kind = SourceKind.MEASURED if each.rows else SourceKind.ASSUMED
        low, high = each.interval.low, each.interval.high
        subject = f"{each.phase} of {each.model} on {calibration.accelerator}"
        within = f"{each.factor:g} (90 %: {low:g} to {high:g} times that)"
        yield Fact(subject, "factor on times", within, "1", kind, source)


def _efficiency_fact(subject: str, name: str, row: Row, half_width: float) -> Fact:
    """Return a value of an efficiency row with its 90 % interval."""
    kind = SourceKind.ASSUMED if row.assumed else SourceKind.MEASURED
    title, date = _title_and_date(
        read.read("catalogue/data/efficiencies.yaml")["sources"][row.source]
    )
    value = f"{row.values[name]:g}"
    return Fact(
        subject,
        name,
        value,
        _UNITS[name],
        kind,
        f"{title}; within a factor {1 + half_width:g}",
        date,
    )


def architecture_fact(model: ModelArchitecture) -> Fact:
    """Return the source of the shape of a model: the catalogue, or a config.json of the user's."""
    value = f"{model.parameters / 1e9:.4g}"
    what = (model.name, "architecture", value, "billion parameters")
    try:
        published = architecture(model.name)
    except UnknownName:
        published = None
    if published is None or replace(published, precision=model.precision) != model:
        return Fact(*what, SourceKind.USER, "config.json in the ServingPlan")
    row = model_row(published.name)
    title, date = _title_and_date(row["source"])
    if model.uncertainty:
        title += f"; {row['confidence']} confidence, within a factor {1 + model.uncertainty:g}"
    return Fact(*what, SourceKind.PUBLISHED, title, date)


def _title_and_date(source: dict[str, Any]) -> tuple[str, str]:
    return source["title"], str(source["date"])
