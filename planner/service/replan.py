"""The live question answered: what the published table is worth now, and what takes its place.

The same request gives the same reply, byte for byte. In planner processes only. What is decided,
``planner.replan`` says; here a request becomes its arguments, and the decision becomes tables, each
checked before it leaves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from archipelago.operator.failures import attempted
from archipelago.operator.livecalibration import taught_by
from archipelago.operator.livedecision import Seen, chosen, mended, repaired_just_now
from archipelago.operator.livememory import Memory, recalled
from archipelago.operator.liveplan import planned_anew
from archipelago.operator.livequestion import Question, question_of
from archipelago.operator.livereply import Answer, reply_of
from archipelago.planner.livedemand.demand import Observed, observed
from archipelago.planner.livedemand.faults import Effect, Fault, Reason
from archipelago.planner.published import accounted
from archipelago.planner.replan.decide import decide
from archipelago.planner.replan.facts import Decision, Observation, Reached, Rung, Trigger
from archipelago.planner.replan.limits import remembered as acted
from archipelago.planner.replan.observed import (
    believed,
    known_problem,
    observed_problem,
    planned_problem,
    rate_draws,
)
from archipelago.planner.replan.repair import Unrepairable
from archipelago.planner.replan.rollout import Step, Wait, routed, withheld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.operator.scraped import Scraped
    from archipelago.planner.problem import PlanningProblem

Reply: TypeAlias = dict[str, Any]


def live_answer(request: Mapping[str, Any]) -> Reply:
    """Decide about one window, or one loss, of one plan, or plan it anew beside what runs.

    What goes wrong has a reason.
    """
    asked = request["live"]
    if asked.get("plan"):
        return attempted(lambda: planned_anew(asked))
    return attempted(lambda: {"live": reply_of(_answer(question_of(asked)))})


def _answer(asked: Question) -> Answer:
    memory = recalled(asked.memory, asked.age, asked.inputs, asked.problem)
    silent = _silent(asked)
    if asked.lost & {island.name for island in asked.plan.islands} or silent:
        return _repaired(asked, memory, silent)
    if asked.window is not None:
        return _window(asked, memory, asked.window)
    if repaired_just_now(memory):
        return mended(Seen(asked, _planned(asked, memory), None, memory))
    return _nothing(asked, memory, "nothing was observed and no node is lost")


def _planned(asked: Question, memory: Memory) -> PlanningProblem:
    return planned_problem(memory.taught.corrected(asked.problem))


def _silent(asked: Question) -> frozenset[str]:
    """Islands that are not ready and that the published table sends requests to."""
    used = routed(asked.plan)
    mine = (island for island in asked.plan.islands if island.group in used)
    return frozenset(i.name for i in mine if i.name in asked.unready and i.name not in asked.lost)


def _nothing(asked: Question, memory: Memory, message: str) -> Answer:
    state = memory.state
    pending = state.proposal
    decision = Decision(Rung.KEEP, Trigger.NONE, None, state, message=message, proposal=pending)
    return Answer(asked, decision, memory)


def _repaired(asked: Question, memory: Memory, silent: frozenset[str]) -> Answer:
    """Lost islands leave, those that are not ready stay listed: arithmetic, no benchmark.

    Nothing is stated of the new table but what it costs, so that only its form is checked.
    """
    seen = Observation(asked.problem, asked.plan, lost=asked.lost, inputs=asked.inputs)
    decision = decide(seen, memory.state, 0.0, asked.limits)
    table = withheld(decision.plan or asked.plan, asked.unready)
    if decision.plan is None and not silent:
        return _nothing(asked, memory, decision.message)
    if isinstance(table, Unrepairable):
        return _nothing(asked, memory, table.message)
    said = [] if decision.plan is None else [decision.message]
    if silent:
        said.append(f"{len(silent)} islands are not ready and get no requests")
    if decision.plan is None:
        quiet = Reached(Rung.KEEP, 0.0, 0.0)
        state = acted(memory.state, quiet, Trigger.REPAIR, asked.limits, 0.0)
        decision = replace(decision, trigger=Trigger.REPAIR, state=state)
    table, message = accounted(table, asked.problem), "; ".join(said)
    decision = replace(decision, plan=table, message=message, wanted=Rung.REROUTE)
    memory = replace(memory, state=decision.state, proposed=None, counted=False)
    return Answer(
        asked, decision, memory, steps=(Step(table, Wait.NONE, (), message),), table=table
    )


def _window(asked: Question, memory: Memory, window: Mapping[str, Scraped]) -> Answer:
    """Observe the demand of every model and decide; a window that is not believed decides nothing.

    What waits for approval may be carried out all the same, for the demand that was seen last.
    """
    seen, faults = _observed(asked, memory, window)
    reasons = tuple(sorted({fault.reason.value for fault in faults}))
    if seen is None:
        problem = known_problem(memory.taught.corrected(asked.problem), memory.rates)
        doubt = "no demand comes of this window: " + ", ".join(reasons)
        if problem is None:
            return replace(_nothing(asked, memory, doubt), reasons=reasons)
        about = Seen(asked, problem, None, memory)
        answer = chosen(about, believed=False)
        message = answer.decision.message if answer.steps else doubt
        decision = replace(answer.decision, message=message)
        return replace(answer, decision=decision, reasons=reasons)
    seconds = min(entry.window.flow.seconds for entry in window.values())
    rates = {n: o.rates.value for n, o in seen.items() if o.known > 0}
    memory = replace(memory, rates={**memory.rates, **rates})
    problem = observed_problem(asked.problem, seen, seconds)
    memory = _taught(asked, memory, problem, seen)
    problem = memory.taught.corrected(problem)
    about = Seen(asked, problem, rate_draws(problem, seen), memory)
    return replace(chosen(about), reasons=reasons, demand=seen)


def _taught(
    asked: Question, memory: Memory, problem: PlanningProblem, seen: Mapping[str, Observed]
) -> Memory:
    """With what the islands of the window taught; a bound is proven for the times it was made with.

    ``problem``: of the observed demand, with the times of the performance model.
    """
    taught = taught_by(asked, problem, seen, memory.taught)
    bound = memory.bound if taught.used == memory.taught.used else None
    return replace(memory, taught=taught, bound=bound)


def _observed(
    asked: Question, memory: Memory, window: Mapping[str, Scraped]
) -> tuple[dict[str, Observed] | None, list[Fault]]:
    """The demand of every model, None where one has none to believe; and what matters of faults."""
    found: dict[str, Observed] = {}
    faults: list[Fault] = []
    for index, model in enumerate(asked.problem.models):
        entry = window.get(model.name)
        if entry is None:
            faults.append(Fault(Reason.NO_SAMPLES, model.name))
            continue
        random = np.random.default_rng([asked.seed, index])
        seen = observed(entry.window, believed(model, memory.rates.get(model.name)), random)
        faults += [fault for fault in seen.faults if fault.effect is not Effect.NOTED]
        if isinstance(seen, Observed):
            found[model.name] = seen
    return found if len(found) == len(asked.problem.models) else None, faults
