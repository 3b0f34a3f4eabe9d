"""Calibrations of a problem: read with errors that name the place, fitted to a problem, written.

``archipelago calibrate`` writes the file; a plan that was made with it carries what it used, under
``calibrations``, in the same form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archipelago.perfmodel import calibration
from archipelago.perfmodel.accelerators import accelerator
from archipelago.perfmodel.architecture import architecture
from archipelago.perfmodel.calibration import PHASES, Calibration, Correction
from archipelago.perfmodel.efficiency import ANY
from archipelago.perfmodel.errors import PerfModelError, UnknownName
from archipelago.perfmodel.intervals import Interval
from archipelago.perfmodel.measurements.models import measured_model
from archipelago.planner.canonical import canonical
from archipelago.planner.errors import InputError, PlanFileError
from archipelago.planner.reader import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from archipelago.planner.canonical import Document
    from archipelago.planner.problem import PlanningProblem

FIELD = "calibrations"
"""Where a calibration file has its calibrations, and a plan those that it was made with."""

LEAST, MOST = 1e-9, 1e9
"""Values beyond these are none: a nanosecond, a share of a billionth."""
FACTORS = 1e-3, 1e3
"""Nor are factors on times: another unit, more likely."""
WIDEST = 1e4
"""An interval that ends further away says no less."""
MAY_BE_NONE = {
    *("step", "sequence", "decode_layer", "dispatch", "expert_layer", "expert_pair"),
    *("all_reduce_wait", "all_to_all_wait", "interference", "quantise_bytes", "ramp_rows"),
}
"""Values that may be 0: an engine without the cost. No share of a peak may."""


@dataclass(frozen=True)
class Given:
    """The calibrations of one file."""

    path: str
    calibrations: tuple[Calibration, ...]


def read_calibrations(document: Document) -> tuple[Calibration, ...]:
    """The calibrations of a calibration file or of a plan; none where there is no such field.

    Raises:
        PlanFileError: names the place, the value and what would be right.
    """
    rows = Node(document).optional(FIELD)
    return tuple(_calibration(row) for row in rows.items()) if rows else ()


def calibration_documents(calibrations: Iterable[Calibration]) -> list[Document]:
    """Calibrations as their file has them."""
    found: list[Document] = canonical([calibration.plain(each) for each in calibrations])
    return found


def calibrated(problem: PlanningProblem, given: Sequence[Given]) -> PlanningProblem:
    """The problem with the calibrations that speak of its pools and models.

    They are ordered, so that the order of files does not matter.

    Raises:
        InputError: a file speaks of nothing in the problem, or two calibrations of the same.
    """
    for file in given:
        if not any(_speaks(each, problem) for each in file.calibrations):
            raise InputError(_fits_nothing(file, problem))
    every = [(file.path, each) for file in given for each in file.calibrations]
    used = [(path, each) for path, each in every if _speaks(each, problem)]
    _refuse_two(used, problem)
    return replace(problem, calibrations=tuple(sorted((each for _, each in used), key=_key)))


def speaking(
    problem: PlanningProblem, calibrations: Iterable[Calibration]
) -> tuple[Calibration, ...]:
    """Those that speak of a pool and a model of the problem."""
    return tuple(each for each in calibrations if _speaks(each, problem))


def name_of(one: Calibration) -> str:
    """Engine, version and accelerator, for people."""
    engine = "any engine" if one.engine == ANY else one.engine
    version = "" if one.version == ANY else f" {one.version}"
    return f"{engine}{version} on {one.accelerator}"


def describe(one: Calibration) -> str:
    """A calibration in one line: whose, of which models, from where."""
    models = ", ".join(one.models) or "any model"
    return f"{name_of(one)}, {models}" + (f" ({one.source})" if one.source else "")


def _key(one: Calibration) -> tuple[str, str, str, tuple[str, ...]]:
    return one.accelerator, one.engine, one.version, one.models


def _speaks(one: Calibration, problem: PlanningProblem) -> bool:
    pools = {pool.accelerator.name for pool in problem.pools}
    models = {model.architecture.name for model in problem.models}
    return one.accelerator in pools and (not one.models or bool(models & set(one.models)))


def _fits_nothing(file: Given, problem: PlanningProblem) -> str:
    has = "; ".join(
        f"{name_of(each)} for {', '.join(each.models) or 'any model'}" for each in file.calibrations
    )
    pools = ", ".join(sorted({pool.accelerator.name for pool in problem.pools}))
    models = ", ".join(sorted({model.architecture.name for model in problem.models}))
    return (
        f"{file.path}: {FIELD}: speaks of {has or 'nothing'}; the ServingPlan has pools of {pools} "
        f"and models {models}: calibrate these, or plan without this file"
    )


def _refuse_two(used: Sequence[tuple[str, Calibration]], problem: PlanningProblem) -> None:
    """An accelerator runs a model on one engine, as far as a plan knows."""
    models = {model.architecture.name for model in problem.models}
    seen: dict[tuple[str, str], tuple[str, Calibration]] = {}
    for path, each in used:
        for model in sorted(models & set(each.models)) if each.models else (ANY,):
            first = seen.setdefault((each.accelerator, model), (path, each))
            if first[1] is not each:
                what = "any model" if model == ANY else model
                raise InputError(
                    f"{path}: {FIELD}: {name_of(each)} for {what}: {first[0]} has it already "
                    f"({name_of(first[1])}); keep the one that you will run"
                )


def _calibration(node: Node) -> Calibration:
    card = _named(node.field("accelerator"), lambda name: accelerator(name).name)
    models = node.optional("models")
    corrections = node.optional("corrections")
    source = node.optional("source")
    inherited = node.optional("inherited")
    return Calibration(
        accelerator=card,
        engine=_word(node.optional("engine")),
        version=_word(node.optional("version")),
        models=tuple(_model(item) for item in models.items()) if models else (),
        values=_values(node.field("values")),
        corrections=tuple(_correction(item, card) for item in corrections.items())
        if corrections
        else (),
        residuals=_residuals(node.optional("residuals")),
        inherited=tuple(item.text() for item in inherited.items()) if inherited else (),
        source=source.text() if source else "",
    )


def _named(node: Node, known: Callable[[str], str]) -> str:
    """A name that the catalogue has, in the catalogue's spelling."""
    try:
        return known(node.text())
    except PerfModelError as error:
        raise PlanFileError(f"{node.path}: {error}") from None


