"""Accelerators: figures of data sheets, as rows of ``data/accelerators.yaml``.

Only facts of the hardware are here. The share of a peak that an engine reaches is an efficiency
(``efficiency.py``), the cost of a link is communication (``roofline/communication.py``). Slices of
a card (MIG) follow from its row by a rule, and ``from_facts`` makes an accelerator of a user's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

from ..errors import PerfModelError, UnknownName
from . import read
from .naming import Named, model_of, resolve

UNITS = {
    "TFLOP/s": 1e12,
    "GB/s": 1e9,
    "GiB": float(1 << 30),
    "MiB": float(1 << 20),
    "GPU": 1.0,
}
"""Factor from the unit of a row to SI base units (FLOP/s, B/s, B, count)."""

PEAKS = ("bf16", "fp16", "fp8", "fp4")
"""Matrix peaks, from the widest type."""

_LINKS = ("scale_up", "nic", "pcie", "domain")
_TYPES = ("bf16", "fp8", "fp8_block", "fp4", "int8", "int4")
_HALF = ("bf16", "fp16")
_LEAST, _MOST = 0.88, 1.08
"""A driver's count of memory, as share of the catalogue's: error correction takes 6 %, and clouds
and drivers count reserves or not."""
_HOST_DOMAIN = 16
"""GPUs of one host at most (trn1.32xlarge); a larger scale-up domain spans nodes (NVL72)."""
_FIGURE = re.compile(r"([0-9.]+) (\S+)(?: \((\S+)\))?")
_SLICE = re.compile(r"(.+)[-_ ]MIG[-_ ](\d+g\.\d+gb)(?:[.+]me)?", re.IGNORECASE)


WEIGHT_ONLY = "weight_only"
"""Class of products whose weights are unpacked on the fly and multiplied in 16 bits."""


def unit_of(operand: str) -> str:
    """Return the matrix unit of a class of products: ``fp8`` for FP8 with a scale per block too."""
    return "bf16" if operand == WEIGHT_ONLY else operand.removesuffix("_block")


@dataclass(frozen=True)
class Accelerator:
    """One GPU type. Rates are dense peaks per GPU; links per direction. None: no source states it.

    ``bf16``, ``fp16``, ``fp8``, ``fp4``: matrix peaks [FLOP/s]; None if the hardware has no such
    unit. ``fp16`` only of hardware without ``bf16``. ``memory`` [B], ``bandwidth`` of that memory
    [B/s]. ``scale_up``: NVLink-class link to the other GPUs of its domain of ``domain`` GPUs [B/s];
    None if they talk over ``pcie`` [B/s]. ``nic``: scale-out share per GPU [B/s].

    ``confidence`` in the figures, and ``uncertainty``, the relative half-width of a 90 % interval
    that it stands for. ``like``: the relative that it was cut or guessed from, or whose
    efficiencies it has; empty if none. ``stated``: the figures that its user gave.

    Raises:
        PerfModelError: neither ``bf16`` nor ``fp16`` is stated.
    """

    name: str
    family: str
    bf16: float | None
    memory: float
    bandwidth: float
    domain: int
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    scale_up: float | None = None
    nic: float | None = None
    pcie: float | None = None
    confidence: str = "high"
    uncertainty: float = 0.0
    like: str = ""
    stated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what has no 16-bit peak: every other type falls back to it."""
        if not (self.bf16 or self.fp16):
            raise PerfModelError(f"accelerator {self.name}: state bf16 or fp16, its 16-bit peak")

    def operand(self, dtype: str) -> str:
        """Return the class of products of ``dtype`` weights, a key of the efficiencies.

        ``bf16``, ``fp8``, ``fp8_block`` or ``fp4``; without such a unit, and for integers,
        ``weight_only``. ``bf16`` stands for 16 bits: hardware without BF16 multiplies in FP16.

        Raises:
            UnknownName: the type is not ``bf16``, ``fp8``, ``fp8_block``, ``fp4``, ``int8`` or
                ``int4``.
        """
        if dtype not in _TYPES:
            raise UnknownName(f"unknown data type {dtype!r}; known: {', '.join(_TYPES)}")
        has = dtype == "bf16" or getattr(self, unit_of(dtype), None)
        return dtype if has else WEIGHT_ONLY

    def peak(self, dtype: str) -> float:
        """Return matrix peak for weights of type ``dtype`` [FLOP/s], after ``operand``."""
        unit = unit_of(self.operand(dtype))
        rate: float = self.half if unit == "bf16" else getattr(self, unit)
        return rate

    @property
    def half(self) -> float:
        """Return the 16-bit matrix peak [FLOP/s]: BF16, else FP16."""
        return self.bf16 or self.fp16 or math.nan

    def becomes(self, dtype: str) -> str:
        """Return in one sentence what ``dtype`` weights are served as; empty if as they are.

        Raises:
            UnknownName: as ``operand``.
        """
        half = "bf16" if self.bf16 else "fp16"
        if dtype == "bf16" and not self.bf16:
            return f"bf16 is served as fp16: {self.name} has no BF16 units"
        if self.operand(dtype) == dtype or (dtype.startswith("int") and self.bf16):
            return ""
        stored = unit_of(dtype)
        lacking = "BF16" if dtype.startswith("int") else stored.upper()
        return (
            f"{stored} weights are unpacked and multiplied in {half}: {self.name} has no {lacking} "
            "units"
        )

    def unserved(self, dtype: str) -> str:
        """Return why no engine serves ``dtype`` weights on it, with the source; empty if one does.

        Source: ``unserved`` in ``data/accelerators.yaml``.
        """
        row = _document()["unserved"].get(self.family)
        if row is None or unit_of(dtype) not in row["types"]:
            return ""
        return (
            f"no engine serves {unit_of(dtype)} weights on {self.name} ({source(row['source'])[0]})"
        )

    def may_have(self, memory: float) -> bool:
        """Return whether a driver may count its memory as ``memory`` [B]."""
        return _LEAST <= memory / self.memory <= _MOST

    @property
    def efficiency_names(self) -> tuple[str, ...]:
        """Return whose efficiencies it has: its own, then its relative's, then its family's."""
        return tuple(dict.fromkeys(name for name in (self.name, self.like, self.family) if name))

    @property
    def local_bandwidth(self) -> float:
        """Return the link to the other GPUs of the domain [B/s]: scale-up, else PCIe."""
        return self.scale_up or self.pcie or self.scale_out_bandwidth

    @property
    def scale_out_bandwidth(self) -> float:
        """Return the link to GPUs outside the domain [B/s]; 25 Gb/s Ethernet if not published."""
        return self.nic or 25e9 / 8

    def local_gpus(self, gpus_per_node: int | None) -> int:
        """Return GPUs that an island reaches over the local link, given how its nodes are built.

        A rack-scale domain (NVL72) spans nodes; any other ends at the node.
        """
        if gpus_per_node is None or self.domain > _HOST_DOMAIN:
            return self.domain
        return min(gpus_per_node, self.domain)


