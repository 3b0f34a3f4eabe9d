"""All cases, and running them: what is judged, what is skipped and why.

A module of this package that checks something offers ``CASES``; its name is listed in
``MODULES``. Modules are imported when a case runs, so a missing optional package skips
the cases that need it and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from archipelago.perfmodel.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from archipelago.perfmodel.validation.case import Case, Report

MODULES = (
    "engines",
    "batches",
    "prompts",
    "helix",
    "capacity",
    "operators",
    "vidur",
    "rtx4090",
    "vllmrun",
    "published",
    "coverage",
)
"""Modules of this package with cases, in the order of the report."""


@dataclass(frozen=True)
class Ran:
    """A case and what came of it: reports, or the reason why there are none."""

    case: Case
    reports: tuple[Report, ...] = ()
    skipped: str = ""


def cases() -> tuple[Case, ...]:
    """Every case, in the order of the report."""
    return tuple(case for name in MODULES for case in import_module(f"{__package__}.{name}").CASES)


def chosen(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of those names; all of them where no name is given.

    Raises:
        UnknownName: lists the known names.
    """
    every = {case.name: case for case in cases()}
    for name in names:
        if name not in every:
            raise UnknownName(f"unknown case {name!r}; known: {', '.join(every)}")
    return tuple(every[name] for name in names or every)


def run(data: Path, names: Sequence[str] = ()) -> Iterator[Ran]:
    """Each chosen case on the data sets below ``data``, one after the other."""
    for case in chosen(names):
        lacking = _lacking(case, data)
        yield Ran(case, skipped=lacking) if lacking else Ran(case, tuple(case.run(data)))


def _lacking(case: Case, data: Path) -> str:
    """What a case cannot run without; empty where it has all it needs."""
    absent = [need for need in case.needs if not (data / need).exists()]
    if absent:
        return f"no {', '.join(absent)} below {data}"
    packages = [name for name in case.modules if find_spec(name) is None]
    if packages:
        return f"needs {', '.join(packages)}: pip install 'archipelago[validate]'"
    return ""
