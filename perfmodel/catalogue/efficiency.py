"""Efficiencies and overheads: data keyed by accelerator, dtype, engine and engine version.

A missing field is looked up in less specific rows; ``data/efficiencies.yaml`` documents the order
and the source of every row. ``EngineFit`` is one engine on one accelerator with all values
explicit: from the catalogue (``engine_fit``) or from a fit (``EngineFit.replaced``). ``Roofline``
uses either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from ..errors import UnknownName
from . import read
from .accelerators import Accelerator

ANY = "*"

OPERANDS = ("bf16", "fp8", "fp4")
"""Types that products are computed in."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peaks that kernels reach; fields as in ``data/efficiencies.yaml``."""

    mfu: float
    mbu: float
    expert_mfu: float
    expert_mbu: float
    prefill_attention_mfu: float
    decode_attention_mfu: float
    latent_prefill_mfu: float
    latent_mfu: float
    kv_mbu: float
    quantise_bytes: float
    ramp_rows: float
    start: float


@dataclass(frozen=True)
class Overheads:
    """Time outside the operators [s] and what an engine adds to communication and experts.

    Fields as in ``data/efficiencies.yaml``.
    """

    step: float
    sequence: float
    exposed: float
    request: float
    decode_layer: float
    dispatch: float
    expert_layer: float
    expert_pair: float
    expert_imbalance: float
    expert_spread: float
    all_reduce_wait: float
    all_to_all_wait: float
    link: float
    interference: float


CLASSES = {
    "gemm": {
        "mfu": "mfu",
        "mbu": "mbu",
        "quantise_bytes": "quantise_bytes",
        "ramp_rows": "ramp_rows",
        "start": "start",
    },
    "experts": {"mfu": "expert_mfu", "mbu": "expert_mbu"},
    "prefill_attention": {"mfu": "prefill_attention_mfu"},
    "latent_prefill": {"mfu": "latent_prefill_mfu"},
    "decode_attention": {"mfu": "decode_attention_mfu", "mbu": "kv_mbu"},
    "latent_decode": {"mfu": "latent_mfu"},
}
"""Classes of operators in the data, and the field of ``Efficiency`` that each value is."""

ASSUMED = "assumed"
"""Source of a row that nobody measured."""

INHERITED = 0.3
"""Least half-width of what an accelerator takes from its family or from any, or is assumed."""


@dataclass(frozen=True, eq=False)
class Row:
    """One row of the catalogue: whom it speaks of, and the fields that it states.

    ``uncertainty``: relative half-width of a 90 % interval, as a factor.
    """

    accelerator: str
    dtype: str
    engine: str
    version: str
    source: str
    uncertainty: float
    values: Mapping[str, float]

    @property
    def assumed(self) -> bool:
        """Return whether no measurement supports it."""
        return self.source == ASSUMED

    def half_width(self, accelerator: Accelerator) -> float:
        """Return uncertainty of its values for ``accelerator``: more if they are of another."""
        measured_here = self.accelerator == accelerator.name and not self.assumed
        return self.uncertainty if measured_here else max(self.uncertainty, INHERITED)


_EFFICIENCIES = tuple(field.name for field in fields(Efficiency))
_OVERHEADS = tuple(field.name for field in fields(Overheads))


@dataclass(frozen=True)
class EngineFit:
    """One engine on one accelerator: efficiencies by operand type, and overheads.

    Everything that a fit may vary is here, so ``Roofline(..., settings=EngineSettings(fit=...))``
    depends on no other efficiency than these.
    """

    bf16: Efficiency
    fp8: Efficiency
    fp4: Efficiency
    overheads: Overheads

    def efficiency(self, operand: str) -> Efficiency:
        """Return efficiencies of products in ``operand``, one of ``OPERANDS``."""
        efficiencies: Efficiency = getattr(self, operand)
        return efficiencies

    def replaced(self, values: Mapping[str, float]) -> EngineFit:
        """Return the same with some values changed.

        Args:
            values: By name. A field of ``Efficiency`` changes for every operand type (``mfu``),
                after a type and a dot for that type alone (``fp8.mfu``; it wins over the bare
                name); a field of ``Overheads`` by its name (``step``).

        Raises:
            UnknownName: lists the names that a fit has.
        """
        check_names(values)
        made = {}
        for operand in OPERANDS:
            bare = {name: values[name] for name in _EFFICIENCIES if name in values}
            specific = {
                name: values[f"{operand}.{name}"]
                for name in _EFFICIENCIES
                if f"{operand}.{name}" in values
            }
            made[operand] = replace(self.efficiency(operand), **bare | specific)
        spent = {name: values[name] for name in _OVERHEADS if name in values}
        return EngineFit(**made, overheads=replace(self.overheads, **spent))

    def values(self) -> dict[str, float]:
        """Return every value by its full name: ``replaced`` with them gives the same fit."""
        values = {
            f"{operand}.{name}": float(getattr(self.efficiency(operand), name))
            for operand in OPERANDS
            for name in _EFFICIENCIES
        }
        return values | {name: float(getattr(self.overheads, name)) for name in _OVERHEADS}


