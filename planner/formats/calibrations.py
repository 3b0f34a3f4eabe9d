"""The calibration file, and the calibrations that apply to a problem.

``archipelago calibrate`` writes the file. A plan that was made with it carries what it used under
``calibrations``, in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from archipelago.perfmodel.calibration import corrections
from archipelago.perfmodel.calibration.corrections import Calibration, Correction
from archipelago.perfmodel.calibration.intervals import Interval
from archipelago.perfmodel.catalogue.accelerators import Accelerator, accelerator
from archipelago.perfmodel.catalogue.architectures import ModelArchitecture, architecture
from archipelago.perfmodel.catalogue.efficiency import ANY, COSTS, check_names
from archipelago.perfmodel.errors import PerfModelError, UnknownName

from ..documents import Document, canonical, load_document
from ..errors import InputError, PlanFileError
from ..problem import ModelDemand, PlanningProblem
from .entry import Amount, Entry, Items, Whole, read

FIELD = "calibrations"
"""Where a calibration file has its calibrations, and a plan those that it was made with."""

LEAST, MOST = 1e-15, 1e9
"""Range of values: a thousandth of a picosecond per element is the least that means anything."""
FACTORS = 1e-3, 1e3
"""Range of factors on times: one outside it is probably in another unit."""
WIDEST = 1e4
"""Ends of an interval are cut to 1 / ``WIDEST`` .. ``WIDEST``: wider ones mean no more."""


def _named(find: Callable[[str, PlanningProblem | None], str]) -> AfterValidator:
    """Check a name with the plan and the catalogue; return its spelling.

    The context: the plan's problem, if there is one, and whether other plans may have the name.
    """

    def check(name: str, info: ValidationInfo) -> str:
        problem, others = info.context or (None, False)
        try:
            return find(name, problem)
        except PerfModelError as error:
            if others:
                return name
            raise ValueError(str(error)) from None

    return AfterValidator(check)


def _accelerator_name(name: str, problem: PlanningProblem | None) -> str:
    """Return the name of an accelerator of the plan's pools, else of the catalogue."""
    pools = problem.pools if problem else ()
    return _found(name, {pool.accelerator.name for pool in pools}, accelerator)


def _model_name(name: str, problem: PlanningProblem | None) -> str:
    """Return the name of a model of the plan, else of the catalogue."""
    models = problem.models if problem else ()
    return _found(name, {model.architecture.name for model in models}, architecture)


def _found(
    name: str,
    own: Iterable[str],
    look_up: Callable[[str], Accelerator] | Callable[[str], ModelArchitecture],
) -> str:
    known = sorted(own)
    for each in known:
        if each.casefold() == name.casefold():
            return each
    try:
        return look_up(name).name
    except UnknownName as error:
        raise UnknownName(f"{error}; the plan has {', '.join(known)}" if known else error) from None


def _values(values: dict[str, float]) -> dict[str, float]:
    """Round to the six digits of a calibration file; refuse unknown names and wrong values."""
    try:
        check_names(values)
    except PerfModelError as error:
        raise ValueError(str(error)) from None
    wrong = [
        InitErrorDetails(
            type=PydanticCustomError("value_range", f"write a number from {LEAST:g} to {MOST:g}"),
            loc=(name,),
            input=value,
        )
        for name, value in values.items()
        if not LEAST <= value <= MOST and not (value == 0 and name.rpartition(".")[2] in COSTS)
    ]
    if wrong:
        raise ValidationError.from_exception_data("values", wrong)
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def _not_blank(name: str) -> str:
    if not name.strip():
        raise ValueError("write a name, or leave the field out for any")
    return name


ModelName: TypeAlias = Annotated[str, _named(_model_name)]
Name: TypeAlias = Annotated[str, AfterValidator(_not_blank)]
End: TypeAlias = Annotated[
    Amount, AfterValidator(lambda value: min(max(round(value, 4), 1 / WIDEST), WIDEST))
]
Rounded = AfterValidator(lambda value: round(value, 4))


class IntervalEntry(Entry):
    """Interval around a corrected time, as factors."""

    low: End
    high: End
    level: Amount
    groups: Whole = 0

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"{high:g}: write at least low, which is {info.data['low']:g}")
        return high


class CorrectionEntry(Entry):
    """Factor on the times of one phase."""

    model: Annotated[
        str, _named(lambda name, plan: name if name == ANY else _model_name(name, plan))
    ]
    phase: Literal["prefill", "decode"]
    factor: Annotated[float, Field(ge=FACTORS[0], le=FACTORS[1]), Rounded]
    interval: IntervalEntry
    rows: Whole = 0
    groups: Whole = 0


class CalibrationEntry(Entry):
    """One engine on one accelerator."""

    accelerator: Annotated[str, _named(_accelerator_name)]
    engine: Name = ANY
    version: Name = ANY
    models: Items[ModelName] = ()
    values: Annotated[dict[str, float], AfterValidator(_values)]
    corrections: Items[CorrectionEntry] = ()
    residuals: dict[str, Annotated[float, Field(ge=-1), Rounded]] = Field({})
    inherited: Items[str] = ()
    source: str = ""

    def calibration(self) -> Calibration:
        """Return the calibration of this entry."""
        corrections = tuple(
            Correction(
                self.accelerator, **dict(entry) | {"interval": Interval(**dict(entry.interval))}
            )
            for entry in self.corrections
        )
        return Calibration(**dict(self) | {"corrections": corrections})