@dataclass(frozen=True)
class Figure:
    """A figure of a row as the catalogue writes it, and the key of its source."""

    value: float
    unit: str
    source: str


@lru_cache(maxsize=4096)
def accelerator(name: str) -> Accelerator:
    """Return the accelerator of that name, as people and labels write it, or of a slice of one.

    Raises:
        UnknownName: no accelerator, or several; lists those that may be meant, or all.
    """
    if (cut := _SLICE.fullmatch(name.strip())) is not None:
        return _slice(accelerator(cut[1]), cut[2].lower())
    return _by_name()[resolve(_named(), name)]


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return every accelerator of the catalogue, by name. Slices of them are not listed."""
    every = []
    for name, row in sorted(_document()["accelerators"].items()):
        made: dict[str, Any] = {"bf16": None}
        made |= {key: each.value * UNITS[each.unit] for key, each in figures(name).items()}
        made |= {key: row[key] for key in ("family", "confidence", "like") if key in row}
        made |= {"domain": int(made["domain"]), "uncertainty": uncertainty(row["confidence"])}
        every.append(Accelerator(name=name, **made))
    return tuple(every)


@cache
def figures(name: str) -> Mapping[str, Figure]:
    """Return the figures of a row by field, each with unit and source.

    Raises:
        PerfModelError: a figure has no unit that is known, or its source is not explained.
    """
    row: dict[str, Any] = _document()["accelerators"][name]
    found = {}
    for key, text in {**_document()["defaults"], **row}.items():
        if key not in _FIELDS:
            continue
        written = _FIGURE.fullmatch(str(text))
        if written is None or written[2] not in UNITS:
            raise PerfModelError(f"{name}, {key}: {text!r} is not 'value unit (source)'")
        figure = Figure(float(written[1]), written[2], written[3] or row["source"])
        source(figure.source)
        found[key] = figure
    return found


def source(key: str) -> tuple[str, str]:
    """Return title and date of a source of the catalogue.

    Raises:
        PerfModelError: the catalogue does not explain it.
    """
    row = _document()["sources"].get(key)
    if row is None:
        raise PerfModelError(f"accelerators.yaml: no source is named {key!r}")
    return row["title"], str(row["date"])


def source_of(name: str) -> tuple[str, str]:
    """Return title and date of the source of a row: of what its figures do not say otherwise."""
    return source(_document()["accelerators"][name]["source"])


def uncertainty(confidence: str) -> float:
    """Return the relative half-width of a 90 % interval that a confidence stands for [1]."""
    return float(_document()["uncertainty"][confidence])


@cache
def profiles(name: str) -> Mapping[str, tuple[float, float]]:
    """Return the slices (MIG) of a card: profile -> share of compute and of memory [1].

    Source: NVIDIA/mig-parted, as ``mig`` in ``data/accelerators.yaml`` says.
    """
    found: dict[str, tuple[float, float]] = {}
    for rule in _document()["mig"]["rules"]:
        whole = rule["of"]
        for names, cards in rule["profiles"].items():
            if name in cards:
                parts = zip(names.split(), rule["compute"], rule["memory"], strict=True)
                found |= {key: (g / whole[0], m / whole[1]) for key, g, m in parts}
    return found


def sibling(name: str, memory: float) -> str:
    """Return the accelerator of the catalogue that differs from one in its memory alone.

    Args:
        name: In the catalogue.
        memory: Of the other one [B], as a driver counts it.

    Returns:
        Its name; empty if there is none, or several.
    """
    rows = _named()
    model, card = model_of(name), rows[name].card
    found = [
        each
        for each, row in rows.items()
        if row.card == card and model_of(each) == model and accelerator(each).may_have(memory)
    ]
    return found[0] if len(found) == 1 else ""


@lru_cache(maxsize=512)
def _slice(card: Accelerator, profile: str) -> Accelerator:
    """Return a slice: its share of compute, memory and bandwidth, and no link but PCIe."""
    shares = profiles(card.name)
    if profile not in shares:
        offered = f"has {', '.join(shares)}" if shares else "cannot be cut (MIG)"
        raise UnknownName(f"unknown slice {profile!r}: {card.name} {offered}")
    compute, memory = shares[profile]
    return replace(
        card,
        name=f"{card.name}-MIG-{profile}",
        **{key: getattr(card, key) and getattr(card, key) * compute for key in PEAKS},
        memory=card.memory * memory,
        bandwidth=card.bandwidth * memory,
        domain=1,
        scale_up=None,
        nic=None,
        like=card.name,
    )


def from_facts(
    name: str, facts: Mapping[str, float | int | str], like: str | None = None
) -> Accelerator:
    """Return an accelerator of a user's own, from figures by field name in SI units.

    What is absent comes from the relative ``like``; an absent peak keeps the ratio that it has to
    the relative's 16-bit peak. The interval is the wide one of a guess if the 16-bit peak or the
    memory bandwidth comes from the relative, else that of medium confidence if anything does.

    Args:
        name: Of the new accelerator.
        facts: ``bf16``, ``fp16``, ``fp8``, ``fp4`` [FLOP/s], ``memory`` [B], ``bandwidth``,
            ``scale_up``, ``nic``, ``pcie`` [B/s], ``domain`` [GPUs], ``family``.
        like: A relative of the catalogue.

    Raises:
        UnknownName: there is no such relative.
        PerfModelError: a field is not known, not positive, or needed and missing.
    """
    given: dict[str, Any] = {key: _checked(name, key, value) for key, value in facts.items()}
    stated = tuple(sorted(given))
    peaks = [key for key in _HALF if key in given]
    if like is None:
        lacking = [key for key in ("memory", "bandwidth") if key not in given]
        if not peaks:
            lacking.append("bf16")
        if lacking:
            near = nearest(facts)
            remedy = f", such as like: {near}" if near else ""
            raise PerfModelError(
                f"accelerator {name}: {', '.join(lacking)} is missing; state it, or name a "
                f"relative that it comes from{remedy}"
            )
        host = int(_FIGURE.fullmatch(_document()["defaults"]["domain"])[1])  # type: ignore[index]
        made = {"name": name, "family": "other", "bf16": None, "domain": host, **given}
        return Accelerator(**made, stated=stated)
    base = accelerator(like)
    guessed = {key: getattr(base, key) for key in (*_LINKS, "memory", "bandwidth", "family")}
    if peaks:
        ratio = given[peaks[0]] / base.half
        guessed["bf16"] = None
        guessed |= {key: peak * ratio for key in ("fp8", "fp4") if (peak := getattr(base, key))}
    else:
        guessed |= {key: getattr(base, key) for key in PEAKS}
    missing = {key for key, value in guessed.items() if value and key not in given}
    confidence = "medium" if missing - {"family"} else "high"
    if not peaks or "bandwidth" in missing:
        confidence = "like"
    made = {"name": name, **guessed, **given, "like": base.name, "stated": stated}
    return Accelerator(**made, confidence=confidence, uncertainty=uncertainty(confidence))


def nearest(facts: Mapping[str, float | int | str]) -> str:
    """Return the accelerator of the catalogue whose figures are nearest; empty without figures.

    The distance is the mean of squares of log ratios over the figures that both have, in SI units.
    """
    numbers = {key: float(value) for key, value in facts.items() if not isinstance(value, str)}
    wanted = {key: value for key, value in numbers.items() if key in _FIELDS and value > 0}
    if half := next((wanted.pop(key) for key in _HALF if key in wanted), None):
        wanted["half"] = half
    distances = []
    for each in accelerators():
        own = {key: getattr(each, key) for key in wanted}
        squares = [math.log(wanted[key] / value) ** 2 for key, value in own.items() if value]
        if wanted and len(squares) == len(wanted):
            distances.append((math.fsum(squares) / len(squares), each.name))
    return min(distances)[1] if distances else ""


def _checked(name: str, key: str, value: float | str) -> float | str:
    """Return the value of a field; refuse another name, another kind and what is not positive."""
    if key == "family":
        return str(value)
    if key not in _FIELDS:
        known = ", ".join((*_FIELDS, "family"))
        raise PerfModelError(f"accelerator {name}: {key} is no figure; known: {known}")
    if isinstance(value, (str, bool)) or not math.isfinite(value) or value <= 0:
        raise PerfModelError(f"accelerator {name}: {key} is {value!r}; it must be above 0")
    return int(value) if key == "domain" else float(value)


_FIELDS = tuple(
    field.name
    for field in fields(Accelerator)
    if field.name not in ("name", "family", "confidence", "uncertainty", "like", "stated")
)
"""Fields that are figures."""


def _document() -> dict[str, Any]:
    return read.read("catalogue/data/accelerators.yaml")


@cache
def _by_name() -> Mapping[str, Accelerator]:
    return {each.name: each for each in accelerators()}


@cache
def _named() -> Mapping[str, Named]:
    rows = _document()["accelerators"]
    return {
        each.name: Named(
            (each.name, *rows[each.name].get("aliases", ())), each.memory, each.scale_up is None
        )
        for each in accelerators()
    }
