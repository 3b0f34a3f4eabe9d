"""``archipelago catalogue``: the names that a ServingPlan can use, with their main figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archipelago.perfmodel import accelerators as hardware
from archipelago.perfmodel import architecture as software
from archipelago.planner.commands.files import write_document
from archipelago.planner.terminal import console, grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture

TERA, GIGA, GIB = 1e12, 1e9, float(1 << 30)


def accelerators(form: str) -> int:
    """List accelerators; figures are per GPU, links per direction."""
    return _list("accelerators", [_accelerator(row) for row in hardware.accelerators()], form)


def models(form: str) -> int:
    """List the models of the catalogue in their published precision."""
    return _list("models", [_model(row) for row in software.architectures()], form)


def _accelerator(row: Accelerator) -> dict[str, Any]:
    return {
        "name": row.name,
        "bf16TFLOPS": _in(row.bf16, TERA),
        "fp8TFLOPS": _in(row.fp8, TERA),
        "fp4TFLOPS": _in(row.fp4, TERA),
        "memoryGiB": _in(row.memory, GIB),
        "memoryGBps": _in(row.bandwidth, GIGA),
        "scaleUpGBps": _in(row.scale_up, GIGA),
        "domainGPUs": row.domain,
        "nicGBps": _in(row.nic, GIGA),
    }


def _model(row: ModelArchitecture) -> dict[str, Any]:
    return {
        "name": row.name,
        "precision": row.precision.name,
        "layers": row.layers,
        "billionParameters": row.parameters / GIGA,
        "billionActive": row.active_parameters / GIGA,
        "kvBytesPerToken": row.kv_bytes_per_token,
        "longestTokens": row.max_length,
    }


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _list(kind: str, rows: list[dict[str, Any]], form: str) -> int:
    if form == "json":
        write_document({kind: rows}, form)
        return 0
    texts = [key for key, value in rows[0].items() if isinstance(value, str)]
    table = grid(*(key if key in texts else f">{key}" for key in rows[0]))
    for row in rows:
        table.add_row(*map(_figure, row.values()))
    console().print(table)
    return 0


def _figure(value: Any) -> str:  # noqa: ANN401  # a cell of any row
    write: Callable[[float], str] = "{:,.1f}".format
    if value is None:
        return "-"
    return write(value).removesuffix(".0") if isinstance(value, float) else str(value)
