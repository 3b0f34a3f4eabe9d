"""Shapes of the models that measurements speak of: the catalogue's, and ``benchmarked.yaml``'s."""

from __future__ import annotations

from functools import cache
from typing import Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.architecture import (
    Experts,
    GroupedAttention,
    ModelArchitecture,
    architecture,
)
from archipelago.perfmodel.errors import UnknownName
from archipelago.perfmodel.precision import named_precision


@cache
def measured_model(name: str, precision: str = "bf16") -> ModelArchitecture:
    """A model by its name in the catalogue, by its name here, or by its repository's.

    Raises:
        UnknownName: neither list has it; says the closest name.
    """
    try:
        architecture(name)
    except UnknownName:
        rows: dict[str, dict[str, Any]] = catalogue.read("benchmarked.yaml")["models"]
        by_repository = {row["repository"]: known for known, row in rows.items()}
        known = by_repository.get(name, name)
        return _build(known, catalogue.find("model", rows, known), precision)
    return architecture(name, precision)


def _build(name: str, row: dict[str, Any], precision: str) -> ModelArchitecture:
    attention = GroupedAttention(
        row["heads"], row["kv_heads"], row["head_dim"], bias=row.get("bias", False)
    )
    experts = None
    if "experts" in row:
        experts = Experts(row["experts"], row["experts_per_token"], row["intermediate"])
    return ModelArchitecture(
        name=name,
        layers=row["layers"],
        hidden=row["hidden"],
        vocabulary=row["vocabulary"],
        attention=attention,
        intermediate=row["intermediate"],
        max_length=row["max_length"],
        precision=named_precision(precision, experts=experts is not None),
        experts=experts,
        gated=row.get("gated", True),
        tied_embeddings=row.get("tied", False),
    )
