"""Accelerators: what the data sheets say, as rows of ``data/accelerators.yaml``.

Only facts of the hardware live here. What an engine reaches of a peak is an efficiency
(``efficiency.py``), what a link costs is communication (``communication.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from archipelago.perfmodel import catalogue
from archipelago.perfmodel.errors import UnknownName

_UNITS = {
    "TFLOP/s": 1e12,
    "GB/s": 1e9,
    "GiB": float(1 << 30),
    "MiB": float(1 << 20),
    "GPU": 1.0,
}
"""Factor from the unit of a row to SI base units (FLOP/s, B/s, B, count)."""

_HOST_DOMAIN = 8
"""GPUs behind one baseboard or host; a larger scale-up domain spans nodes (NVL72)."""


@dataclass(frozen=True)
class Accelerator:
    """One GPU type. Rates are dense peaks per GPU; links per direction. None: no source states it.

    ``bf16``, ``fp8``, ``fp4``: matrix peaks [FLOP/s]; None where the hardware has no such unit.
    ``memory`` [B], ``bandwidth`` of that memory [B/s]. ``scale_up``: NVLink-class link to the
    other GPUs of its domain of ``domain`` GPUs [B/s]; None where they talk over ``pcie`` [B/s].
    ``nic``: scale-out share per GPU [B/s].
    """

    name: str
    family: str
    bf16: float
    memory: float
    bandwidth: float
    domain: int
    fp8: float | None = None
    fp4: float | None = None
    scale_up: float | None = None
    nic: float | None = None
    pcie: float | None = None

    def operand(self, dtype: str) -> str:
        """The type that ``dtype`` weights are multiplied in: itself, or BF16 without such a unit.

        Engines then unpack the weights on the fly (weight-only quantisation).

        Raises:
            UnknownName: the type is not ``bf16``, ``fp8`` or ``fp4``.
        """
        if dtype not in ("bf16", "fp8", "fp4"):
            raise UnknownName(f"unknown data type {dtype!r}; known: bf16, fp8, fp4")
        return dtype if getattr(self, dtype) else "bf16"

    def peak(self, dtype: str) -> float:
        """Matrix peak for weights of type ``dtype`` [FLOP/s], after ``operand``."""
        rate: float = getattr(self, self.operand(dtype))
        return rate

    @property
    def local_bandwidth(self) -> float:
        """Link to the other GPUs of the domain: scale-up where there is one, else PCIe [B/s]."""
        return self.scale_up or self.pcie or self.scale_out_bandwidth

    @property
    def scale_out_bandwidth(self) -> float:
        """Link to GPUs outside the domain [B/s]; 25 Gb/s Ethernet where no source states one."""
        return self.nic or 25e9 / 8

    def local_gpus(self, gpus_per_node: int | None) -> int:
        """GPUs that an island reaches over the local link, given how its nodes are built.

        A rack-scale domain (NVL72) spans nodes; any other ends at the node.
        """
        if gpus_per_node is None or self.domain > _HOST_DOMAIN:
            return self.domain
        return min(gpus_per_node, self.domain)


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name or alias, letter case aside.

    Raises:
        UnknownName: lists the known names.
    """
    return catalogue.find("accelerator", _by_name(), name)


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the catalogue, by name."""
    rows: dict[str, dict[str, Any]] = catalogue.read("accelerators.yaml")["accelerators"]
    return tuple(_parse(name, rows[name]) for name in sorted(rows))


@cache
def _by_name() -> dict[str, Accelerator]:
    rows: dict[str, dict[str, Any]] = catalogue.read("accelerators.yaml")["accelerators"]
    found = {row.name: row for row in accelerators()}
    return found | {alias: found[name] for name in rows for alias in rows[name].get("aliases", ())}


def _parse(name: str, row: dict[str, Any]) -> Accelerator:
    facts = {
        key: cell["value"] * _UNITS[cell["unit"]]
        for key, cell in row.items()
        if isinstance(cell, dict)
    }
    domain = int(facts.pop("domain"))
    return Accelerator(name=name, family=row["family"], domain=domain, **facts)
