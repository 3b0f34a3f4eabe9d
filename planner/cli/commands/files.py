"""Read the files of a command, or standard input, and write its documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from archipelago.perfmodel.calibration.corrections import Calibration

from ...documents import Document, load_document, safe, to_json, to_yaml
from ...errors import InputError, PlanFileError
from ...formats.calibrations import applicable, calibrated, parse_calibration_file
from ...problem import PlanningProblem
from ...schedule import peak, scheduled
from ...servingplan import ServingPlanResource, to_problem
from ...servingplan.workload import multiplied, windows_of

STDIN = "-"
YEARS = range(1970, 9000)
"""Years that --at may name. A schedule is followed beyond them, and dates end with 9999."""
LARGEST = 64 * 1024 * 1024
"""Largest file that is read [bytes]; a plan of 10,000 islands has a tenth of it."""


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for ``-``.

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
        raise InputError(f"{name}: larger than {LARGEST} bytes, the most that is read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_document(text: str, path: str) -> Document:
    """Return the mapping in a text; errors name the file.

    Raises:
        PlanFileError: it is neither JSON nor YAML, or not a mapping.
    """
    with errors_of(path):
        return load_document(text)


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Put the name of the file before each line of a ``PlanFileError``."""
    try:
        yield
    except PlanFileError as error:
        lines = str(error).splitlines()
        raise PlanFileError("\n".join(f"{path}: {line}" for line in lines)) from None


def planned_problem(resource: ServingPlanResource, paths: Sequence[str]) -> PlanningProblem:
    """Return the problem of a resource, with the calibrations of files.

    Raises:
        InputError: one cannot be read or is no such file; the message names it and the place.
    """
    if resource.spec.calibration is not None and not paths:
        warn("spec.calibration is read in a cluster only: give the file with --calibration")
    problem = to_problem(resource.metadata.name, resource.spec)
    files = [parse_calibration_file(read_text(path), path, problem) for path in paths]
    return calibrated(problem, files)


def read_time(text: str) -> datetime:
    """Return a time in UTC, which it is in unless it names another zone.

    Raises:
        InputError: it is none.
    """
    try:
        time = datetime.fromisoformat(text)
        utc = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"--at: {text!r} is no time: write 2026-11-24T09:00") from None
    if utc.year not in YEARS:
        raise InputError(f"--at: {text!r} is not in the years {YEARS[0]} to {YEARS[-1]}")
    return utc


def on_schedule(resource: ServingPlanResource, at: str | None = None) -> ServingPlanResource:
    """Return the resource with the rates of its schedule at a time, else the largest ones.

    A plan without a clock serves at any time. The plan file has these rates, and no schedule.

    Raises:
        InputError: ``at`` is no time, or there is no schedule.
    """
    spec = resource.spec
    if spec.traffic is None or not spec.traffic.schedule:
        if at is not None:
            raise InputError("--at: the ServingPlan has no spec.traffic.schedule; leave --at out")
        return resource
    windows = windows_of(spec.traffic.model_dump(by_alias=True))
    factor = peak(windows) if at is None else scheduled(windows, timedelta(), read_time(at)).factor
    text = f"{factor.normalize():f}"
    if at is None:
        warn(
            f"spec.traffic.schedule: these rates are {text} times the stated ones, the largest "
            "factor; --at TIME plans for one time"
        )
    else:
        warn(f"spec.traffic.schedule: these rates are {text} times the stated ones")
    models = tuple(
        model.model_copy(
            update={"requests_per_second": multiplied(model.requests_per_second, factor)}
        )
        if model.requests_per_second is not None
        else model
        for model in spec.models
    )
    rated = spec.model_copy(update={"models": models, "traffic": None})
    return resource.model_copy(update={"spec": rated})


def still_calibrated(
    resource: ServingPlanResource, calibrations: tuple[Calibration, ...]
) -> PlanningProblem:
    """Return the problem of a changed resource, without calibrations of pools that are gone."""
    problem = to_problem(resource.metadata.name, resource.spec)
    return replace(problem, calibrations=applicable(problem, calibrations))


def warn(line: str) -> None:
    """Write a line to standard error, escaped."""
    sys.stderr.write(f"{safe(line)}\n")


def write_document(document: Document, form: str) -> None:
    """Write a document to standard output as ``json`` or ``yaml``."""
    sys.stdout.write(to_yaml(document) if form == "yaml" else to_json(document))
