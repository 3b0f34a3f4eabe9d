"""The operator's settings from the environment, with unit, default and limits of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_type_hints

from archipelago.planner.table.shards import TABLE_BYTES

from .errors import SettingsError

PREFIX = "ARCHIPELAGO_"
OFF = "Off"
FORMERLY = {"admin_file": "SOURCES"}
"""Earlier names of variables, which are read if the present ones are not set."""
LABEL = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Format(NamedTuple):
    """How a value is written; ``parse`` raises a ValueError for what is not ``valid``."""

    valid: str
    parse: Callable[[str], Any]


def _number(kind: Callable[[str], float], least: float, most: float) -> Format:
    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return Format(f"{least}..{most}", parse)


def _choice(*words: str) -> Format:
    folded = [word.casefold() for word in words]
    return Format(", ".join(words), lambda text: words[folded.index(text.casefold())])


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not all(_NAMESPACE.fullmatch(name) for name in names):
        raise ValueError(text)
    return names


def _selector(text: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not LABEL.fullmatch(key) or not LABEL_VALUE.fullmatch(value) for key, _, value in pairs):
        raise ValueError(text)
    return {key: value for key, _, value in pairs}


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(text)
    return text


@dataclass(frozen=True)
class Settings:
    """All settings. Names in the environment are in upper case, with prefix ``ARCHIPELAGO_``."""

    # Empty: the whole cluster.
    namespaces: Annotated[
        tuple[str, ...], Format("namespace names separated by commas", _namespaces)
    ] = ()
    # IPv6 and IPv4 alike: probes and Prometheus come from outside the pod.
    http_host: Annotated[str, Format("an address", str)] = "::"
    # /healthz, /readyz, and /metrics without a certificate; 0: any free port, see the log.
    http_port: Annotated[int, _number(int, 0, 65535)] = 8080
    # Folder with tls.crt and tls.key: /metrics is served over TLS on its own port, to whom the API
    # server lets. Empty: without either, on the port above.
    metrics_certificate: Annotated[str, Format("an absolute path", _path)] = ""
    metrics_port: Annotated[int, _number(int, 0, 65535)] = 8443  # 0: any free port, see the log
    reconcilers: Annotated[int, _number(int, 1, 256)] = 8  # keys worked on at the same time
    planners: Annotated[int, _number(int, 1, 64)] = 2  # warm planner processes
    # RLIMIT_AS of each planner process [MiB].
    planner_memory_mib: Annotated[int, _number(int, 64, 1 << 20)] = 1536
    # Processes that search at the same time (strategies of the image variant bayes); started when
    # needed, ended after five idle minutes.
    searches: Annotated[int, _number(int, 1, 16)] = 1
    # RLIMIT_DATA of each of them [MiB].
    search_memory_mib: Annotated[int, _number(int, 512, 1 << 20)] = 4096
    # Beyond the plan's time limit; then the process is killed.
    planner_grace_seconds: Annotated[float, _number(float, 0, 60)] = 2.0
    # Time between two full lists, +-10 %.
    resync_seconds: Annotated[float, _number(float, 0.1, 86400)] = 300.0
    # A watch that is silent for so long is restarted.
    watch_silence_seconds: Annotated[float, _number(float, 1, 3600)] = 70.0
    # A larger content is stored in shards of this size.
    table_limit_bytes: Annotated[int, _number(int, 1024, TABLE_BYTES)] = TABLE_BYTES
    # Before a shard without a table is removed.
    shard_grace_seconds: Annotated[float, _number(float, 0.1, 86400)] = 60.0
    inventory: Annotated[str, _choice("Auto", OFF)] = "Auto"  # Off: watch neither nodes nor pods
    # Workloads that the operator may own (spec.islands.manage); it needs rights for them.
    islands: Annotated[str, _choice(OFF, "Deployments", "LeaderWorkerSets")] = OFF
    # Labels that a node must have before any plan may use it.
    node_selector: Annotated[
        Mapping[str, str], Format("label=value pairs separated by commas", _selector)
    ] = field(default_factory=dict)
    # Path of the administrator's file (admin_file.py); empty: none. Also read: ARCHIPELAGO_SOURCES.
    admin_file: Annotated[str, Format("an absolute path", _path)] = ""
    # Auto: On for a service account of the cluster, which has a namespace for the Lease.
    leader_election: Annotated[str, _choice("Auto", "On", OFF)] = "Auto"
    leader_lease_duration: Annotated[int, _number(int, 2, 60)] = 10
    leader_renew_deadline: Annotated[float, _number(float, 0.2, 60)] = 7.0
    leader_retry_period: Annotated[float, _number(float, 0.1, 60)] = 1.0
    log_level: Annotated[str, _choice("DEBUG", "INFO", "WARNING", "ERROR")] = "INFO"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the variables that are set.

        Raises:
            SettingsError: naming the variable, its value and what would be valid.
        """
        values: dict[str, Any] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            variable, (rule,) = f"{PREFIX}{name.upper()}", hint.__metadata__
            if name in FORMERLY and not environment.get(variable, "").strip():
                variable = f"{PREFIX}{FORMERLY[name]}"
            text = environment.get(variable, "").strip()
            try:
                values |= {name: rule.parse(text)} if text else {}
            except ValueError as error:
                raise SettingsError(f"{variable}={text!r}: use {rule.valid}") from error
        return cls(**values)
