"""What the planner answers to one spec, measured and verified."""

import copy
import hashlib
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.check.checker import check_document
from archipelago.planner.errors import OutOfTimeError
from archipelago.planner.formats.plan_file import plan_document
from archipelago.planner.plan import Infeasible, PlanningOutcome
from archipelago.planner.problem import Objective
from archipelago.planner.servingplan import load_resource, to_problem
from archipelago.planner.strategies import strategy
from archipelago.planner.strategy import Found
from benchmarks.drawn.judge import Verdict, judge
from benchmarks.drawn.specs import Body, Stratum, stratum

PLAN, INFEASIBLE, OUT_OF_TIME, EXCEPTION = "plan", "infeasible", "out of time", "exception"
"""Outcomes of a row."""
JUDGE_SECONDS: Final = 20.0
"""How long a counterexample to an "infeasible" is looked for [s]."""
MOST_FINDINGS: Final = 5


@dataclass(frozen=True)
class Row:
    """One spec, planned once under a limit.

    ``digest``: of the spec without its time limit. ``value``: theta, or the cost [$/h] if it is
    minimised; ``bound`` in its unit; ``gap`` [%]. ``seconds`` and ``cpu`` (processor time, of
    helper processes too): of planning [s]; ``templates``: of it until the search starts; ``first``:
    until the first plan, if the search reports it. ``verdict``: on an "infeasible". ``findings``:
    of ``verify``. ``message``: of an answer without a plan.
    """

    name: str
    digest: str
    stratum: Stratum
    limit: float
    outcome: str
    seconds: float = 0.0
    cpu: float = 0.0
    templates: float | None = None
    first: float | None = None
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    verdict: str = ""
    findings: tuple[str, ...] = ()
    message: str = ""

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the row of a line of JSON."""
        facts: dict[str, Any] = json.loads(line)
        known = Stratum(**facts.pop("stratum"))
        return cls(**facts | {"stratum": known, "findings": tuple(facts["findings"])})

    def line(self) -> str:
        """Return the row as a line of JSON."""
        return json.dumps(asdict(self))

    @property
    def false_no(self) -> bool:
        """Whether it denies a plan that the judge found."""
        return self.verdict == Verdict.REFUTED

    @property
    def has_plan(self) -> bool:
        """Whether the planner returned a plan."""
        return self.outcome == PLAN

    @property
    def counts(self) -> bool:
        """Whether a plan may exist: all but what is rightly infeasible."""
        return self.outcome != INFEASIBLE or self.false_no

    @property
    def late(self) -> float:
        """Seconds beyond the limit."""
        return max(0.0, self.seconds - self.limit)

    @property
    def distance(self) -> float:
        """The gap [%]; 100 without a plan."""
        return 100.0 if self.gap is None else self.gap

    def __str__(self) -> str:
        value = "" if self.value is None else f"{self.value:.6g}"
        gap = "" if self.gap is None else f"{self.gap:.3f} %"
        said = f"{self.outcome} ({self.verdict})" if self.verdict else self.outcome
        return (
            f"{self.name:24} {said:22} {value:>11} {gap:>10} {self.seconds:6.2f} s "
            f"{self.cpu:6.2f} s  {self.message[:100]}{'; '.join(self.findings)[:200]}"
        )


def limited(resource: Body, seconds: int) -> Body:
    """Return the resource with another time limit [s]."""
    changed = copy.deepcopy(resource)
    changed["spec"].setdefault("planner", {})["timeLimitSeconds"] = seconds
    return changed


def empty(resource: Body, seconds: int, outcome: str, message: str = "") -> Row:
    """Return the row of a spec of which nothing else is known."""
    text = json.dumps(limited(resource, 1)["spec"], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Row(
        resource["metadata"]["name"],
        digest,
        stratum(resource),
        float(seconds),
        outcome,
        message=message,
    )


def answer(resource: Body, seconds: int) -> Row:
    """Plan in this process; whatever the planner raises becomes a row.

    Raises:
        SpecError: the resource is not a valid ServingPlan.
    """
    loaded = load_resource(limited(resource, seconds))
    problem = to_problem(loaded.metadata.name, loaded.spec)
    started, marks = time.perf_counter(), dict[str, float]()
    used = sum(os.times()[:4])

    def progress(what: str, _share: float) -> None:
        marks.setdefault(what, time.perf_counter() - started)

    def found(state: Found) -> None:
        if state.best > 0:
            marks.setdefault("first", time.perf_counter() - started)

    outcome: PlanningOutcome | Exception
    try:
        outcome = strategy(problem.solver.strategy).plan(problem, progress, found)
    except Exception as error:  # noqa: BLE001  # each one is a figure of the table
        outcome = error
    measured: dict[str, Any] = {
        "seconds": time.perf_counter() - started,
        "cpu": sum(os.times()[:4]) - used,
        "templates": marks.get("solving"),
        "first": marks.get("first"),
    }
    facts = asdict(empty(resource, seconds, PLAN)) | {"stratum": stratum(resource)} | measured
    if isinstance(outcome, Exception):
        facts["outcome"] = OUT_OF_TIME if isinstance(outcome, OutOfTimeError) else EXCEPTION
        facts["message"] = f"{type(outcome).__name__}: {outcome}"
    elif isinstance(outcome, Infeasible):
        verdict = str(judge(problem, JUDGE_SECONDS))
        facts |= {"outcome": INFEASIBLE, "message": outcome.message, "verdict": verdict}
    else:
        plan = outcome.plan
        is_cost = plan.objective is Objective.COST
        facts["value"] = float(plan.cost_per_hour) if is_cost else plan.theta
        if math.isfinite(plan.certificate.bound):
            facts["bound"], facts["gap"] = plan.certificate.bound, 100 * plan.certificate.gap
        try:
            results = check_document(plan_document(loaded, outcome))
            findings = [finding for result in results for finding in result.findings]
        except (ArchipelagoError, ValueError) as error:
            findings = [f"not a plan file: {error}"]
        facts["findings"] = tuple(findings[:MOST_FINDINGS])
    return Row(**facts)
