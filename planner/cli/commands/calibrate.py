"""``archipelago calibrate``: fit the performance model to a user's measurements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import click

from archipelago.perfmodel.calibration import corrections
from archipelago.perfmodel.calibration.from_runs import calibrate
from archipelago.perfmodel.calibration.measurements import read_points
from archipelago.perfmodel.errors import UnknownName

from ...formats.calibrations import name_of
from ...servingplan.own import OwnCatalogue, accelerator_of
from ..terminal import console, print_table
from .own import named_model, read_catalogue

FEW = 4
"""With fewer runs, values stay close to those of other engines."""


def run(
    path: str, columns: Mapping[str, str], target: str | None, catalogue: str | None, form: str
) -> int:
    """Fit, write the calibration file if ``target`` is set, and print the fit."""
    own = read_catalogue(catalogue) if catalogue else OwnCatalogue()
    card = cache(partial(accelerator_of, own=own.accelerators))
    shape = cache(partial(named_model, own=own.models))
    try:
        points = read_points(Path(path), columns, card, shape)
    except UnknownName as error:
        raise UnknownName(f"{error} in --catalogue {catalogue or 'FILE'}") from None
    calibrations = calibrate(points, source=Path(path).name)
    if target:
        corrections.write(calibrations, Path(target))
    if form == "yaml":
        click.echo(corrections.text(calibrations), nl=False)
        return 0
    out = console()
    for calibration in calibrations:
        out.print(f"\n{name_of(calibration)}: {', '.join(calibration.models)}")
        values = [
            (name, f"{value:.4g}", "inherited" if name in calibration.inherited else "")
            for name, value in calibration.values.items()
        ]
        print_table(out, ("~VALUE", ">FITTED", "~"), values, gap=0)
        fit = "~HELD OUT" if len(calibration.residuals) > 1 else "~FITTED, NOT HELD OUT"
        errors = ((name, f"{error:+.1%}") for name, error in calibration.residuals.items())
        print_table(out, (fit, ">ERROR"), errors, gap=0)
        for factor in calibration.corrections:
            low, high = factor.interval.low - 1, factor.interval.high - 1
            out.print(
                f"{factor.model}, {factor.phase}: times x {factor.factor:.3f}, 90 % interval "
                f"{low:+.0%} to {high:+.0%} ({factor.rows} runs in {factor.groups} groups)"
            )
        if not any(factor.phase == "prefill" for factor in calibration.corrections):
            out.print("prefill: these runs do not tell its scatter; the assumed interval stays")
    if len(points) < FEW:
        click.echo(
            f"{len(points)} runs are few: values stay close to those of other engines, "
            f"and the interval is wide. Give {FEW} to 8 runs.",
            err=True,
        )
    return 0