class CalibrationDocument(Entry):
    """A calibration file, or the part of a plan file that has the same form."""

    calibrations: Items[CalibrationEntry] = ()


@dataclass(frozen=True)
class CalibrationFile:
    """The calibrations of one file."""

    path: str
    calibrations: tuple[Calibration, ...]


def read_calibrations(
    document: Document, problem: PlanningProblem | None = None, *, others: bool = False
) -> tuple[Calibration, ...]:
    """Return the calibrations of a calibration file or of a plan; none if the field is absent.

    Names are those of the catalogue and of the ``problem``, whose models and accelerators may be
    its own; with ``others`` a name may also be another plan's own.

    Raises:
        PlanFileError: names the place, the value and what would be right.
    """
    file = read(CalibrationDocument, document, (problem, others))
    return tuple(entry.calibration() for entry in file.calibrations)


def parse_calibration_file(
    text: str, path: str, problem: PlanningProblem | None = None
) -> CalibrationFile:
    """Return the calibrations in the text of a file; names as for ``read_calibrations``.

    Where a calibration applies to the problem, what others are for may have unknown names.

    Raises:
        InputError: it is no calibration file; each line names the file and the place.
    """
    try:
        document = load_document(text)
        if FIELD in document and "kind" not in document:
            found = read_calibrations(document, problem, others=problem is not None)
            if problem is not None and not applicable(problem, found):
                read_calibrations(document, problem)  # an unknown name may be why
            return CalibrationFile(path, found)
    except PlanFileError as error:
        lines = str(error).splitlines()
        raise PlanFileError("\n".join(f"{path}: {line}" for line in lines)) from None
    raise InputError(
        f"{path}: no calibration file; `archipelago calibrate RUNS -c FILE` writes one"
    )


def calibration_documents(calibrations: Iterable[Calibration]) -> list[Document]:
    """Return calibrations in the form of their file."""
    documents: list[Document] = canonical([*map(corrections.plain, calibrations)])
    return documents


def calibrated(problem: PlanningProblem, files: Sequence[CalibrationFile]) -> PlanningProblem:
    """Return the problem with the calibrations of its pools and models.

    They are sorted, so that the order of files does not matter.

    Raises:
        InputError: a file has none of them, or two calibrations are of the same engine and model.
    """
    used: list[Calibration] = []
    first_of: dict[tuple[str, str, str], tuple[str, Calibration]] = {}
    for file in files:
        fitting = applicable(problem, file.calibrations)
        if not fitting:
            scopes = (f"{name_of(c)} for {_models(c)}" for c in file.calibrations)
            pools = ", ".join(sorted({pool.accelerator.name for pool in problem.pools}))
            of = ", ".join(sorted({_model_with_engine(model) for model in problem.models}))
            raise InputError(
                f"{file.path}: {FIELD}: for {'; '.join(scopes) or 'nothing'}; the ServingPlan has "
                f"pools of {pools} and models {of}: calibrate these, or plan without this file"
            )
        used += fitting
        for calibration, model in product(fitting, problem.models):
            if not applies(calibration, model):
                continue
            what = model.architecture.name if calibration.models else "any model"
            key = calibration.accelerator, model.name, what
            path, first = first_of.setdefault(key, (file.path, calibration))
            if first is not calibration:  # a model has one engine on an accelerator
                raise InputError(
                    f"{file.path}: {FIELD}: {name_of(calibration)} for {what}: {path} has it "
                    f"already ({name_of(first)}); keep the one that you will run"
                )
    order = attrgetter("accelerator", "engine", "version", "models")
    return replace(problem, calibrations=tuple(sorted(used, key=order)))


def applicable(
    problem: PlanningProblem, calibrations: Iterable[Calibration]
) -> tuple[Calibration, ...]:
    """Return the calibrations that apply to a pool, and to a model with its engine."""
    pools = {pool.accelerator.name for pool in problem.pools}
    return tuple(
        calibration
        for calibration in calibrations
        if calibration.accelerator in pools
        and any(applies(calibration, model) for model in problem.models)
    )


def applies(calibration: Calibration, model: ModelDemand) -> bool:
    """Return whether a calibration is of a model and of the engine that the spec states for it."""
    named = not calibration.models or model.architecture.name in calibration.models
    return named and calibration.is_of(model.settings.engine, model.settings.version)


def _model_with_engine(model: ModelDemand) -> str:
    settings, name = model.settings, model.architecture.name
    if settings.engine == ANY:
        return name
    version = "" if settings.version == ANY else f" {settings.version}"
    return f"{name} on {settings.engine}{version}"


def name_of(calibration: Calibration) -> str:
    """Return engine, version and accelerator for a message."""
    engine = "any engine" if calibration.engine == ANY else calibration.engine
    version = "" if calibration.version == ANY else f" {calibration.version}"
    return f"{engine}{version} on {calibration.accelerator}"


def describe(calibration: Calibration) -> str:
    """Return a calibration in one line: engine, accelerator, models, source."""
    source = f" ({calibration.source})" if calibration.source else ""
    return f"{name_of(calibration)}, {_models(calibration)}{source}"


def _models(calibration: Calibration) -> str:
    return ", ".join(calibration.models) or "any model"
