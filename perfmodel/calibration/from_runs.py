"""Calibration on a user's measurements: factors on the catalogue's defaults.

Four to eight runs are enough to tell a new engine from the known ones. Fewer move the values less,
and give a wider interval. TTFT of a closed loop is a queue: it is read from runs with one client
alone, where it is the prompt and a fixed time of the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..catalogue.efficiency import ANY, EngineFit
from ..errors import MeasurementError
from ..model import FloatArray
from .benches import card_of, loop_benches, loop_parameters, loop_problem, served_model
from .corrections import Calibration, Correction, learn
from .fit import Fitted, fit_engine
from .held_out import held_out
from .measurements import EnginePoint, grouped

_MOVED = 0.1
"""A value that moved by less than this share of its prior's spread was not measured."""

_HEAVY = 0.25
"""Share of a step that prompts take, from which its time says anything about them."""

_APART = 2.0
"""Ratio of two prompt lengths that tells the prompt's time from a fixed one."""

_PLAUSIBLE = 20.0
"""Factor beyond which a time is not that of an engine, but a mistake."""


def calibrate(
    points: Sequence[EnginePoint], source: str = "", base: EngineFit | None = None
) -> tuple[Calibration, ...]:
    """Return one calibration per accelerator, engine (with its version) and kind of model.

    Args:
        points: Closed-loop runs.
        source: Where they come from, for the file.
        base: Values to start from; the catalogue's without.

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
            loop_parameters(served_model(point)),
        ),
    )
    return tuple(_calibration(runs, source, base) for runs in sets)


def _calibration(points: Sequence[EnginePoint], source: str, base: EngineFit | None) -> Calibration:
    accelerator, engine = points[0].accelerator, points[0].engine
    problem = loop_problem(points, base)
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
    request = _request(points, fitted)
    used = _operands(points)
    values = {
        name: value
        for name, value in problem.changed(fitted.fit).items()
        if "." not in name or name.partition(".")[0] in used
    }
    moved = np.abs(fitted.logs - problem.prior)
    return Calibration(
        accelerator=accelerator,
        engine=engine,
        version=points[0].version or ANY,
        models=tuple(dict.fromkeys(point.model for point in points)),
        values=values | ({} if request is None else {"request": request}),
        corrections=_corrections(points, fitted, residuals, request),
        residuals={
            str(name): float(np.median(np.expm1(residuals[groups == name])))
            for name in np.unique(groups)
        },
        inherited=tuple(
            name
            for name in values
            for parameter, by in zip(problem.parameters, moved, strict=True)
            if name.rpartition(".")[2] in parameter.names and by < _MOVED * parameter.spread
        ),
        source=source,
    )


def _operands(points: Sequence[EnginePoint]) -> set[str]:
    """Return the operand types that the models' products run in on this accelerator."""
    card = card_of(points[0])
    precisions = [served_model(point).precision for point in points]
    formats = {t for p in precisions for t in (p.compute, p.expert_compute)}
    return {card.operand(each) for each in (*formats, "bf16")}


def _corrections(
    points: Sequence[EnginePoint], fitted: Fitted, residuals: FloatArray, request: float | None
) -> tuple[Correction, ...]:
    """Return per model a correction of decode, and of prefill if the runs tell.

    The fit has already moved the times, so what is left of either is scatter, not a factor.
    """
    benches = loop_benches(points)
    model_of = np.array([b.deployment.model.name for b in benches for _ in b.groups])
    shares = _prompt_shares(fitted)
    corrections = []
    for model in dict.fromkeys(map(str, model_of)):
        of_model = model_of == model
        groups = fitted.problem.groups[of_model]
        corrections.append(_scatter(points, model, "decode", residuals[of_model], groups))
        alone = _alone([point for point in points if point.model == model])
        if request is not None:
            names = np.array([point.sweep for point in alone])
            left = np.array([_first_token(point, fitted, request) for point in alone])
            corrections.append(_scatter(points, model, "prefill", left, names))
            continue
        heavy = of_model & (shares >= _HEAVY)
        groups = fitted.problem.groups[heavy]
        if len(np.unique(groups)) > 1:
            # A step's error is the prompts' divided by their share, if it is theirs alone.
            left = residuals[heavy] / shares[heavy]
            corrections.append(_scatter(points, model, "prefill", left, groups))
    return tuple(corrections)


def _scatter(
    points: Sequence[EnginePoint], model: str, phase: str, left: FloatArray, groups: FloatArray
) -> Correction:
    """Return a correction without a factor, with the interval that the residuals need."""
    learnt = learn(points[0].accelerator, model, phase, left, groups)
    return replace(learnt, factor=1.0, interval=learnt.interval.scaled(learnt.factor))


def _prompt_shares(fitted: Fitted) -> FloatArray:
    """Return the share of each row's predicted TPOT in which prompts hold it up, shape (rows,)."""
    problem, fit = fitted.problem, fitted.fit
    without = fit.replaced({"interference": 0.0})
    parts = [1 - bench.predict(without) / bench.predict(fit) for bench in problem.benches]
    return np.concatenate(parts)


def _alone(points: Sequence[EnginePoint]) -> list[EnginePoint]:
    """Return the runs with one client: their TTFT has no queue."""
    return [point for point in points if point.clients == 1 and np.isfinite(point.ttft)]


def _request(points: Sequence[EnginePoint], fitted: Fitted) -> float | None:
    """Return the fixed time of a request outside the GPUs [s], from runs with one client.

    TTFT is that plus the prompt, whose time grows with the length: the median of what is left of
    the lengths. None if there are fewer than two lengths that differ by a factor of two.
    """
    alone = _alone(points)
    lengths = [point.inputs for point in alone]
    if not alone or max(lengths) < _APART * min(lengths):
        return None
    left = [point.ttft - _prompt(point, fitted) for point in alone]
    return max(0.0, float(np.median(left)))


def _prompt(point: EnginePoint, fitted: Fitted) -> float:
    """Return predicted seconds of the prompt of a run, without the request's fixed time."""
    bench = loop_benches([point])[0]
    island = bench.deployment.roofline(fitted.fit.replaced({"request": 0.0}))
    return float(island.prefill_time(bench.loop.length)[0])


def _first_token(point: EnginePoint, fitted: Fitted, request: float) -> float:
    """Return log(predicted / measured) of a prompt alone, its fixed time taken off both."""
    predicted = _prompt(point, fitted)
    return math.log(predicted / max(point.ttft - request, predicted / _PLAUSIBLE))