def _model(node: Node) -> str:
    return _named(node, _known_model)


def _known_model(name: str) -> str:
    """A model that can be planned, or one that only benchmarks speak of."""
    try:
        return architecture(name).name
    except UnknownName as unknown:
        try:
            return measured_model(name).name
        except UnknownName:
            raise unknown from None


def _word(node: Node | None) -> str:
    if node is None:
        return ANY
    if not node.text().strip():
        raise node.refuse("the name of an engine or its version; leave it out for any")
    return node.text()


def _values(node: Node) -> dict[str, float]:
    """Values by name, rounded as the file has them."""
    found = {name: _value(node.field(name), name) for name in node.mapping()}
    try:
        Calibration("", values=found)  # knows the names
    except PerfModelError as error:
        raise PlanFileError(f"{node.path}: {error}") from None
    return found


def _value(node: Node, name: str) -> float:
    if node.value == 0 and name.rpartition(".")[2] in MAY_BE_NONE:
        return node.number()
    return float(f"{_within(node, LEAST, MOST):.6g}")


def _within(node: Node, least: float, most: float) -> float:
    value = node.number(least)
    if value > most:
        raise node.refuse(f"a number from {least:g} to {most:g}")
    return value


def _residuals(node: Node | None) -> dict[str, float]:
    if node is None:
        return {}
    return {name: round(node.field(name).number(-1.0), 4) for name in node.mapping()}


def _correction(node: Node, card: str) -> Correction:
    phase, model, around = node.field("phase"), node.field("model"), node.field("interval")
    if phase.text() not in PHASES:
        raise phase.refuse(f"one of {', '.join(PHASES)}")
    groups, rows = around.optional("groups"), node.optional("rows")
    count = node.optional("groups")
    return Correction(
        accelerator=card,
        model=ANY if model.text() == ANY else _model(model),
        phase=phase.text(),
        factor=_rounded(node.field("factor")),
        interval=_interval(around, groups.integer() if groups else 0),
        rows=rows.integer() if rows else 0,
        groups=count.integer() if count else 0,
    )


def _interval(node: Node, groups: int) -> Interval:
    low, high = _end(node.field("low")), _end(node.field("high"))
    if low > high:
        raise node.field("low").refuse(f"at most high, {high:g}")
    return Interval(low, high, node.field("level").number(), groups)


def _rounded(node: Node) -> float:
    """A factor on times, with the digits that a calibration file has."""
    return round(_within(node, *FACTORS), 4)


def _end(node: Node) -> float:
    """An end of an interval; two groups that disagree know less than any digits say."""
    return min(max(round(node.number(), 4), 1 / WIDEST), WIDEST)
