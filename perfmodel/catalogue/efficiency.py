"""Efficiencies and overheads: data keyed by accelerator, dtype, engine and version of the engine.

What a key does not state falls back field by field; ``data/efficiencies.yaml`` documents the
order and the source of every row. ``EngineFit`` is one engine on one accelerator with every value
explicit: the catalogue makes one (``engine_fit``), a fit to measurements makes another
(``EngineFit.replaced``), and ``Roofline`` consumes either.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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


CLASSES = {
    "gemm": {
        "mfu": "mfu",
        "mbu": "mbu",
        "quantise_bytes": "quantise_bytes",
        "ramp_rows": "ramp_rows",
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
        """Whether nobody measured it."""
        return self.source == ASSUMED

    def half_width(self, accelerator: Accelerator) -> float:
        """Uncertainty of its values for ``accelerator``: more where they are not its own."""
        own = self.accelerator == accelerator.name and not self.assumed
        return self.uncertainty if own else max(self.uncertainty, INHERITED)


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
    return EngineFit(**made, overheads=overheads(engine, version, accelerator))


@cache
def efficiency(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> Efficiency:
    """What ``engine`` reaches on ``accelerator`` with operands of type ``dtype``.

    Raises:
        UnknownName: no row speaks of the data type.
    """
    found = _first(efficiency_rows(accelerator, dtype, engine, version))
    if not found:
        known = ", ".join(sorted({row.dtype for row in _efficiencies()}))
        raise UnknownName(f"no efficiencies for data type {dtype!r}; known: {known}")
    return Efficiency(**{name: found[name].values[name] for name in _EFFICIENCIES})


@cache
def overheads(
    engine: str = ANY, version: str = ANY, accelerator: Accelerator | None = None
) -> Overheads:
    """Fixed costs of ``engine``, and what every engine is assumed to cost elsewhere."""
    found = _first(overhead_rows(engine, version, accelerator))
    return Overheads(**{name: found[name].values[name] for name in _OVERHEADS})


@cache
def uncertainties(
    accelerator: Accelerator, engine: str = ANY, version: str = ANY
) -> dict[str, float]:
    """Relative half-widths of 90 % intervals on the values of ``engine_fit``, by full name.

    What was inherited or assumed counts with ``INHERITED`` at least.
    """
    found = {
        f"{operand}.{name}": row.half_width(accelerator)
        for operand in OPERANDS
        for name, row in _first(efficiency_rows(accelerator, operand, engine, version)).items()
    }
    spent = _first(overhead_rows(engine, version, accelerator))
    return found | {name: row.half_width(accelerator) for name, row in spent.items()}


def form_uncertainty() -> float:
    """Half-width of what the formulas leave out, whatever the efficiencies."""
    return float(catalogue.read("efficiencies.yaml")["form"]["uncertainty"])


def efficiency_rows(
    accelerator: Accelerator, dtype: str, engine: str = ANY, version: str = ANY
) -> list[Row]:
    """Rows of the catalogue that speak of a key, the one that decides first."""
    return _ordered(
        [row for row in _efficiencies() if row.dtype == dtype], engine, version, accelerator
    )


def overhead_rows(
    engine: str = ANY, version: str = ANY, accelerator: Accelerator | None = None
) -> list[Row]:
    """Rows that speak of an engine, the one that decides first."""
    return _ordered(_overheads(), engine, version, accelerator)


def _ordered(
    rows: Iterable[Row], engine: str, version: str, accelerator: Accelerator | None
) -> list[Row]:
    places = (accelerator.name, accelerator.family, ANY) if accelerator else (ANY,)
    engines = dict.fromkeys(((engine, version), (engine, ANY), (ANY, ANY)))
    keys = {(place, *who): at for at, (place, who) in enumerate(product(places, engines))}
    found = [(keys.get((r.accelerator, r.engine, r.version)), r) for r in rows]
    return [row for _, row in sorted(_known(found), key=lambda pair: pair[0])]


def _known(found: Iterable[tuple[int | None, Row]]) -> Iterator[tuple[int, Row]]:
    for at, row in found:
        if at is not None:
            yield at, row


def _first(rows: Iterable[Row]) -> dict[str, Row]:
    """For each field the first row that states it."""
    found: dict[str, Row] = {}
    for row in rows:
        found = dict.fromkeys(row.values, row) | found
    return found


@cache
def _efficiencies() -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["efficiencies"]
    return tuple(_parse(row, _of_classes(row)) for row in rows)


@cache
def _overheads() -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = catalogue.read("efficiencies.yaml")["overheads"]
    return tuple(
        _parse(row, {name: float(row[name]) for name in _OVERHEADS if name in row}) for row in rows
    )


def _of_classes(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        field: float(row[operators][name])
        for operators, names in CLASSES.items()
        for name, field in names.items()
        if name in row.get(operators, ())
    }


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
