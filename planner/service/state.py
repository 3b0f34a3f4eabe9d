"""State that a re-planning reply hands to the next request, as JSON.

The operator stores it without reading it, and may lose it: then it is complete again after as many
windows as the spec looks at. State that cannot be read, or that belongs to other inputs, is
dropped. Times are seconds relative to the reply, so they are negative.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from archipelago.perfmodel.calibration.corrections import Correction
from archipelago.perfmodel.calibration.online import (
    Estimate,
    IslandWindow,
    Key,
    StoredEstimate,
    applied,
    corrections,
    from_stored,
    steady,
    to_stored,
    update,
)
from archipelago.perfmodel.model import FloatArray

from ..documents import listed
from ..errors import PlanFileError
from ..formats.calibrations import applicable
from ..problem import PlanningProblem
from ..replan.types import Candidate, Change, ChangeCost, Level, PolicyState, Proposal, Trigger
from ..table.plan_of_table import plan_of
from .messages import Message

SHOWN: Final = 3
"""Corrections that a sentence names."""


@dataclass(frozen=True, eq=False)
class OnlineCalibration:
    """Corrections of the performance model, learnt from running islands; time 0 is now.

    ``used``: the corrections in use; they move in steps. ``settled``: by island and phase, its
    windows in a row, up to the number that makes it warm. ``last``: digest of the last window
    that was learnt from. ``base``: digest of the calibration that was given, empty for none: what
    is learnt is a factor on its times.
    """

    state: Mapping[Key, Estimate] = field(default_factory=dict)
    used: tuple[Correction, ...] = ()
    settled: Mapping[str, int] = field(default_factory=dict)
    last: str = ""
    base: str = ""

    def after(self, windows: Iterable[IslandWindow]) -> OnlineCalibration:
        """Learn from further windows, which end now."""
        state = update(self.state, windows, 0.0)
        fresh = corrections(state, 0.0)
        # A factor that is not in use yet must be at least one step away from 1.
        before = {_key(c): Correction(*_key(c)) for c in fresh}
        before |= {_key(c): c for c in self.used}
        used = tuple(c for c in steady(tuple(before.values()), fresh) if c.rows)
        return replace(self, state=state, used=used)

    def corrected(self, problem: PlanningProblem) -> PlanningProblem:
        """Return the problem with the corrections in use; itself if there are none."""
        if not self.used:
            return problem
        engines = {
            model.architecture.name: (model.settings.engine, model.settings.version)
            for model in problem.models
        }
        calibrations = applied(problem.calibrations, self.used, engines)
        return replace(problem, calibrations=applicable(problem, calibrations))

    def rows(self) -> list[dict[str, str]]:
        """Return the learnt factors, their 90 % intervals and the factors in use, for people."""
        used = {_key(row): row.factor for row in self.used}
        return [
            {
                "accelerator": row.accelerator,
                "model": row.model,
                "phase": row.phase,
                "factor": f"{row.factor:.3f}",
                "low": f"{row.factor * row.interval.low:.3f}",
                "high": f"{row.factor * row.interval.high:.3f}",
                "used": f"{used.get(_key(row), 1.0):.3f}",
                "windows": str(row.rows),
            }
            for row in corrections(self.state, 0.0)
        ]

    @property
    def text(self) -> str:
        """Return which times are corrected; empty if none are."""
        named = [f"{c.accelerator} {c.phase} x {c.factor:.2f}" for c in self.used]
        return f"times corrected by measurement: {listed(named, SHOWN)}" if named else ""


def _key(correction: Correction) -> tuple[str, str, str]:
    return correction.accelerator, correction.model, correction.phase


@dataclass(frozen=True)
class ProvenBound:
    """Proven bound of theta for the demand of ``rate`` requests per second; ``age`` [s]."""

    theta: float
    rate: float
    age: float


@dataclass(frozen=True)
class LeastCost:
    """Proven bound of the cost [$/h] for an upper demand of ``load`` [req/s]; ``age`` [s].

    ``tried``: bound for which the planner last found nothing cheaper that pays.
    """

    cost: float
    load: float
    age: float
    tried: float = math.inf


@dataclass(frozen=True, eq=False)
class ReplanState:
    """State of the policy and of calibration; time 0 is now.

    ``rates``: by model, of its ranges and beyond [req/s], of the last complete window.
    ``proposed``: table of the pending proposal. ``counted``: the last window is in ``policy``.
    ``observed``: upper demand by model in each of the last windows [req/s].
    """

    policy: PolicyState = field(default_factory=PolicyState)
    rates: Mapping[str, FloatArray] = field(default_factory=dict)
    bound: ProvenBound | None = None
    proposed: str | None = None
    counted: bool = False
    calibration: OnlineCalibration = field(default_factory=OnlineCalibration)
    least_cost: LeastCost | None = None
    observed: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True)
class StoredProposal:
    """A proposal in JSON; its plan is the routing table ``content``."""

    hash: str
    base: str
    at: float
    trigger: Trigger
    level: Level
    theta: float
    low: float
    gain: float
    gain_low: float
    disruption: float
    changed: tuple[str, ...]
    content: str
    dollars: ChangeCost | None = None


@dataclass(frozen=True, kw_only=True)
class StoredState(Message):
    """``ReplanState`` in JSON, made for ``inputs``; ``calibration`` is read on its own.

    What a restart loses has a default: ``knowledge.Knowledge`` is such a state.
    """

    version: Literal[2] = 2
    inputs: str
    gainful: tuple[tuple[Level, ...], ...] = ()
    unsafe: int = 0
    changes: tuple[Change, ...] = ()
    last_solve: Annotated[float, Field(alias="asked")] = -math.inf
    headrooms: tuple[tuple[float, float], ...] = ()
    least_cost: LeastCost | None = None
    proposal: StoredProposal | None = None
    rates: dict[str, tuple[float, ...]]
    observed: tuple[dict[str, float], ...] = ()
    bound: ProvenBound | None = None
    counted: bool = False
    calibration: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StoredCalibration(Message):
    """``OnlineCalibration`` in JSON; ``settled``: islands by their number of windows."""

    learnt: tuple[StoredEstimate, ...]
    used: tuple[Correction, ...]
    settled: dict[int, tuple[str, ...]] = field(default_factory=dict)
    last: str
    base: str = ""


STATE: Final = TypeAdapter(StoredState)
CALIBRATION: Final = TypeAdapter(StoredCalibration)


def encode_state(state: ReplanState, inputs: str) -> dict[str, Any]:
    """Return the state as JSON for the next request."""
    policy, pending = state.policy, state.policy.proposal
    proposal = None
    if pending is not None and state.proposed is not None:
        candidate = pending.candidate
        proposal = StoredProposal(
            hash=pending.hash,
            base=pending.base,
            at=pending.at,
            trigger=pending.trigger,
            level=candidate.level,
            theta=candidate.theta,
            low=candidate.low,
            gain=candidate.gain,
            gain_low=candidate.gain_low,
            disruption=candidate.disruption,
            changed=tuple(sorted(candidate.changed)),
            content=state.proposed,
            dollars=candidate.dollars,
        )
    settled: dict[int, tuple[str, ...]] = {}
    for name, count in sorted(state.calibration.settled.items()):
        settled[count] = (*settled.get(count, ()), name)
    calibration = StoredCalibration(
        learnt=to_stored(state.calibration.state, 0.0),
        used=state.calibration.used,
        settled=settled,
        last=state.calibration.last,
        base=state.calibration.base,
    )
    stored = StoredState(
        inputs=inputs,
        gainful=tuple(tuple(sorted(levels)) for levels in policy.gainful),
        unsafe=policy.unsafe,
        changes=policy.changes,
        last_solve=policy.last_solve,
        headrooms=policy.headrooms,
        least_cost=state.least_cost,
        proposal=proposal,
        rates={name: tuple(state.rates[name].tolist()) for name in sorted(state.rates)},
        observed=tuple(dict(sorted(window.items())) for window in state.observed),
        bound=state.bound,
        counted=state.counted,
        calibration=CALIBRATION.dump_python(calibration, mode="json", by_alias=True),
    )
    document: dict[str, Any] = json.loads(STATE.dump_json(stored, by_alias=True))
    return document


def decode_state(
    document: Mapping[str, Any], age: float, inputs: str, problem: PlanningProblem, base: str = ""
) -> ReplanState:
    """Return the state of ``age`` seconds ago; empty if it cannot be read.

    Of other inputs only past changes, demand and the calibration are kept. ``base``: see
    ``decode_calibration``.
    """
    nothing = ReplanState(calibration=OnlineCalibration(base=base))
    try:
        stored = STATE.validate_python(document)
        changes = tuple(replace(change, at=change.at - age) for change in stored.changes)
        calibration = decode_calibration(document, age, base)
        policy = PolicyState(changes=changes, last_solve=stored.last_solve - age)
        if stored.inputs != inputs:
            return ReplanState(policy, calibration=calibration, observed=stored.observed)
        sizes = {model.name: len(model.ranges) + 1 for model in problem.models}
        bound, pending, proposal = stored.bound, stored.proposal, None
        least = stored.least_cost
        if pending is not None:
            candidate = Candidate(
                pending.level,
                theta=pending.theta,
                low=pending.low,
                gain=pending.gain,
                gain_low=pending.gain_low,
                disruption=pending.disruption,
                changed=frozenset(pending.changed),
                plan=plan_of(json.loads(pending.content), problem),
                dollars=pending.dollars,
            )
            proposed_at = pending.at - age
            proposal = Proposal(pending.hash, pending.base, proposed_at, candidate, pending.trigger)
        gainful = tuple(frozenset(levels) for levels in stored.gainful)
        return ReplanState(
            replace(
                policy,
                gainful=gainful,
                unsafe=stored.unsafe,
                proposal=proposal,
                headrooms=stored.headrooms,
            ),
            {n: np.array(row) for n, row in stored.rates.items() if len(row) == sizes.get(n)},
            None if bound is None else replace(bound, age=bound.age + age),
            None if pending is None else pending.content,
            stored.counted,
            calibration,
            least and replace(least, age=least.age + age),
            stored.observed,
        )
    except (ValidationError, PlanFileError, ValueError):
        return nothing


def upper_demand(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the highest upper demand of the last windows by model [req/s]; empty if unknown."""
    try:
        windows = STATE.validate_python(document).observed
    except ValidationError:
        return {}
    models = {name for window in windows for name in window}
    return {name: max(window.get(name, 0.0) for window in windows) for name in sorted(models)}


def decode_calibration(
    document: Mapping[str, Any], age: float, base: str = ""
) -> OnlineCalibration:
    """Return the calibration in the state of ``age`` seconds ago; empty if it cannot be read.

    Empty too if it was learnt over another ``base``, the digest of the calibration that is given.
    """
    nothing = OnlineCalibration(base=base)
    try:
        stored = CALIBRATION.validate_python(document.get("calibration"))
        factors = ((c.factor, c.interval.low, c.interval.high) for c in stored.used)
        if stored.base != base:
            return nothing
        if not all(math.isfinite(factor) for row in factors for factor in row):
            return nothing
        settled = {name: count for count, names in stored.settled.items() for name in names}
        learnt = from_stored(stored.learnt, -age)
        return OnlineCalibration(learnt, stored.used, settled, stored.last, base)
    except (ValidationError, AttributeError):
        return nothing
