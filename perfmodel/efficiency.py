"""Efficiencies and overheads: data keyed by (accelerator, dtype, engine), never one constant.

What a key does not state falls back field by field; ``data/efficiencies.yaml`` documents the
order and the source of every row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.errors import UnknownName

if TYPE_CHECKING:
    from archipelago.perfmodel.accelerators import Accelerator

ANY = "*"


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peaks that kernels reach; fields as in ``data/efficiencies.yaml``."""

    mfu: float
    mbu: float
    expert_mfu: float
    expert_mbu: float
    prefill_attention_mfu: float
    decode_attention_mfu: float
    latent_mfu: float
    kv_mbu: float
    quantise_bytes: float


@dataclass(frozen=True)
class Overheads:
    """Time outside the operators [s] and the imbalance of experts; fields as in the data."""

    step: float
    sequence: float
    decode_layer: float
    dispatch: float
    expert_layer: float
    expert_imbalance: float


@cache
def efficiency(accelerator: Accelerator, dtype: str, engine: str = ANY) -> Efficiency:
    """What ``engine`` reaches on ``accelerator`` with operands of type ``dtype``.

    Raises:
        UnknownName: no row speaks of the data type.
    """
    found: dict[str, float] = {}
    for row in efficiency_rows(accelerator, dtype, engine):
        found = row | found
    if not found:
        rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["efficiencies"]
        known = ", ".join(sorted({row["dtype"] for row in rows}))
        raise UnknownName(f"no efficiencies for data type {dtype!r}; known: {known}")
    return Efficiency(**{field.name: float(found[field.name]) for field in fields(Efficiency)})


@cache
def overheads(engine: str = ANY) -> Overheads:
    """Fixed costs of ``engine``, and what every engine is assumed to cost elsewhere."""
    found: dict[str, Any] = {}
    for row in overhead_rows(engine):
        found = row | found
    return Overheads(**{field.name: float(found[field.name]) for field in fields(Overheads)})


def efficiency_rows(
    accelerator: Accelerator, dtype: str, engine: str = ANY
) -> list[dict[str, Any]]:
    """Rows of the catalogue that speak of a key, the one that decides first."""
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["efficiencies"]
    return [
        row
        for place in (accelerator.name, accelerator.family, ANY)
        for who in dict.fromkeys((engine, ANY))
        for row in rows
        if (row["accelerator"], row["dtype"], row["engine"]) == (place, dtype, who)
    ]


def overhead_rows(engine: str = ANY) -> list[dict[str, Any]]:
    """Rows that speak of an engine, the one that decides first."""
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["overheads"]
    return [row for who in dict.fromkeys((engine, ANY)) for row in rows if row["engine"] == who]
