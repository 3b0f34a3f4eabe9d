"""Accelerators: figures of data sheets, as rows of ``data/accelerators.yaml``.

Only facts of the hardware are here. The share of a peak that an engine reaches is an efficiency
(``efficiency.py``), the cost of a link is communication (``roofline/communication.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import UnknownName
from . import read

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

    ``bf16``, ``fp8``, ``fp4``: matrix peaks [FLOP/s]; None if the hardware has no such unit.
    ``memory`` [B], ``bandwidth`` of that memory [B/s]. ``scale_up``: NVLink-class link to the
    other GPUs of its domain of ``domain`` GPUs [B/s]; None if they talk over ``pcie`` [B/s].
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
        """Return the type in which ``dtype`` weights are multiplied: BF16 without such a unit.

        Engines then unpack the weights on the fly (weight-only quantisation).

        Raises:
            UnknownName: the type is not ``bf16``, ``fp8`` or ``fp4``.
        """
        if dtype not in ("bf16", "fp8", "fp4"):
            raise UnknownName(f"unknown data type {dtype!r}; known: bf16, fp8, fp4")
        return dtype if getattr(self, dtype) else "bf16"

    def peak(self, dtype: str) -> float:
        """Return matrix peak for weights of type ``dtype`` [FLOP/s], after ``operand``."""
        rate: float = getattr(self, self.operand(dtype))
        return rate

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


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of that name or alias, letter case aside.

    Raises:
        UnknownName: lists the known names.
    """
    rows: dict[str, dict[str, Any]] = read.read("catalogue/data/accelerators.yaml")["accelerators"]
    names = {alias: name for name, row in rows.items() for alias in (name, *row.get("aliases", ()))}
    canonical = read.find("accelerator", names, name)
    return next(each for each in accelerators() if each.name == canonical)


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return every accelerator of the catalogue, by name."""
    rows: dict[str, dict[str, Any]] = read.read("catalogue/data/accelerators.yaml")["accelerators"]
    every = []
    for name, row in sorted(rows.items()):
        facts = {
            key: cell["value"] * _UNITS[cell["unit"]]
            for key, cell in row.items()
            if isinstance(cell, dict)
        }
        domain = int(facts.pop("domain"))
        every.append(Accelerator(name=name, family=row["family"], domain=domain, **facts))
    return tuple(every)
