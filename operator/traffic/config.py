"""Metric sources: section ``sources`` of the administrator's file (``admin_file``).

A ServingPlan only names a source. Addresses, credentials and labels are in this file, which authors
of plans cannot change.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic.alias_generators import to_camel

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Path of the pod's own token, which is for the API server only."""
_LABEL: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_HOST: Final = re.compile(r"[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?\.?|\[[0-9a-fA-F:.]+\]")
FORMS: Final = {
    "name": "use a DNS label: lower-case letters, digits and -, at most 63",
    "serverName": "use the host name that the server's certificate is made out to",
} | dict.fromkeys(
    ("islandLabel", "planLabel", "namespaceLabel"),
    "use a Prometheus label: letters, digits and _, no digit first",
)
"""What to write in a field of which the pattern does not match."""
_PATH: Final = re.compile(r"(/[-._~a-zA-Z0-9]+)*/?")
Network: TypeAlias = IPv4Network | IPv6Network


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
_Namespace = Annotated[str, Field(pattern=_DNS_LABEL)]


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
    allowed_namespaces: tuple[_Namespace, ...] | None = Field(
        default=None, strict=False, max_length=1000
    )
    """Namespaces whose plans may use the source; None: all. For others it does not exist."""

    def permits(self, namespace: str) -> bool:
        """Return whether plans of a namespace may use the source."""
        return self.allowed_namespaces is None or namespace in self.allowed_namespaces

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


def file_version(path: Path | None) -> tuple[int, ...]:
    """Return what changes with the file: an update of a mounted ConfigMap swaps a link."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_ino, stat.st_size) if stat else ()