def check_names(values: Mapping[str, float]) -> None:
    """Raise ``UnknownName`` if a name is none of an ``EngineFit``'s."""
    names = {*_EFFICIENCIES, *_OVERHEADS, *(f"{o}.{n}" for o in OPERANDS for n in _EFFICIENCIES)}
    if unknown := sorted(set(values) - names):
        raise UnknownName(
            f"no such efficiency or overhead: {', '.join(unknown)}; known: "
            f"{', '.join((*_EFFICIENCIES, *_OVERHEADS))}, or fp8.mfu for one operand type"
        )


@cache
def engine_fit(accelerator: Accelerator, engine: str = ANY, version: str = ANY) -> EngineFit:
    """Return the catalogue's values for an engine on an accelerator, all explicit."""
    made = {operand: efficiency(accelerator, operand, engine, version) for operand in OPERANDS}
    return EngineFit(**made, overheads=overheads(engine, version, accelerator))


@cache
def efficiency(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> Efficiency:
    """Return the efficiencies of ``engine`` on ``accelerator`` for operands of type ``dtype``.

    Raises:
        UnknownName: no row speaks of the data type.
    """
    rows = _first(efficiency_rows(accelerator, dtype, engine, version))
    if not rows:
        types = ", ".join(sorted({row.dtype for row in _efficiencies()}))
        raise UnknownName(f"no efficiencies for data type {dtype!r}; known: {types}")
    return Efficiency(**{name: rows[name].values[name] for name in _EFFICIENCIES})


@cache
def overheads(
    engine: str = ANY, version: str = ANY, accelerator: Accelerator | None = None
) -> Overheads:
    """Return fixed costs of ``engine``, and what every engine is assumed to cost elsewhere."""
    rows = _first(overhead_rows(engine, version, accelerator))
    return Overheads(**{name: rows[name].values[name] for name in _OVERHEADS})


@cache
def uncertainties(
    accelerator: Accelerator, engine: str = ANY, version: str = ANY
) -> dict[str, float]:
    """Return relative half-widths of 90 % intervals on the values of ``engine_fit``, by full name.

    What was inherited or assumed counts with ``INHERITED`` at least.
    """
    widths = {
        f"{operand}.{name}": row.half_width(accelerator)
        for operand in OPERANDS
        for name, row in _first(efficiency_rows(accelerator, operand, engine, version)).items()
    }
    spent = _first(overhead_rows(engine, version, accelerator))
    return widths | {name: row.half_width(accelerator) for name, row in spent.items()}


def form_uncertainty() -> float:
    """Return the half-width [1] of the formulas' own error."""
    return float(read.read("catalogue/data/efficiencies.yaml")["form"]["uncertainty"])


def efficiency_rows(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> list[Row]:
    """Return the rows of the catalogue that speak of a key, the one that decides first."""
    rows = [row for row in _efficiencies() if row.dtype == dtype]
    return _ordered(rows, engine, version, accelerator)


def overhead_rows(
    engine: str = ANY, version: str = ANY, accelerator: Accelerator | None = None
) -> list[Row]:
    """Return the rows that speak of an engine, the one that decides first."""
    return _ordered(_overheads(), engine, version, accelerator)


def _ordered(
    rows: Iterable[Row], engine: str, version: str, accelerator: Accelerator | None
) -> list[Row]:
    places = (*accelerator.efficiency_names, ANY) if accelerator else (ANY,)
    engines = dict.fromkeys(((engine, version), (engine, ANY), (ANY, ANY)))
    keys = {(place, *who): at for at, (place, who) in enumerate(product(places, engines))}
    applying = [row for row in rows if (row.accelerator, row.engine, row.version) in keys]
    return sorted(applying, key=lambda row: keys[row.accelerator, row.engine, row.version])


def _first(rows: Iterable[Row]) -> dict[str, Row]:
    """Return for each field the first row that states it."""
    first: dict[str, Row] = {}
    for row in rows:
        first = dict.fromkeys(row.values, row) | first
    return first


@cache
def _efficiencies() -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = read.read("catalogue/data/efficiencies.yaml")["efficiencies"]
    parsed = []
    for row in rows:
        values = {
            field: float(row[operators][name])
            for operators, names in CLASSES.items()
            for name, field in names.items()
            if name in row.get(operators, ())
        }
        parsed.append(_parse(row, values))
    return tuple(parsed)


@cache
def _overheads() -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = read.read("catalogue/data/efficiencies.yaml")["overheads"]
    return tuple(
        _parse(row, {name: float(row[name]) for name in _OVERHEADS if name in row}) for row in rows
    )


def _parse(row: Mapping[str, Any], values: dict[str, float]) -> Row:
    return Row(
        accelerator=row.get("accelerator", ANY),
        dtype=row.get("dtype", ANY),
        engine=row.get("engine", ANY),
        version=str(row.get("version", ANY)),
        source=row["source"],
        uncertainty=float(row["uncertainty"]),
        values=values,
    )
