"""The operator's settings from the environment, with unit, default and limits of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .errors import SettingsError

PREFIX = "ARCHIPELAGO_"
MEBIBYTE = 1 << 20
TABLE_BYTES = 900 * 1024  # manifests.TABLE_BYTES
LEAST_LIMIT = 1024  # bytes
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
OFF = "Off"
_INVENTORY = ("Auto", OFF)
_LABEL = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Settings:
    """All settings. Names in the environment are in upper case, with prefix ``ARCHIPELAGO_``."""

    namespaces: tuple[str, ...] = ()  # empty: the whole cluster
    http_host: str = "::"  # IPv6 and IPv4 alike: probes and Prometheus come from outside the pod
    http_port: int = 8080  # /healthz, /readyz, /metrics; 0: any free port, see the log
    reconcilers: int = 8  # keys worked on at the same time
    planners: int = 2  # warm planner processes
    planner_memory_mib: int = 1536  # RLIMIT_AS of each planner process [MiB]
    planner_grace_seconds: float = 2.0  # beyond the plan's time limit; then the process is killed
    resync_seconds: float = 300.0  # time between two full lists, +-10 %
    watch_silence_seconds: float = 70.0  # a watch that is silent for so long is restarted
    table_limit_bytes: int = TABLE_BYTES  # a larger content is stored in shards of this size
    shard_grace_seconds: float = 60.0  # before a shard without a table is removed
    inventory: str = "Auto"  # Off: watch neither nodes nor pods
    node_selector: str = ""  # labels that a node must have before any plan may use it
    sources: str = ""  # path of the file of metric sources (traffic/config.py); empty: none
    log_level: str = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the variables that are set.

        Raises:
            SettingsError: naming the variable, its value and what would be valid.
        """
        default = cls()
        read = _Reader(environment)
        return cls(
            namespaces=read("NAMESPACES", _namespaces, "namespace names separated by commas", ()),
            http_host=read("HTTP_HOST", str, "an address", default.http_host),
            http_port=read("HTTP_PORT", _whole(0, 65535), "0..65535", default.http_port),
            reconcilers=read("RECONCILERS", _whole(1, 256), "1..256", default.reconcilers),
            planners=read("PLANNERS", _whole(1, 64), "1..64", default.planners),
            planner_memory_mib=read(
                "PLANNER_MEMORY_MIB", _whole(64, 1 << 20), "64..1048576", default.planner_memory_mib
            ),
            planner_grace_seconds=read(
                "PLANNER_GRACE_SECONDS", _real(0, 60), "0..60", default.planner_grace_seconds
            ),
            resync_seconds=read(
                "RESYNC_SECONDS", _real(0.1, 86400), "0.1..86400", default.resync_seconds
            ),
            watch_silence_seconds=read(
                "WATCH_SILENCE_SECONDS", _real(1, 3600), "1..3600", default.watch_silence_seconds
            ),
            table_limit_bytes=read(
                "TABLE_LIMIT_BYTES",
                _whole(LEAST_LIMIT, TABLE_BYTES),
                f"{LEAST_LIMIT}..{TABLE_BYTES}",
                default.table_limit_bytes,
            ),
            shard_grace_seconds=read(
                "SHARD_GRACE_SECONDS", _real(0.1, 86400), "0.1..86400", default.shard_grace_seconds
            ),
            inventory=read("INVENTORY", _inventory, ", ".join(_INVENTORY), default.inventory),
            node_selector=read(
                "NODE_SELECTOR", _selector, "label=value pairs separated by commas", ""
            ),
            sources=read("SOURCES", _path, "an absolute path", default.sources),
            log_level=read("LOG_LEVEL", _level, ", ".join(_LEVELS), default.log_level),
        )

    @property
    def allowed_nodes(self) -> dict[str, str]:
        """``node_selector`` by label; empty: any node may be used."""
        return selector_of(self.node_selector)


def selector_of(text: str) -> dict[str, str]:
    """Return labels and their values.

    Raises:
        ValueError: it is not of the form ``label=value,label=value``.
    """
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not _LABEL.fullmatch(key) or not _VALUE.fullmatch(value) for key, _, value in pairs):
        raise ValueError(text)
    return {key: value for key, _, value in pairs}


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def __call__(self, name: str, parse: Callable[[str], _T], valid: str, default: _T) -> _T:
        text = self.environment.get(PREFIX + name, "").strip()
        if not text:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{name}={text!r}: use {valid}") from error


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        return _within(int(text), least, most)

    return parse


def _real(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        return _within(float(text), least, most)

    return parse


_N = TypeVar("_N", int, float)


def _within(value: _N, least: float, most: float) -> _N:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def _level(text: str) -> str:
    if text.upper() not in _LEVELS:
        raise ValueError(text)
    return text.upper()


def _inventory(text: str) -> str:
    if text.title() not in _INVENTORY:
        raise ValueError(text)
    return text.title()


def _selector(text: str) -> str:
    selector_of(text)
    return text


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(text)
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not all(_NAMESPACE.fullmatch(name) for name in names):
        raise ValueError(text)
    return names
