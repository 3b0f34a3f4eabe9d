"""Names of the metrics of engines and routers, read from ``signals.yaml``.

A new engine is a new entry in the file, a renamed metric one more name in a list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml
from pydantic import TypeAdapter

from archipelago.planner.problem import Phase


class Signal(StrEnum):
    """A quantity that is read from a source.

    ``DISPATCHED`` requests left a router for an island, without those that wait in the router.
    ``QUEUED`` requests are included in the running ones: they show growing queues only.
    """

    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    RUNNING = "running"
    WAITING = "waiting"
    QUEUED = "queued"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    TTFT = "ttft"
    TPOT = "tpot"
    KV_USE = "kv_use"
    PREFILL = "prefill"


NEEDED = frozenset({Signal.RUNNING, Signal.INPUTS, Signal.OUTPUTS})
"""Required to estimate demand, with one of dispatched and completed."""


class Scope(StrEnum):
    """What one series describes."""

    ISLAND = "island"
    ROUTER = "router"


@dataclass(frozen=True)
class Term:
    """One addend: its names, newest first, and the phases whose islands export it."""

    names: tuple[str, ...]
    phases: tuple[Phase, ...] = tuple(Phase)


@dataclass(frozen=True)
class Adapter:
    """How to read one engine or router.

    ``only``: labels that must have this value if present. ``lazy``: series appear with the first
    request, so a missing signal is not a fault.
    """

    scope: Scope
    model_labels: tuple[str, ...]
    signals: dict[Signal, tuple[Term, ...]]
    only: dict[str, str] = field(default_factory=dict)
    lazy: bool = False


@cache
def adapters() -> dict[str, Adapter]:
    """Return the adapters of all supported engines and routers, by name."""
    text = (files("archipelago.operator") / "traffic" / "signals.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Adapter]).validate_python(yaml.safe_load(text))
