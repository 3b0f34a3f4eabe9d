"""Calibration on a user's measurements: the same fit, with the published fits as priors.

Four to eight runs are enough to tell a new engine from the known ones. Fewer move the values less,
and give a wider interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..capacity.closed_loop import collocated_ttft
from ..catalogue import read
from ..catalogue.efficiency import ANY
from ..errors import MeasurementError
from ..model import FloatArray
from .benches import loop_benches, loop_parameters, loop_problem, served_model
from .corrections import Calibration, Correction, learn
from .fit import Fitted, fit_engine
from .held_out import held_out
from .measurements import EnginePoint, grouped

_MOVED = 0.1
"""A value that moved by less than this share of its prior's spread was not measured."""

_PLAUSIBLE = 20.0
"""Factor beyond which a time is not that of an engine, but a mistake."""


def calibrate(points: Sequence[EnginePoint], source: str = "") -> tuple[Calibration, ...]:
    """Return one calibration per accelerator, engine (with its version) and kind of model.

    Args:
        points: Closed-loop runs.
        source: Where they come from, for the file.

    Raises:
        MeasurementError: there are none, or one is off by more than a factor of 20.
        DoesNotFit: a run states a deployment whose weights do not fit.
    """
    sets = grouped(
        points,
        lambda point: (
            point.accelerator,
            point.engine,
            point.version,
            loop_parameters(served_model(point.model, point.precision, point.engine)),
        ),
    )
    return tuple(_calibration(runs, source) for runs in sets)


def relatives(names: Sequence[str], accelerator: str, engine: str) -> list[dict[str, float]]:
    """Return values of published fits with the same parameters.

    Of the same engine if there are any, else of any engine on the accelerator, else all.
    """
    rows: list[dict[str, Any]] = read.read("calibration/data/fits.yaml")["fits"]
    alike = [row for row in rows if set(row["values"]) == set(names)]
    of_engine = [row for row in alike if row["engine"] == engine]
    of_accelerator = [row for row in alike if row["accelerator"] == accelerator]
    return [row["values"] for row in of_engine or of_accelerator or alike]


def _calibration(points: Sequence[EnginePoint], source: str) -> Calibration:
    accelerator, engine = points[0].accelerator, points[0].engine
    problem = loop_problem(points)
    names = [parameter.name for parameter in problem.parameters]
    problem = problem.informed(relatives(names, accelerator, engine))
    # Times that no efficiency explains are in another unit, or of another run.
    off = np.exp(problem.residuals(problem.prior))
    worst = int(np.argmax(np.abs(np.log(off))))
    if not 1 / _PLAUSIBLE <= off[worst] <= _PLAUSIBLE:
        measured = 1e3 * problem.measured[worst]
        raise MeasurementError(
            f"{problem.groups[worst]}: TPOT of {measured:.4g} ms where engines like this have "
            f"about {measured * off[worst]:.3g} ms; check the unit (ms) and the deployment"
        )
    fitted = fit_engine(problem)
    groups = problem.groups
    many = len(np.unique(groups)) > 1
    residuals = held_out(problem, groups, fitted) if many else fitted.residuals
    values = {
        name: fitted.values[parameter.name]
        for parameter in problem.parameters
        for name in parameter.names
    }
    moved = np.abs(fitted.logs - problem.prior)
    return Calibration(
        accelerator=accelerator,
        engine=engine,
        version=points[0].version or ANY,
        models=tuple(dict.fromkeys(point.model for point in points)),
        values={"link": fitted.fit.overheads.link} | values,
        corrections=_corrections(points, fitted, residuals),
        residuals={
            str(name): float(np.median(np.expm1(residuals[groups == name])))
            for name in np.unique(groups)
        },
        inherited=tuple(
            parameter.name
            for parameter, by in zip(problem.parameters, moved, strict=True)
            if by < _MOVED * parameter.spread
        ),
        source=source,
    )


def _corrections(
    points: Sequence[EnginePoint], fitted: Fitted, residuals: FloatArray
) -> tuple[Correction, ...]:
    """Return per model a correction of decode, and of prefill if TTFT was measured.

    That of prefill is learnt from the runs with the fewest clients of each sweep.
    """
    accelerator = points[0].accelerator
    benches = loop_benches(points)
    model_of = np.array([b.deployment.model.name for b in benches for _ in b.groups])
    corrections = []
    for model in dict.fromkeys(map(str, model_of)):
        of_model = model_of == model
        decode = learn(
            accelerator, model, "decode", residuals[of_model], fitted.problem.groups[of_model]
        )
        # The fit has already moved the times; what is left is scatter, not a factor.
        corrections.append(
            replace(decode, factor=1.0, interval=decode.interval.scaled(decode.factor))
        )
        own = [point for point in points if point.model == model and np.isfinite(point.ttft)]
        least = [
            min(runs, key=lambda point: point.clients)
            for runs in grouped(own, lambda point: point.sweep)
        ]
        first_tokens = []
        for point in least:
            bench = loop_benches([point])[0]
            island = bench.deployment.roofline(fitted.fit)
            predicted = float(collocated_ttft(island, bench.loop)[0])
            first_tokens.append(np.log(predicted / point.ttft))
        if least:
            sweeps = np.array([point.sweep for point in least])
            corrections.append(learn(accelerator, model, "prefill", np.array(first_tokens), sweeps))
    return tuple(corrections)
