"""Names of what engines and routers export, as data (``signals.yaml``) with closed words.

A new engine is a new entry of the file, a renamed metric one more name in a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from archipelago.planner.problem import Phase


class Signal(StrEnum):
    """What is read of a source.

    ``DISPATCHED`` requests left a router for an island; those that wait in the router are not among
    them. ``QUEUED`` requests are among the running ones: they say whether queues grow and are not
    added.
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
"""Without these there is no demand; of dispatched and completed one is enough."""


class Scope(StrEnum):
    """What one series speaks of."""

    ISLAND = "island"
    ROUTER = "router"


@dataclass(frozen=True)
class Term:
    """One addend: names, newest first, and the phases whose islands have it."""

    names: tuple[str, ...]
    phases: tuple[Phase, ...] = tuple(Phase)


@dataclass(frozen=True)
class Adapter:
    """How to read one engine or router.

    ``only``: labels that must have this value where they are present. ``lazy``: series come into
    being with the first request, so that none of a signal is no fault.
    """

    name: str
    scope: Scope
    model_labels: tuple[str, ...]
    only: tuple[tuple[str, str], ...]
    lazy: bool
    signals: dict[Signal, tuple[Term, ...]]


@cache
def adapters() -> dict[str, Adapter]:
    """Every engine and router that is understood, by name."""
    text = files("archipelago.operator").joinpath("signals.yaml").read_text(encoding="utf-8")
    return {name: _adapter(name, entry) for name, entry in yaml.safe_load(text).items()}


def _adapter(name: str, entry: dict[str, Any]) -> Adapter:
    return Adapter(
        name,
        Scope(entry["scope"]),
        tuple(entry["model_labels"]),
        tuple(sorted(entry.get("only", {}).items())),
        bool(entry.get("lazy", False)),
        {Signal(key): tuple(map(_term, terms)) for key, terms in entry["signals"].items()},
    )


def _term(entry: dict[str, Any]) -> Term:
    phases = entry.get("phases")
    return Term(tuple(entry["names"]), tuple(map(Phase, phases)) if phases else tuple(Phase))
