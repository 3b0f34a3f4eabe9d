"""``archipelago calibrate``: the performance model fitted to a user's own measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from archipelago.perfmodel import calibration as files
from archipelago.perfmodel.fits.calibrate import calibrate
from archipelago.perfmodel.measurements.user import read_points
from archipelago.planner.terminal import console, grid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from archipelago.perfmodel.calibration import Calibration, Correction

_FEW = 4
"""Runs below which the values stay close to what other engines have."""


def run(path: str, given: Mapping[str, str], target: str | None, form: str) -> int:
    """Fit, write the calibration file if asked, and print what was learnt."""
    points = read_points(Path(path), given)
    found = calibrate(points, source=Path(path).name)
    if target:
        files.write(found, Path(target))
    if form == "yaml":
        click.echo(files.text(found), nl=False)
        return 0
    for one in found:
        _print(console(), one)
    if len(points) < _FEW:
        click.echo(
            f"{len(points)} runs say little: values stay close to those of other engines, "
            f"and the interval is wide. {_FEW} to 8 runs are worth it.",
            err=True,
        )
    return 0


def _print(screen: Console, one: Calibration) -> None:
    screen.print(f"\n{one.engine} {one.version} on {one.accelerator}: {', '.join(one.models)}")
    values = grid("~VALUE", ">FITTED", "~")
    for name, value in one.values.items():
        note = "as other engines have it" if name in one.inherited else ""
        values.add_row(name, f"{value:.4g}", note)
    screen.print(values)
    errors = grid("~HELD OUT" if len(one.residuals) > 1 else "~FITTED, NOT HELD OUT", ">ERROR")
    for name, error in one.residuals.items():
        errors.add_row(name, f"{error:+.1%}")
    screen.print(errors)
    for each in one.corrections:
        screen.print(_words(each))


def _words(each: Correction) -> str:
    low, high = each.interval.low - 1, each.interval.high - 1
    return (
        f"{each.model}, {each.phase}: times x {each.factor:.3f}, 90 % interval {low:+.0%} to "
        f"{high:+.0%} ({each.rows} runs in {each.groups} groups)"
    )
