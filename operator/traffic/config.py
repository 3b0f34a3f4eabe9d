"""Metric sources from the administrator's YAML file, which is read again when it changes.

A ServingPlan only names a source. Addresses, credentials and labels are in this file, which authors
of plans cannot change. ``ARCHIPELAGO_SOURCES`` is its path.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from archipelago.planner.documents import MISFITS

from ..errors import SettingsError

LARGEST: Final = 1 << 20
"""Largest file [bytes]."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Path of the pod's own token, which is for the API server only."""
_LABEL: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_HOST: Final = re.compile(r"[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?\.?|\[[0-9a-fA-F:.]+\]")
_FORMS: Final = {
    "name": "use a DNS label: lower-case letters, digits and -, at most 63",
    "serverName": "use the host name that the server's certificate is made out to",
} | dict.fromkeys(
    ("islandLabel", "planLabel", "namespaceLabel"),
    "use a Prometheus label: letters, digits and _, no digit first",
)
"""What to write in a field of which the pattern does not match."""
_PATH: Final = re.compile(r"(/[-._~a-zA-Z0-9]+)*/?")
Network: TypeAlias = IPv4Network | IPv6Network

log = logging.getLogger(__name__)


def _address(text: str) -> str:
    """Check an address: scheme, host, port and path; no user, query or fragment."""
    parts = urlsplit(text)
    host = parts.netloc.removesuffix(f":{parts.port}") if parts.port else parts.netloc
    if parts.scheme not in {"http", "https"}:
        raise ValueError("begin it with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("leave out the user and password; name a tokenFile")
    if text != f"{parts.scheme}://{parts.netloc}{parts.path}":
        raise ValueError("leave out what follows the path: no ? and no #")
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(parts.path):
        raise ValueError("write scheme://host:port/path in plain ASCII")
    return text.rstrip("/")


def _not_the_service_account(path: Path) -> Path:
    if is_service_accounts(path):
        raise ValueError(
            "this is the operator's own token for the API server; mount a token for this source"
        )
    return path


def is_service_accounts(path: Path) -> bool:
    """Return whether a path leads to the pod's own token, also by a link."""
    places = {SERVICE_ACCOUNT, SERVICE_ACCOUNT.resolve()}
    return any(p.is_relative_to(place) for p in (path, path.resolve()) for place in places)


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError("write an absolute path without ..")
    return path


def _network(value: object) -> object:
    return ip_network(value) if isinstance(value, str) else value


_File = Annotated[Path, Field(strict=False), AfterValidator(_absolute)]
_Label = Annotated[str, Field(pattern=_LABEL, max_length=128)]


class MetricSource(BaseModel):
    """One configured source of metrics."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    name: str = Field(pattern=_DNS_LABEL)
    """The value of ``spec.replanning.source``."""
    kind: Literal["prometheus"]
    address: Annotated[str, Field(max_length=2048), AfterValidator(_address)]
    token_file: Annotated[_File, AfterValidator(_not_the_service_account)] | None = None
    ca_file: _File | None = None
    client_cert_file: _File | None = None
    client_key_file: Annotated[_File, AfterValidator(_not_the_service_account)] | None = None
    server_name: str | None = Field(
        None, pattern=r"^[a-zA-Z0-9]([-.a-zA-Z0-9]{0,251}[a-zA-Z0-9])?$"
    )
    island_label: _Label = "archipelago_dev_island"
    plan_label: _Label = "archipelago_dev_plan"
    namespace_label: _Label = "namespace"
    """Labels of the series; those of islands must carry all three, a router's the namespace."""
    timeout_seconds: float = Field(default=8.0, ge=0.1, le=9.0)
    """Time limit of all queries of one scrape together [s]."""
    stale_after_seconds: float = Field(default=120.0, ge=5.0, le=300.0)
    """A process whose newest sample is older [s] is ignored."""
    allow_addresses: tuple[Annotated[Network, BeforeValidator(_network)], ...] = Field(
        default=(), strict=False, max_length=16
    )
    """Networks that are permitted although they are loopback, link-local or metadata."""

    @model_validator(mode="after")
    def _credentials_go_over_tls(self) -> MetricSource:
        files = (self.token_file, self.ca_file, self.client_cert_file, self.server_name)
        if self.address.startswith("http://") and any(file is not None for file in files):
            raise ValueError(
                "tokenFile, caFile, clientCertFile and serverName need an https:// address"
            )
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise ValueError("give clientCertFile and clientKeyFile together")
        return self


class _Configuration(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sources: list[MetricSource] = Field(max_length=64)

    @model_validator(mode="after")
    def _names_once(self) -> _Configuration:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice; give each source a name of its own")
        return self


class SourcesFile:
    """The sources of the file's last valid version, by name."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; None: there are no sources.

        Raises:
            SettingsError: with the place in the file and the remedy.
        """
        self._path = path
        self._version = file_version(path)
        self._sources = read_sources(path) if path else {}
        self.problem: str | None = None
        """Why the newest version of the file is not in use; None if it is."""

    def current(self) -> Mapping[str, MetricSource]:
        """Return the sources; the file is read again if it has changed."""
        version = file_version(self._path)
        if self._path is not None and version != self._version:
            self._version = version
            try:
                self._sources = read_sources(self._path)
            except SettingsError as error:
                self.problem = f"{error}; the sources read before stay in use"
                log.warning("metric sources: %s", self.problem)
            else:
                self.problem = None
                log.info("metric sources read again: %s", ", ".join(self._sources) or "none")
        return self._sources


def read_sources(path: Path) -> dict[str, MetricSource]:
    """Return the sources of a file, by name.

    Raises:
        SettingsError: with the file, the place in it and the remedy.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise SettingsError(f"{path}: larger than {LARGEST} bytes; this is no list of sources")
        document = yaml.safe_load(text.decode())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; mount the file or unset it") from error
    except (yaml.YAMLError, *MISFITS) as error:
        raise SettingsError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from error
    try:
        configuration = _Configuration.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]  # its value is not repeated: it may be a password
        parts = first["loc"]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            fields = ", ".join(to_camel(name) for name in MetricSource.model_fields)
            message = f"no such setting; there are {fields if len(parts) > 1 else 'sources'}"
        elif first["type"] == "string_pattern_mismatch":
            message = _FORMS.get(str(parts[-1]), message)
        place = place.removeprefix(".") or "the document"
        raise SettingsError(f"{path}: {place}: {message}") from None
    return {source.name: source for source in configuration.sources}


def file_version(path: Path | None) -> tuple[int, ...]:
    """Return what changes with the file: an update of a mounted ConfigMap swaps a link."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size) if stat else ()
