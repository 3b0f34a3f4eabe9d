"""A live decision as JSON. In planner processes only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from archipelago.operator.latency import largest_ttft
from archipelago.operator.livememory import remembered
from archipelago.operator.nodenames import to_real
from archipelago.operator.summary import decimal, summary
from archipelago.planner.canonical import canonical_text
from archipelago.planner.errors import CheckError
from archipelago.planner.replan.facts import Rung
from archipelago.planner.table import routing_content, validate_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.livememory import Memory
    from archipelago.operator.livequestion import Question
    from archipelago.planner.livedemand.demand import Observed
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.facts import Decision, Proposal, Reached
    from archipelago.planner.replan.rollout import Step
    from archipelago.planner.spec import ServingPlanSpec

Document: TypeAlias = dict[str, Any]
DONE: Final = {
    Rung.KEEP: "kept",
    Rung.REROUTE: "rerouted",
    Rung.FLIP: "flipped",
    Rung.RESHAPE: "reshaped",
}
UNKNOWN: Final = ("throughput", "headroom", "bound", "gap", "ttftMilliseconds", "tpotMilliseconds")
"""What a summary leaves out where no demand says it."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What was decided. ``table``: what stands at the end, stated; None where nothing was read.

    ``problem``: of the demand that it is stated for; None where there was none.
    """

    asked: Question
    decision: Decision
    memory: Memory
    steps: tuple[Step, ...] = ()
    table: Plan | None = None
    problem: PlanningProblem | None = None
    reasons: tuple[str, ...] = ()
    demand: Mapping[str, Observed] = field(default_factory=dict)


def reply_of(answer: Answer) -> Document:
    """The reply.

    Raises:
        CheckError: a table is not one: a defect of ours.
    """
    asked, decision = answer.asked, answer.decision
    now = _in_force(decision)
    return {
        "rung": _name(decision.rung),
        "trigger": decision.trigger.value,
        "steps": [step_document(asked.spec, step, asked.nodes) for step in answer.steps],
        "summary": _summary(answer),
        "message": _message(answer),
        "headroom": _figure(None if now is None else now.theta),
        "headroomLow": _figure(None if now is None else now.low),
        "regret": _figure(decision.regret),
        "degraded": _figure(decision.degraded),
        "rungs": [_rung(reached) for reached in decision.reached],
        "proposal": _proposal(decision.proposal),
        "wanted": None if decision.wanted is None else _name(decision.wanted),
        "reasons": list(answer.reasons),
        "demand": {name: _demand(seen) for name, seen in answer.demand.items()},
        "calibration": answer.memory.taught.rows(),
        "memory": remembered(answer.memory, asked.inputs),
    }


def table_text(asked: Question, plan: Plan) -> str:
    """The content of a plan's table as canonical JSON, with the planner's names of nodes.

    Raises:
        CheckError: it is not a valid table.
    """
    return real_text(asked.spec, plan, {})


def real_text(spec: ServingPlanSpec, plan: Plan, nodes: Mapping[str, str]) -> str:
    """The content as canonical JSON, with the cluster's names of nodes.

    Raises:
        CheckError: it is not a valid table.
    """
    content = to_real(routing_content(spec, plan), nodes).content
    if findings := validate_content(content):
        raise CheckError(findings)
    return canonical_text(content)


def _name(rung: Rung) -> str:
    return rung.name.capitalize()


def _figure(value: float | None) -> str | None:
    """A decimal string; None where there is no figure or no end to it."""
    return None if value is None or not math.isfinite(value) else decimal(value)


def step_document(spec: ServingPlanSpec, step: Step, nodes: Mapping[str, str]) -> Document:
    """One table, and what comes before it; with the cluster's names of the nodes that it uses.

    Raises:
        CheckError: it is not a valid table.
    """
    used = {node for island in step.plan.islands for node in island.nodes}
    return {
        "content": real_text(spec, step.plan, nodes),
        "wait": step.wait.value,
        "islands": list(step.islands),
        "nodes": sorted(nodes.get(node, node) for node in used),
        "message": step.message,
    }


def _in_force(decision: Decision) -> Reached | None:
    """What the table reaches that is published now: other weights count at once, islands do not."""
    taken = decision.rung if decision.rung is Rung.REROUTE else Rung.KEEP
    return next((r for r in decision.reached if r.rung is taken), None)


def _rung(reached: Reached) -> Document:
    return {
        "rung": _name(reached.rung),
        "theta": _figure(reached.theta),
        "low": _figure(reached.low),
        "gain": _figure(reached.gain),
        "gainLow": _figure(reached.gain_low),
        "disruptionGpuSeconds": _figure(reached.disruption),
        "changed": len(reached.changed),
        "note": reached.note,
    }


def _proposal(pending: Proposal | None) -> Document | None:
    if pending is None:
        return None
    reached = pending.reached
    gained = f"{reached.gain:.1%}" if math.isfinite(reached.gain) else "much"
    return {
        "hash": pending.hash,
        "rung": _name(reached.rung),
        "trigger": pending.trigger.value,
        "gain": _figure(reached.gain),
        "message": f"{_name(reached.rung).lower()} of {len(reached.changed)} islands gains "
        f"{gained} headroom for {reached.disruption:.0f} GPU-seconds"
        if reached.changed
        else f"other weights gain {gained} headroom",
    }


def _demand(seen: Observed) -> Document:
    lengths = seen.lengths
    return {
        "requestsPerSecond": decimal(seen.rate),
        "meanInput": decimal(float(lengths.probability @ lengths.length)),
        "meanOutput": decimal(float(lengths.probability @ lengths.output)),
        "censored": seen.raised,
    }


def _summary(answer: Answer) -> Document:
    """As of a plan; without a proven bound only where there is one, and honest about targets."""
    asked, plan = answer.asked, answer.table or answer.asked.plan
    if answer.problem is None or not plan.theta:
        found = summary(asked.spec, plan, None)
        return {key: value for key, value in found.items() if key not in UNKNOWN}
    found = summary(asked.spec, plan, largest_ttft(answer.problem, plan))
    proof = answer.memory.bound
    if not plan.certificate.complete:
        del found["bound"], found["gap"]
        if proof is not None and proof.theta >= plan.theta:
            gap = math.ceil((1 - plan.theta / proof.theta) * 1e6) / 1e6
            found |= {"bound": decimal(proof.theta), "gap": f"{gap:.6f}"}
    if found["slo"] == "Met" and plan.theta < 1:
        found["slo"] = "Missed"
    return found


def _message(answer: Answer) -> str:
    """One sentence: what was done, what that changed, and what the rungs above would reach."""
    decision = answer.decision
    if not decision.reached:
        return decision.message
    by_rung = {reached.rung: reached for reached in decision.reached}
    keep, taken = by_rung[Rung.KEEP], by_rung.get(decision.rung, by_rung[Rung.KEEP])
    if not math.isfinite(keep.theta):
        return "kept: no requests were observed"
    figures = f"{keep.theta:.2f}" + (f" -> {taken.theta:.2f}" if taken is not keep else "")
    others = [
        f"{_name(r.rung).lower()} {'at most' if r.bound_only else 'would reach'} {r.theta:.2f}"
        for r in decision.reached
        if r.rung > decision.rung and r.theta > taken.theta
    ]
    said = f"{DONE[decision.rung]}: headroom {figures} on the observed demand"
    taught = answer.memory.taught.said
    rest = [text for text in (", ".join(others), decision.message, taught) if text]
    return "; ".join([said, *rest])
