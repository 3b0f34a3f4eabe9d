"""Metric sources as the administrator configures them: a YAML file, read again when it changes.

A ServingPlan names a source and nothing else: addresses, credentials and labels stand here, where
who may write plans has no say. The file is named by ``ARCHIPELAGO_SOURCES``.
"""

from __future__ import annotations

import logging
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias
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

from archipelago.operator.errors import SettingsError
from archipelago.planner.reader import MISFITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

LARGEST: Final = 1 << 20
"""Bytes of the file that are read."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod's own token lies: it is for the API server and for nobody else."""
_LABEL: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_HOST: Final = re.compile(r"[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?\.?|\[[0-9a-fA-F:.]+\]")
_PATH: Final = re.compile(r"(/[-._~a-zA-Z0-9]+)*/?")
_Network: TypeAlias = IPv4Network | IPv6Network

log = logging.getLogger(__name__)


def _address(text: str) -> str:
    """Scheme, host, port and path; no user, query or fragment."""
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
    """Whether a path leads to where the pod's own token lies, also by a link."""
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
    """One place where live figures come from, as configured."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    name: str = Field(pattern=_DNS_LABEL)
    """What ``spec.replanning.source`` says."""
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
    """All questions of one reading together [s]."""
    stale_after_seconds: float = Field(default=120.0, ge=5.0, le=300.0)
    """A process whose newest sample is older [s] has said nothing."""
    allow_addresses: tuple[Annotated[_Network, BeforeValidator(_network)], ...] = Field(
        default=(), strict=False, max_length=16
    )
    """Networks that may be connected to although they are loopback, link-local or metadata."""

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
    """The configured sources by name, as of the file's last good version."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; None: there are no sources.

        Raises:
            SettingsError: what cannot be used, where it stands, and what would be right.
        """
        self._path = path
        self._stamp = _stamp(path)
        self._sources = read_sources(path) if path else {}
        self.problem: str | None = None
        """Why the newest version of the file is not in use; None where it is."""

    def current(self) -> Mapping[str, MetricSource]:
        """The sources; the file is looked at, and read where it is another than before."""
        stamp = _stamp(self._path)
        if self._path is not None and stamp != self._stamp:
            self._stamp = stamp
            self._read(self._path)
        return self._sources

    def _read(self, path: Path) -> None:
        try:
            self._sources = read_sources(path)
        except SettingsError as error:
            self.problem = f"{error}; the sources read before stay in use"
            log.warning("metric sources: %s", self.problem)
        else:
            self.problem = None
            log.info("metric sources read again: %s", ", ".join(self._sources) or "none")


def read_sources(path: Path) -> dict[str, MetricSource]:
    """The sources of a file, by name.

    Raises:
        SettingsError: naming the file, the place in it, and what would be right.
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
        found = _Configuration.model_validate(document)
    except ValidationError as error:
        raise SettingsError(f"{path}: {_explained(error.errors()[0])}") from None
    return {source.name: source for source in found.sources}


def _stamp(path: Path | None) -> tuple[int, ...]:
    """What changes with the file: a mounted ConfigMap is replaced by a link to another one."""
    if path is None:
        return ()
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_mtime_ns, seen.st_ino, seen.st_size


def _explained(error: ErrorDetails) -> str:
    """Place, what is wrong, and the remedy; never the value, which may hold a password."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    kind, last = error["type"], error["loc"][-1] if error["loc"] else ""
    said = error["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        known = ", ".join(to_camel(name) for name in MetricSource.model_fields)
        said = f"no such setting; there are {known if len(error['loc']) > 1 else 'sources'}"
    elif kind == "string_pattern_mismatch":
        said = _FORMS.get(str(last), said)
    return f"{place.removeprefix('.') or 'the document'}: {said}"


_FORMS: Final = {
    "name": "use a DNS label: lower-case letters, digits and -, at most 63",
    "islandLabel": "use a Prometheus label: letters, digits and _, no digit first",
    "planLabel": "use a Prometheus label: letters, digits and _, no digit first",
    "namespaceLabel": "use a Prometheus label: letters, digits and _, no digit first",
    "serverName": "use the host name that the server's certificate is made out to",
}
