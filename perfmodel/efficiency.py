"""Efficiencies and overheads: data keyed by accelerator, dtype, engine and version of the engine.

What a key does not state falls back field by field; ``data/efficiencies.yaml`` documents the
order and the source of every row. ``EngineFit`` is one engine on one accelerator with every value
explicit: the catalogue makes one (``engine_fit``), a fit to measurements makes another
(``EngineFit.replaced``), and ``Roofline`` consumes either.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.accelerators import Accelerator

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


@dataclass(frozen=True)
class Overheads:
    """Time outside the operators [s] and what an engine adds to communication and experts.

    Fields as in ``data/efficiencies.yaml``.
    """

    step: float
    sequence: float
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

    def reached(self, operand: str) -> Efficiency:
        """Efficiencies of products in ``operand``, one of ``OPERANDS``."""
        found: Efficiency = getattr(self, operand)
        return found

    def replaced(self, values: Mapping[str, float]) -> EngineFit:
        """The same with some values changed.

        Args:
            values: By name. A field of ``Efficiency`` changes for every operand type (``mfu``),
                after a type and a dot for that type alone (``fp8.mfu``; it wins over the bare
                name); a field of ``Overheads`` by its name (``step``).

        Raises:
            UnknownName: lists the names that a fit has.
        """
        check_names(values)
        made = {
            operand: replace(self.reached(operand), **_of_operand(values, operand))
            for operand in OPERANDS
        }
        spent = {name: values[name] for name in _OVERHEADS if name in values}
        return EngineFit(**made, overheads=replace(self.overheads, **spent))

    def values(self) -> dict[str, float]:
        """Every value by its full name: ``replaced`` with them gives the same fit."""
        found = {
            f"{operand}.{name}": float(getattr(self.reached(operand), name))
            for operand in OPERANDS
            for name in _EFFICIENCIES
        }
        return found | {name: float(getattr(self.overheads, name)) for name in _OVERHEADS}


def check_names(values: Mapping[str, float]) -> None:
    """Raise ``UnknownName`` where a name is none of an ``EngineFit``'s."""
    known = {*_EFFICIENCIES, *_OVERHEADS, *(f"{o}.{n}" for o in OPERANDS for n in _EFFICIENCIES)}
    if unknown := sorted(set(values) - known):
        raise UnknownName(
            f"no such efficiency or overhead: {', '.join(unknown)}; known: "
            f"{', '.join((*_EFFICIENCIES, *_OVERHEADS))}, or fp8.mfu for one operand type"
        )


def _of_operand(values: Mapping[str, float], operand: str) -> dict[str, float]:
    bare = {name: values[name] for name in _EFFICIENCIES if name in values}
    own = {
        name: values[f"{operand}.{name}"] for name in _EFFICIENCIES if f"{operand}.{name}" in values
    }
    return bare | own


@cache
def engine_fit(accelerator: Accelerator, engine: str = ANY, version: str = ANY) -> EngineFit:
    """What the catalogue says of an engine on an accelerator, every value explicit."""
    made = {operand: efficiency(accelerator, operand, engine, version) for operand in OPERANDS}
    return EngineFit(**made, overheads=overheads(engine, version))


@cache
def efficiency(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> Efficiency:
    """What ``engine`` reaches on ``accelerator`` with operands of type ``dtype``.

    Raises:
        UnknownName: no row speaks of the data type.
    """
    found: dict[str, float] = {}
    for row in efficiency_rows(accelerator, dtype, engine, version):
        found = row | found
    if not found:
        rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["efficiencies"]
        known = ", ".join(sorted({row["dtype"] for row in rows}))
        raise UnknownName(f"no efficiencies for data type {dtype!r}; known: {known}")
    return Efficiency(**{name: float(found[name]) for name in _EFFICIENCIES})


@cache
def overheads(engine: str = ANY, version: str = ANY) -> Overheads:
    """Fixed costs of ``engine``, and what every engine is assumed to cost elsewhere."""
    found: dict[str, Any] = {}
    for row in overhead_rows(engine, version):
        found = row | found
    return Overheads(**{name: float(found[name]) for name in _OVERHEADS})


def efficiency_rows(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> list[dict[str, Any]]:
    """Rows of the catalogue that speak of a key, the one that decides first."""
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["efficiencies"]
    return [
        row
        for place in (accelerator.name, accelerator.family, ANY)
        for who in _engines(engine, version)
        for row in rows
        if (row["accelerator"], row["dtype"], _engine_of(row)) == (place, dtype, who)
    ]


def overhead_rows(engine: str = ANY, version: str = ANY) -> list[dict[str, Any]]:
    """Rows that speak of an engine, the one that decides first."""
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["overheads"]
    return [row for who in _engines(engine, version) for row in rows if _engine_of(row) == who]


def _engines(engine: str, version: str) -> tuple[tuple[str, str], ...]:
    """Keys to look under: the version, any version of the engine, any engine."""
    return tuple(dict.fromkeys(((engine, version), (engine, ANY), (ANY, ANY))))


def _engine_of(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["engine"], str(row.get("version", ANY))
