"""Which accelerator of the catalogue a node's labels name; a name that is not known stays unknown.

The names are data (``data/products.yaml``) with where they come from. A guess between 40 and 80 GB,
or between NVLink and PCIe, would be a plan that does not fit.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINE: Final = "node.kubernetes.io/instance-type"
"""Every node of a cloud has it, with GPUs and without: it alone says nothing of GPUs."""


def is_labelled(labels: Mapping[str, Any]) -> bool:
    """Whether any label speaks of GPUs at all."""
    return any(label in labels for label in _products()["labels"])


def accelerator_of(labels: Mapping[str, Any]) -> tuple[str, str]:
    """The catalogue's name, empty where unknown, and what the node says.

    Labels of products are asked first; only a node that has none of them is known by its machine.
    """
    said = ""
    for label in _products()["labels"]:
        if label in labels:
            said = said or f"{label}={labels[label]}"
            name = folded(str(labels[label]))
            if found := _by_name().get(name) or _by_size(name, labels):
                return found, said
    if said or MACHINE not in labels:
        return "", said
    machine = str(labels[MACHINE])
    found = _by_machine().get(machine.casefold(), "")
    return found, f"{MACHINE}={machine}" if found else ""


def count(quantity: object) -> int:
    """Extended resources are whole numbers, written as text; what is none counts as 0."""
    text = str(quantity)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= _DIGITS else 0


def folded(name: str) -> str:
    """Letter case and the kind of separator do not count."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


_DIGITS: Final = 9
"""Of a number of GPUs, at most."""


def _by_size(name: str, labels: Mapping[str, Any]) -> str:
    row = _products()["sized"].get(name, {"labels": (), "sizes": ()})
    said = {count(labels[label]) for label in row["labels"] if label in labels}
    return next((s["accelerator"] for s in row["sizes"] if said == {s["mebibytes"]}), "")


@cache
def _products() -> dict[str, Any]:
    text = files("archipelago.planner").joinpath("data", "products.yaml").read_text("utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


@cache
def _by_name() -> dict[str, str]:
    products: dict[str, list[str]] = _products()["products"]
    return {folded(said): name for name, names in products.items() for said in names}


@cache
def _by_machine() -> dict[str, str]:
    machines: dict[str, list[str]] = _products()["machines"]
    return {said.casefold(): name for name, names in machines.items() for said in names}
