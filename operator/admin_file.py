"""The administrator's YAML file: what tenants may use; it is read again when it changes.

Its sections stand where they are used: metric sources in ``traffic/config.py``, rules about nodes
in ``inventory/claims.py``, limits of what is started in ``inventory/start_rules.py``, models and
accelerators in ``planner/servingplan/own.py``. Authors of plans cannot change it.
``ARCHIPELAGO_ADMIN_FILE`` is its path.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from archipelago.planner.documents import MISFITS
from archipelago.planner.servingplan.errors import path_of
from archipelago.planner.servingplan.own import OwnCatalogue
from archipelago.planner.servingplan.rule import broken_rules

from .errors import SettingsError
from .inventory.claims import MOST_RULES, ClaimRule, Claims
from .inventory.start_rules import StartLimit, StartRule, start_limit
from .traffic.config import FORMS, MetricSource, file_version

LARGEST: Final = 1 << 20
"""Largest file [bytes]."""
_FORMS: Final = FORMS | {
    "namespaces": "use names of namespaces; * stands for any characters, as in team-*",
    "nodeSelector": "use labels of nodes, as in pool: team-a",
}
"""What to write in a field, or an item of it, of which the pattern does not match."""

log = logging.getLogger(__name__)


class Administration(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    sources: tuple[MetricSource, ...] = Field(default=(), strict=False, max_length=64)
    node_claims: tuple[ClaimRule, ...] = Field(default=(), strict=False, max_length=MOST_RULES)
    tell_namespaces: bool = True
    """Whether a plan is told which namespace has the nodes that it selects."""
    started_islands: tuple[StartRule, ...] = Field(default=(), strict=False, max_length=MOST_RULES)
    catalogue: OwnCatalogue = OwnCatalogue()
    """Models and accelerators that plans may use beside those of the package."""

    @model_validator(mode="after")
    def _names_once(self) -> Administration:
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice; give each source a name of its own")
        for place, remedy in broken_rules(self.catalogue, ("catalogue",)):
            raise ValueError(f"{path_of(place)}: {remedy}")
        return self


class AdminFile:
    """The last valid version of the file."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; None: there is none.

        Raises:
            SettingsError: with the place in the file and the remedy.
        """
        self._path = path
        self._version = file_version(path)
        self._set(read_admin_file(path) if path else Administration())
        self.problem: str | None = None
        """Why the newest version of the file is not in use; None if it is."""

    def sources(self) -> Mapping[str, MetricSource]:
        """Return the metric sources by name."""
        self._read_again()
        return self._sources

    def claims(self) -> Claims:
        """Return the rules about nodes."""
        self._read_again()
        return self._claims

    def catalogue(self) -> OwnCatalogue:
        """Return the models and accelerators that plans may use."""
        self._read_again()
        return self._catalogue

    def start_limit(self, namespace: str) -> StartLimit:
        """Return the most that the operator may start in a namespace."""
        self._read_again()
        return start_limit(self._start_rules, namespace)

    def _read_again(self) -> None:
        version = file_version(self._path)
        if self._path is None or version == self._version:
            return
        self._version = version
        try:
            self._set(read_admin_file(self._path))
        except SettingsError as error:
            self.problem = f"{error}; what was read before stays in use"
            log.warning("administrator's file: %s", self.problem)
        else:
            self.problem = None
            counts = {"sources": len(self._sources), "node_claims": len(self._claims.rules)}
            log.info("administrator's file read again", extra=counts)

    def _set(self, content: Administration) -> None:
        self._sources = {source.name: source for source in content.sources}
        self._claims = Claims(content.node_claims, content.tell_namespaces)
        self._start_rules = content.started_islands
        self._catalogue = content.catalogue


def read_admin_file(path: Path) -> Administration:
    """Return the content of a file.

    Raises:
        SettingsError: with the file, the place in it and the remedy.
    """
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise SettingsError(f"{path}: larger than {LARGEST} bytes; write fewer entries")
        document = yaml.safe_load(text.decode())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; mount the file or unset it") from error
    except (yaml.YAMLError, *MISFITS) as error:
        raise SettingsError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from error
    try:
        return Administration.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]  # its value is not repeated: it may be a password
        parts = first["loc"]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            sections: dict[str, type[BaseModel]]
            sections = {
                "sources": MetricSource,
                "nodeClaims": ClaimRule,
                "startedIslands": StartRule,
                "catalogue": OwnCatalogue,
            }
            section = sections.get(str(parts[0]), Administration)
            message = f"no such setting; there are {', '.join(map(to_camel, section.model_fields))}"
        elif first["type"] == "string_pattern_mismatch":
            fields = (str(part) for part in reversed(parts))
            message = next((_FORMS[field] for field in fields if field in _FORMS), message)
        place = place.removeprefix(".") or "the document"
        raise SettingsError(f"{path}: {place}: {message}") from None
