"""Read what a command is given, from a file or standard input, and write answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archipelago.planner.calibrations import FIELD, Given, calibrated, read_calibrations, speaking
from archipelago.planner.canonical import load_document, to_json, to_yaml
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.spec import to_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archipelago.perfmodel.calibration import Calibration
    from archipelago.planner.canonical import Document
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.spec import ServingPlanResource

STDIN = "-"
LARGEST = 64 * 1024 * 1024
"""Bytes that are read at most; a plan of 10,000 islands has a tenth of it."""


def read_text(path: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        InputError: it cannot be read; the message names the file.
    """
    name = "standard input" if path == STDIN else path
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}; give a file that exists") from None
    if len(data) > LARGEST:
        raise InputError(f"{name}: longer than {LARGEST} bytes; this is no file of ours")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_document(text: str, path: str) -> Document:
    """The mapping that a text holds; errors name the file.

    Raises:
        PlanFileError: it is neither JSON nor YAML, or not a mapping.
    """
    try:
        return load_document(text)
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from None


def read_given(paths: Iterable[str]) -> tuple[Given, ...]:
    """Calibration files.

    Raises:
        InputError: one cannot be read or is no such file; the message names it and the place.
    """
    return tuple(_given(path) for path in paths)


def _given(path: str) -> Given:
    document = parse_document(read_text(path), path)
    if FIELD not in document or "kind" in document:
        raise InputError(
            f"{path}: no calibration file; `archipelago calibrate RUNS -c FILE` writes one"
        )
    try:
        return Given(path, read_calibrations(document))
    except PlanFileError as error:
        raise PlanFileError(f"{path}: {error}") from None


def planned_problem(resource: ServingPlanResource, given: tuple[Given, ...]) -> PlanningProblem:
    """The problem of a resource, with the calibrations that were given."""
    return calibrated(to_problem(resource.metadata.name, resource.spec), given)


def still_calibrated(
    resource: ServingPlanResource, calibrations: tuple[Calibration, ...]
) -> PlanningProblem:
    """The problem of a changed resource; calibrations of pools that are gone go with them."""
    problem = to_problem(resource.metadata.name, resource.spec)
    return replace(problem, calibrations=speaking(problem, calibrations))


def write_document(document: Document, form: str) -> None:
    """Write a document to standard output as ``json`` or ``yaml``."""
    sys.stdout.write(to_yaml(document) if form == "yaml" else to_json(document))
