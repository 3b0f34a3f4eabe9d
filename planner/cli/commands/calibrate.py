"""``archipelago calibrate``: fit the performance model to a user's measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from archipelago.perfmodel.calibration import corrections
from archipelago.perfmodel.calibration.corrections import Calibration, Correction
from archipelago.perfmodel.calibration.from_runs import calibrate
from archipelago.perfmodel.calibration.measurements import read_points

from ..terminal import console, grid

_FEW = 4
"""With fewer runs, values stay close to those of other engines."""


def run(path: str, columns: Mapping[str, str], target: str | None, form: str) -> int:
    """Fit, write the calibration file if ``target`` is set, and print the fit."""
    points = read_points(Path(path), columns)
    calibrations = calibrate(points, source=Path(path).name)
    if target:
        corrections.write(calibrations, Path(target))
    if form == "yaml":
        click.echo(corrections.text(calibrations), nl=False)
        return 0
    for calibration in calibrations:
        _print(console(), calibration)
    if len(points) < _FEW:
        click.echo(
            f"{len(points)} runs say little: values stay close to those of other engines, "
            f"and the interval is wide. {_FEW} to 8 runs are worth it.",
            err=True,
        )
    return 0


def _print(screen: Console, calibration: Calibration) -> None:
    engine = f"{calibration.engine} {calibration.version} on {calibration.accelerator}"
    screen.print(f"\n{engine}: {', '.join(calibration.models)}")
    values = grid("~VALUE", ">FITTED", "~")
    for name, value in calibration.values.items():
        note = "as other engines have it" if name in calibration.inherited else ""
        values.add_row(name, f"{value:.4g}", note)
    screen.print(values)
    errors = grid(
        "~HELD OUT" if len(calibration.residuals) > 1 else "~FITTED, NOT HELD OUT", ">ERROR"
    )
    for name, error in calibration.residuals.items():
        errors.add_row(name, f"{error:+.1%}")
    screen.print(errors)
    for each in calibration.corrections:
        screen.print(_words(each))


def _words(each: Correction) -> str:
    low, high = each.interval.low - 1, each.interval.high - 1
    return (
        f"{each.model}, {each.phase}: times x {each.factor:.3f}, 90 % interval {low:+.0%} to "
        f"{high:+.0%} ({each.rows} runs in {each.groups} groups)"
    )
