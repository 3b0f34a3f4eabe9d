"""Efficiencies and overheads: data keyed by accelerator, dtype, engine and engine version.

A missing field is looked up in less specific rows; ``data/efficiencies.yaml`` documents the order
and the source of every row. ``EngineFit`` is one engine on one accelerator with all values
explicit: from the catalogue (``engine_fit``) or from a fit (``EngineFit.replaced``). ``Roofline``
uses either.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from packaging.version import InvalidVersion, Version

from ..errors import UnknownName
from . import read
from .accelerators import WEIGHT_ONLY, Accelerator, accelerator, unit_of

ANY = "*"

OPERANDS = ("bf16", "fp8", "fp8_block", "fp4", WEIGHT_ONLY)
"""Classes of products (``Accelerator.operand``)."""


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peaks that kernels reach; fields as in ``data/efficiencies.yaml``."""

    mfu: float
    mbu: float
    expert_mfu: float
    expert_mbu: float
    expert_layer: float
    expert_ranks: float
    expert_pair: float
    expert_pad: float
    expert_chain: float
    prefill_attention_mfu: float
    prefill_attention_mbu: float
    prefill_attention_start: float
    decode_attention_mfu: float
    decode_attention_start: float
    decode_attention_block: float
    latent_prefill_mfu: float
    latent_mfu: float
    kv_mbu: float
    quantise_bytes: float
    ramp_rows: float
    start: float
    chain: float


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
        "chain": "chain",
    },
    "experts": {
        "mfu": "expert_mfu",
        "mbu": "expert_mbu",
        "layer": "expert_layer",
        "ranks": "expert_ranks",
        "pair": "expert_pair",
        "pad": "expert_pad",
        "chain": "expert_chain",
    },
    "prefill_attention": {
        "mfu": "prefill_attention_mfu",
        "mbu": "prefill_attention_mbu",
        "start": "prefill_attention_start",
    },
    "latent_prefill": {"mfu": "latent_prefill_mfu"},
    "decode_attention": {
        "mfu": "decode_attention_mfu",
        "mbu": "kv_mbu",
        "start": "decode_attention_start",
        "block": "decode_attention_block",
    },
    "latent_decode": {"mfu": "latent_mfu"},
}
"""Classes of operators in the data, and the field of ``Efficiency`` that each value is."""

ASSUMED = "assumed"
"""Source of a row that nobody measured."""

KERNELS = "kernels"
"""Source of the rows of ``kernels.csv``."""

INHERITED = 0.3
"""Least half-width of what an accelerator takes from its family or from any, a version from another
one, or is assumed."""


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

    def half_width(self, accelerator: Accelerator, version: str = ANY) -> float:
        """Return uncertainty of its values for ``accelerator``: more if they are of another.

        The same for the values of another ``version`` of the engine.
        """
        measured_here = self.accelerator == accelerator.name and not self.assumed
        if measured_here and self.version in (ANY, version):
            return self.uncertainty
        return max(self.uncertainty, INHERITED)


_EFFICIENCIES = tuple(field.name for field in fields(Efficiency))
_OVERHEADS = tuple(field.name for field in fields(Overheads))

POSITIVE = frozenset(
    {"expert_imbalance", "expert_spread", "link"}
    | {name for name in _EFFICIENCIES if name.endswith(("mfu", "mbu"))}
)
"""Values that are above 0: shares of a peak, factors on a load and on a link [1]."""

COSTS = frozenset((*_EFFICIENCIES, *_OVERHEADS)) - POSITIVE
"""Values that an engine may lack, so that they may be 0."""


@dataclass(frozen=True)
class EngineFit:
    """One engine on one accelerator: efficiencies by operand type, and overheads.

    Everything that a fit may vary is here, so ``Roofline(..., settings=EngineSettings(fit=...))``
    depends on no other efficiency than these.
    """

    bf16: Efficiency
    fp8: Efficiency
    fp8_block: Efficiency
    fp4: Efficiency
    weight_only: Efficiency
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
                name; that of ``fp8`` speaks of ``fp8_block`` too, and ``bf16`` of
                ``weight_only``, where both are equal now); a field of ``Overheads`` by its name
                (``step``).

        Raises:
            UnknownName: lists the names that a fit has.
        """
        check_names(values)
        made = {}
        for operand in OPERANDS:
            bare = {name: values[name] for name in _EFFICIENCIES if name in values}
            now, general = self.efficiency(operand), unit_of(operand)
            specific = {}
            for name in _EFFICIENCIES:
                same = getattr(now, name) == getattr(self.efficiency(general), name)
                if same and f"{general}.{name}" in values:
                    specific[name] = values[f"{general}.{name}"]
                if f"{operand}.{name}" in values:
                    specific[name] = values[f"{operand}.{name}"]
            made[operand] = replace(now, **bare | specific)
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
    if dtype not in OPERANDS:
        raise UnknownName(f"no efficiencies for data type {dtype!r}; known: {', '.join(OPERANDS)}")
    rows = deciding(efficiency_rows(accelerator, dtype, engine, version))
    return Efficiency(**{name: rows[name].values[name] for name in _EFFICIENCIES})


@cache
def overheads(
    engine: str = ANY, version: str = ANY, accelerator: Accelerator | None = None
) -> Overheads:
    """Return fixed costs of ``engine``, and what every engine is assumed to cost elsewhere."""
    rows = deciding(overhead_rows(engine, version, accelerator))
    return Overheads(**{name: rows[name].values[name] for name in _OVERHEADS})


@cache
def uncertainties(
    accelerator: Accelerator, engine: str = ANY, version: str = ANY
) -> dict[str, float]:
    """Return relative half-widths of 90 % intervals on the values of ``engine_fit``, by full name.

    What was inherited or assumed counts with ``INHERITED`` at least.
    """
    widths = {
        f"{operand}.{name}": row.half_width(accelerator, version)
        for operand in OPERANDS
        for name, row in deciding(efficiency_rows(accelerator, operand, engine, version)).items()
    }
    spent = deciding(overhead_rows(engine, version, accelerator))
    return widths | {name: row.half_width(accelerator, version) for name, row in spent.items()}


def form_uncertainty() -> float:
    """Return the half-width [1] of the formulas' own error."""
    return float(read.read("catalogue/data/efficiencies.yaml")["form"]["uncertainty"])


