"""Models: rows of ``data/models.yaml``, and any model from its published ``config.json``.

A row holds facts of a Hugging Face ``config.json``; ``huggingface`` reads it as it reads a user's.
Only the rows that are asked for are built.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from functools import cache
from typing import Any

from ..errors import UnknownName
from . import read
from .huggingface.config import from_config
from .layers import (
    CompressedAttention,
    Dense,
    Experts,
    GroupedAttention,
    LatentAttention,
    Layer,
    StateMixer,
)
from .precision import FP8_BLOCK
from .shape import ModelArchitecture

__all__ = [
    "CompressedAttention",
    "Dense",
    "Experts",
    "GroupedAttention",
    "LatentAttention",
    "Layer",
    "ModelArchitecture",
    "StateMixer",
    "architecture",
    "architectures",
    "from_config",
    "model_row",
]

_CLOSE = 0.75
"""Similarity from which a name is suggested (difflib's ratio)."""


def architecture(name: str, precision: str | None = None) -> ModelArchitecture:
    """Return the catalogue's model of that name, in ``precision`` or the one it is published in.

    ``name``: the catalogue's, an alias, or the identifier on Hugging Face (``org/name``), letter
    case aside. Without ``precision`` the identifier of a quantised checkpoint brings its own.

    Raises:
        UnknownName: no such model; names those that are close. Or no such precision.
    """
    if (found := _names().get(name.casefold())) is None:
        folded = name.casefold().rpartition("/")[2]
        shown = {key.rpartition("/")[2]: canonical for key, (canonical, _) in _names().items()}
        close = difflib.get_close_matches(folded, shown, n=3, cutoff=_CLOSE)
        near = ", ".join(dict.fromkeys(shown[key] for key in close))
        hint = f"did you mean {near}? " if near else ""
        raise UnknownName(
            f"unknown model {name!r}; {hint}`archipelago catalogue models` lists the "
            f"{len(_rows())} known ones, and any other can be given by its config.json"
        )
    canonical, published = found
    if precision == "fp8" and _publishes_blocks(_rows()[canonical]):
        precision = FP8_BLOCK.compute
    return _built(canonical, precision or published)


def _publishes_blocks(row: dict[str, Any]) -> bool:
    """Return whether the model's FP8 weights have a scale per block."""
    return FP8_BLOCK.compute in (row["precision"], *row.get("copies", {}).values())


def model_row(name: str) -> dict[str, Any]:
    """Return the catalogue's row of a model by its canonical name: source, confidence, config."""
    return _rows()[name]


@cache
def architectures() -> tuple[ModelArchitecture, ...]:
    """Return every model of the catalogue in its published precision, by name."""
    return tuple(architecture(name) for name in sorted(_rows(), key=str.casefold))


@cache
def _built(canonical: str, precision: str | None) -> ModelArchitecture:
    row = _rows()[canonical]
    built = from_config(row["config"], canonical, precision or row["precision"])
    doubt = read.read("catalogue/data/models.yaml")["uncertainty"][row["confidence"]]
    return replace(built, uncertainty=float(doubt)) if doubt else built


@cache
def _names() -> dict[str, tuple[str, str | None]]:
    """Return canonical name and precision of every name that a model goes by, in small letters.

    An alias without a precision of its own is None: that of the row.
    """
    names: dict[str, tuple[str, str | None]] = {}
    for canonical, row in _rows().items():
        own = dict.fromkeys((canonical, row["id"], *row.get("aliases", ())))
        for name, precision in {**own, **row.get("copies", {})}.items():
            names[name.casefold()] = (canonical, precision)
    # Without its organisation a name is known too, unless it is another row's.
    for name, found in tuple(names.items()):
        names.setdefault(name.rpartition("/")[2], found)
    return names


def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = read.read("catalogue/data/models.yaml")["models"]
    return rows
