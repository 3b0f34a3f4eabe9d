"""What one live reply remembers for the next question, as JSON; its times are ages [s].

The operator keeps it as it is, or loses it: then it is whole again after as many windows as the
spec looks at. What cannot be read, or belongs to other inputs, is forgotten.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from archipelago.operator.livelearnt import Taught, taught_document, taught_from
from archipelago.planner.errors import PlanFileError
from archipelago.planner.published import plan_of
from archipelago.planner.replan.choice import MOST_GAIN
from archipelago.planner.replan.facts import Act, Proposal, Reached, Rung, State, Trigger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import PlanningProblem

Document: TypeAlias = dict[str, Any]
VERSION: Final = 1
MISREAD: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, PlanFileError)


@dataclass(frozen=True)
class Bound:
    """Proven of any plan for the demand of ``rate`` requests per second; ``age`` [s]."""

    theta: float
    rate: float
    age: float


@dataclass(frozen=True, eq=False)
class Memory:
    """The state of the decision at time 0, which is now.

    ``rates``: by model, of its ranges and beyond [req/s], of the last window that missed nothing.
    ``proposed``: the content of the pending proposal. ``counted``: the last window is in the state.
    ``taught``: by running islands, about times; of machines, and so beyond the inputs of a plan.
    """

    state: State = field(default_factory=State)
    rates: Mapping[str, FloatArray] = field(default_factory=dict)
    bound: Bound | None = None
    proposed: str | None = None
    counted: bool = False
    taught: Taught = field(default_factory=Taught)


def recalled(
    document: Mapping[str, Any], age: float, inputs: str, problem: PlanningProblem
) -> Memory:
    """What is remembered; of other inputs only what was changed when, and what times are."""
    try:
        if document.get("version") != VERSION:
            return Memory()
        taught = remembered_times(document, age)
        acts = tuple(_act(act, age) for act in document["acts"])
        asked = document["asked"]
        state = State(acts=acts, asked=-math.inf if asked is None else -(asked + age))
        if document["inputs"] != inputs:
            return Memory(state, taught=taught)
        return replace(_whole(document, age, state, problem), taught=taught)
    except MISREAD:
        return Memory()


def remembered_times(document: Mapping[str, Any], age: float) -> Taught:
    """What is remembered of times alone, for a plan that is made anew."""
    return taught_from(document.get("calibration") or {}, age)


def _whole(
    document: Mapping[str, Any], age: float, state: State, problem: PlanningProblem
) -> Memory:
    gainful = tuple(frozenset(map(Rung, rungs)) for rungs in document["gainful"])
    pending, bound = document["proposal"], document["bound"]
    sizes = {model.name: len(model.ranges) + 1 for model in problem.models}
    rates = {name: np.array(row, dtype=np.float64) for name, row in document["rates"].items()}
    return Memory(
        replace(
            state,
            gainful=gainful,
            unsafe=int(document["unsafe"]),
            proposal=None if pending is None else _pending(pending, age, problem),
        ),
        {name: row for name, row in rates.items() if row.shape == (sizes.get(name),)},
        None if bound is None else Bound(bound["theta"], bound["rate"], bound["age"] + age),
        None if pending is None else pending["content"],
        bool(document["counted"]),
    )


def remembered(memory: Memory, inputs: str) -> Document:
    """The memory as the next question brings it back."""
    state = memory.state
    return {
        "version": VERSION,
        "inputs": inputs,
        "gainful": [sorted(map(int, rungs)) for rungs in state.gainful],
        "unsafe": state.unsafe,
        "acts": [
            {
                "age": -act.at,
                "rung": int(act.rung),
                "trigger": act.trigger.value,
                "changed": sorted(act.changed),
            }
            for act in state.acts
        ],
        "asked": None if math.isinf(state.asked) else -state.asked,
        "proposal": _stored(state.proposal, memory.proposed),
        "rates": {name: memory.rates[name].tolist() for name in sorted(memory.rates)},
        "bound": None if memory.bound is None else vars(memory.bound),
        "counted": memory.counted,
        "calibration": taught_document(memory.taught),
    }


def _act(document: Mapping[str, Any], age: float) -> Act:
    return Act(
        -(document["age"] + age),
        Rung(document["rung"]),
        Trigger(document["trigger"]),
        frozenset(document["changed"]),
    )


def _stored(pending: Proposal | None, content: str | None) -> Document | None:
    if pending is None or content is None:
        return None
    reached = pending.reached
    return {
        "hash": pending.hash,
        "base": pending.base,
        "age": -pending.at,
        "trigger": pending.trigger.value,
        "rung": int(reached.rung),
        "theta": reached.theta,
        "low": reached.low,
        "gain": min(reached.gain, MOST_GAIN),
        "gainLow": min(reached.gain_low, MOST_GAIN),
        "disruption": reached.disruption,
        "changed": sorted(reached.changed),
        "content": content,
    }


def _pending(document: Mapping[str, Any], age: float, problem: PlanningProblem) -> Proposal:
    reached = Reached(
        Rung(document["rung"]),
        theta=document["theta"],
        low=document["low"],
        gain=document["gain"],
        gain_low=document["gainLow"],
        disruption=document["disruption"],
        changed=frozenset(document["changed"]),
        plan=plan_of(json.loads(document["content"]), problem),
    )
    return Proposal(
        document["hash"],
        document["base"],
        -(document["age"] + age),
        reached,
        Trigger(document["trigger"]),
    )