def efficiency_rows(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> list[Row]:
    """Return the rows of the catalogue that speak of a key, the one that decides first.

    Those of a unit speak of each class of products on it; a kernel's speak of its own alone.
    """
    unit = unit_of(dtype)
    stated = _efficiencies()
    if version != ANY:  # a kernel is one version's
        stated += _kernels()
    rows = [
        row for row in stated if row.dtype == dtype or (row.dtype == unit and row.source != KERNELS)
    ]
    rows.sort(key=lambda row: row.dtype != dtype)
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
    versions = _nearest(version, {row.version for row in rows if row.engine == engine})
    engines = dict.fromkeys((*((engine, each) for each in versions), (engine, ANY), (ANY, ANY)))
    keys = {(place, *who): at for at, (place, who) in enumerate(product(places, engines))}
    applying = [row for row in rows if (row.accelerator, row.engine, row.version) in keys]
    return sorted(applying, key=lambda row: keys[row.accelerator, row.engine, row.version])


def _nearest(version: str, known: Iterable[str]) -> list[str]:
    """Return the known versions, the nearest one first; none for ``*``.

    Near in the first number of a release (PEP 440) that differs; of two as near the older one. Of
    what is no version number only the same.
    """
    if version == ANY:
        return []
    stated = _number(version)
    if stated is None:
        return [version]
    numbers = {each: number for each in known if (number := _number(each))}

    def apart(name: str) -> tuple[object, ...]:
        number = numbers[name]
        pairs = zip(_release(stated), _release(number), strict=True)
        return number != stated, *(abs(a - b) for a, b in pairs), number

    return sorted(numbers, key=apart)


def _release(number: Version) -> tuple[int, int, int]:
    return number.major, number.minor, number.micro


def _number(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def deciding(rows: Iterable[Row]) -> dict[str, Row]:
    """Return for each field the row that decides: the first that states it."""
    first: dict[str, Row] = {}
    for row in rows:
        first = dict.fromkeys(row.values, row) | first
    return first


@cache
def _efficiencies() -> tuple[Row, ...]:
    return tuple(map(_of_classes, read.read("catalogue/data/efficiencies.yaml")["efficiencies"]))


@cache
def _kernels() -> tuple[Row, ...]:
    return tuple(map(_of_classes, _kernel_rows()))


def _of_classes(row: Mapping[str, Any]) -> Row:
    return _parse(row, {key: row[key] for key in CLASSES if key in row})


def _kernel_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of ``kernels.csv``: one class of operators of one version of an engine.

    The first accelerator of a family speaks for its kin as well.
    """
    kin = set()
    for row in csv.DictReader(read.text("catalogue/data/kernels.csv").splitlines()):
        names = CLASSES[row["operators"]]
        key = {name: row[name] for name in ("dtype", "engine", "version")}
        stated = {
            **key,
            "accelerator": row["accelerator"],
            "source": KERNELS,
            "uncertainty": row["uncertainty"],
            row["operators"]: {name: row[name] for name in names if row[name]},
        }
        yield stated
        family = accelerator(row["accelerator"]).family
        if (family, row["operators"], *key.values()) not in kin:
            kin.add((family, row["operators"], *key.values()))
            yield stated | {"accelerator": family}


@cache
def _overheads() -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = read.read("catalogue/data/efficiencies.yaml")["overheads"]
    return tuple(
        _parse(row, {"": {name: row[name] for name in _OVERHEADS if name in row}}) for row in rows
    )


def _parse(row: Mapping[str, Any], stated: Mapping[str, Mapping[str, Any]]) -> Row:
    """Return a row with what is ``stated`` by class of operators; overheads have no class."""
    values = {
        CLASSES[operators][name] if operators else name: float(value)
        for operators, figures in stated.items()
        for name, value in figures.items()
    }
    return Row(
        accelerator=row.get("accelerator", ANY),
        dtype=row.get("dtype", ANY),
        engine=row.get("engine", ANY),
        version=str(row.get("version", ANY)),
        source=row["source"],
        uncertainty=float(row["uncertainty"]),
        values=values,
    )
