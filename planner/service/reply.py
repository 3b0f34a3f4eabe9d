"""A decision as a reply: tables, figures and sentences for the status.

Every table is validated before it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..demand.estimate import ObservedDemand
from ..plan import Plan
from ..problem import PlanningProblem
from ..replan.rollout import Step, change_key, islands_phrase
from ..replan.types import Decision, Level, Trigger
from ..servingplan import ServingPlanSpec
from .inputs import ReplanInput
from .messages import (
    NEEDS_DEMAND,
    DemandReply,
    LevelReply,
    ProposalReply,
    ReplanReply,
    TableStep,
)
from .plan import checked_table, decimal, largest_ttft, summary
from .state import ReplanState, encode_state

DONE: Final = {
    Level.KEEP: "kept",
    Level.REROUTE: "rerouted",
    Level.FLIP: "flipped",
    Level.RESHAPE: "reshaped",
}


@dataclass(frozen=True, eq=False)
class ReplanOutcome:
    """A decision with its tables.

    ``table``: the plan at the end with what it sustains; None if nothing was evaluated.
    ``problem``: of the demand that it is stated for; None if there was none.
    """

    request: ReplanInput
    decision: Decision
    state: ReplanState
    steps: tuple[Step, ...] = ()
    table: Plan | None = None
    problem: PlanningProblem | None = None
    reasons: tuple[str, ...] = ()
    demand: Mapping[str, ObservedDemand] = field(default_factory=dict)


def reply_of(outcome: ReplanOutcome) -> ReplanReply:
    """Return the reply.

    Raises:
        CheckError: a table is not valid: a defect of ours.
    """
    request, decision = outcome.request, outcome.decision
    # Other weights count at once, changed islands do not.
    level = decision.level if decision.level is Level.REROUTE else Level.KEEP
    now = next((c for c in decision.candidates if c.level is level), None)
    proposal = None
    if (pending := decision.proposal) is not None:
        candidate = pending.candidate
        gain = f"{candidate.gain:.1%}" if math.isfinite(candidate.gain) else "much"
        message = f"other weights gain {gain} headroom"
        if candidate.changed:
            dollars = candidate.dollars
            what = f"gains {gain} headroom"
            if pending.trigger is Trigger.GAIN and dollars is not None:
                what = f"saves ${dollars.saves:.2f}/h"
            message = (
                f"a {_name(candidate.level).lower()} of {islands_phrase(candidate.changed)} {what} "
                f"for {candidate.disruption:.0f} GPU-seconds out of service"
            )
        proposal = ProposalReply(
            hash=pending.hash,
            level=_name(candidate.level),
            trigger=pending.trigger.value,
            gain=_figure(candidate.gain),
            message=message,
        )
    return ReplanReply(
        level=_name(decision.level),
        trigger=decision.trigger.value,
        steps=tuple(
            table_step(request.spec, step, request.request.nodes) for step in outcome.steps
        ),
        change=change_key(request.plan, decision.plan) if decision.plan else "",
        summary=_summary(outcome),
        message=_message(outcome),
        headroom=_figure(now.theta if now else None),
        headroom_low=_figure(now.low if now else None),
        regret=_figure(decision.regret),
        degraded=_figure(decision.degraded),
        levels=tuple(
            LevelReply(
                level=_name(candidate.level),
                theta=_figure(candidate.theta),
                low=_figure(candidate.low),
                gain=_figure(candidate.gain),
                gain_low=_figure(candidate.gain_low),
                disruption_gpu_seconds=_figure(candidate.disruption),
                changed=len(candidate.changed),
                note=candidate.note,
            )
            for candidate in decision.candidates
        ),
        proposal=proposal,
        requested_level=(
            None if decision.requested_level is None else _name(decision.requested_level)
        ),
        held=decision.held,
        reasons=outcome.reasons,
        demand={
            name: DemandReply(
                requests_per_second=decimal(demand.rate),
                mean_input=decimal(float(demand.lengths.probability @ demand.lengths.length)),
                mean_output=decimal(float(demand.lengths.probability @ demand.lengths.output)),
                censored=demand.censored,
            )
            for name, demand in outcome.demand.items()
        },
        calibration=tuple(outcome.state.calibration.rows()),
        state=encode_state(outcome.state, request.request.inputs),
    )


def table_step(spec: ServingPlanSpec, step: Step, nodes: Mapping[str, str]) -> TableStep:
    """Return one table of a rollout, with the cluster's names of nodes.

    Raises:
        CheckError: it is not a valid table.
    """
    used = {node for island in step.plan.islands for node in island.nodes}
    return TableStep(
        content=checked_table(spec, step.plan, nodes),
        wait=step.wait,
        islands=step.islands,
        nodes=tuple(sorted(nodes.get(node, node) for node in used)),
        message=step.message,
    )


def _name(level: Level) -> str:
    return level.name.capitalize()


def _figure(value: float | None) -> str | None:
    """Return a decimal string; None if there is no figure or it is infinite."""
    return None if value is None or not math.isfinite(value) else decimal(value)


def _summary(outcome: ReplanOutcome) -> dict[str, Any]:
    """Return the summary of the plan; a bound only if one is proven, Missed if theta is below 1."""
    request, plan = outcome.request, outcome.table or outcome.request.plan
    if outcome.problem is None or not plan.theta:
        fields = summary(request.spec, plan, None)
        return {key: value for key, value in fields.items() if key not in NEEDS_DEMAND}
    fields = summary(request.spec, plan, largest_ttft(outcome.problem, plan))
    bound = outcome.state.bound
    if not plan.certificate.complete:
        del fields["bound"], fields["gap"]
        if bound is not None and bound.theta >= plan.theta:
            gap = math.ceil((1 - plan.theta / bound.theta) * 1e6) / 1e6
            fields |= {"bound": decimal(bound.theta), "gap": f"{gap:.6f}"}
    if fields["slo"] == "Met" and plan.theta < 1:
        fields["slo"] = "Missed"
    return fields


def _message(outcome: ReplanOutcome) -> str:
    """Return one sentence: the change, its effect, and what higher levels would reach."""
    decision = outcome.decision
    if not decision.candidates:
        return decision.message
    by_level = {candidate.level: candidate for candidate in decision.candidates}
    keep = by_level[Level.KEEP]
    taken = by_level.get(decision.level, keep)
    if not math.isfinite(keep.theta):
        return "kept: no requests were observed"
    figures = f"{keep.theta:.2f}" + (f" -> {taken.theta:.2f}" if taken is not keep else "")
    higher = ", ".join(
        f"{_name(r.level).lower()} {'at most' if r.bound_only else 'would reach'} {r.theta:.2f}"
        for r in decision.candidates
        if r.level > decision.level and r.theta > taken.theta
    )
    expected = " or the scheduled, if that is more" if outcome.request.request.expected else ""
    change = f"{DONE[decision.level]}: headroom {figures} on the observed demand{expected}"
    parts = (change, higher, decision.message, outcome.state.calibration.text)
    return "; ".join(filter(None, parts))
