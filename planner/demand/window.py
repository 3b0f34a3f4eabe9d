"""A window of counts as JSON and back, exactly: from the main process to a planner process.

JSON has no infinity: a number that is not finite is the text ``inf``, ``-inf`` or ``nan``.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.islandtimes import IslandTimes, times_from
from archipelago.operator.scraped import Latency, Scraped
from archipelago.planner.livedemand.buckets import Buckets
from archipelago.planner.livedemand.faults import Fault, Reason
from archipelago.planner.livedemand.window import Flow, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Document: TypeAlias = dict[str, Any]
ISLANDS: Final = "islands"
"""Key of what each island of a model took, beside what all of them counted; may be absent."""


def window_document(models: Mapping[str, Scraped], seconds: float) -> Document:
    """The window of all models of a plan; ``seconds`` is how long it was meant to be [s]."""
    return {
        "seconds": seconds,
        "models": {name: to_document(models[name]) for name in sorted(models)},
    }


def window_models(document: Document) -> dict[str, Scraped]:
    """The models of a window's document, by name."""
    return {name: from_document(entry) for name, entry in document["models"].items()}


def window_islands(document: Document) -> dict[str, dict[str, IslandTimes]]:
    """What each island took, by model and value of the island's label."""
    return {name: times_from(entry.get(ISLANDS, {})) for name, entry in document["models"].items()}


def to_document(seen: Scraped) -> Document:
    """One model's window."""
    return {
        "flow": _flow(seen.window.flow),
        "inputs": [_buckets(one) for one in seen.window.inputs],
        "outputs": [_buckets(one) for one in seen.window.outputs],
        "faults": [
            {"reason": fault.reason.value, "where": fault.where, "detail": fault.detail}
            for fault in seen.window.faults
        ],
        "ttft": _latency(seen.ttft),
        "tpot": _latency(seen.tpot),
        "kvUse": _maybe(seen.kv_use),
    }


def from_document(document: Document) -> Scraped:
    """What ``to_document`` was given.

    Raises:
        KeyError, ValueError: it is not such a document.
    """
    window = Window(
        _read_flow(document["flow"]),
        tuple(_read_buckets(one) for one in document["inputs"]),
        tuple(_read_buckets(one) for one in document["outputs"]),
        tuple(Fault(Reason(f["reason"]), f["where"], f["detail"]) for f in document["faults"]),
    )
    return Scraped(
        window,
        _read_latency(document["ttft"]),
        _read_latency(document["tpot"]),
        _float_or_none(document["kvUse"]),
    )


def _flow(seen: Flow) -> Document:
    return {
        "seconds": _number(seen.seconds),
        "completed": _number(seen.completed),
        "insideChange": _number(seen.inside_change),
        "queueChange": _number(seen.queue_change),
        "queue": _number(seen.queue),
        "arrived": _maybe(seen.arrived),
    }


def _read_flow(document: Document) -> Flow:
    return Flow(
        float(document["seconds"]),
        float(document["completed"]),
        float(document["insideChange"]),
        float(document["queueChange"]),
        float(document["queue"]),
        _float_or_none(document["arrived"]),
    )


def _buckets(seen: Buckets) -> Document:
    return {
        "edges": _numbers(seen.edges),
        "counts": _numbers(seen.counts),
        "total": _maybe(seen.total),
    }


def _read_buckets(document: Document) -> Buckets:
    return Buckets(
        _floats(document["edges"]),
        _floats(document["counts"]),
        _float_or_none(document["total"]),
    )


def _latency(seen: Latency | None) -> Document | None:
    if seen is None:
        return None
    return {
        "bounds": _numbers(seen.bounds),
        "counts": _numbers(seen.counts),
        "total": _number(seen.total),
    }


def _read_latency(document: Document | None) -> Latency | None:
    if document is None:
        return None
    return Latency(
        _floats(document["bounds"]), _floats(document["counts"]), float(document["total"])
    )


def _number(value: float) -> float | str:
    return value if isfinite(value) else str(float(value))


def _maybe(value: float | None) -> float | str | None:
    return None if value is None else _number(value)


def _float_or_none(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _numbers(values: Iterable[float]) -> list[float | str]:
    return [_number(value) for value in values]


def _floats(values: Iterable[float | str]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
