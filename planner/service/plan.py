"""From a ServingPlan to a checked plan and its routing table: the one way to plan.

``plan`` is what the command line, the planner process and re-planning call. Nothing leaves it that
the independent checks of plan and table refuse. ``planning_failure`` gives every error a reason,
``summary`` and ``describe`` are what the status shows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from archipelago.perfmodel.calibration.corrections import Calibration
from archipelago.perfmodel.capacity.queueing import mg1_wait
from archipelago.perfmodel.capacity.rows import prefill_row
from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.perfmodel.model import PerformanceModel
from archipelago.perfmodel.workload.lengths import LengthDistribution

from ..check.checker import run_checks
from ..check.index import PlanIndex
from ..check.transfer import mean_transfer
from ..documents import canonical_text
from ..errors import CheckError, PlanFileError, SolverError, SpecError
from ..plan import Group, Infeasible, Plan, PlanningOutcome
from ..problem import Objective, Phase, PlanningProblem, RunningIsland
from ..servingplan import ServingPlanResource, ServingPlanSpec, to_problem
from ..strategies import strategy
from ..strategy import Finds, Progress, quiet, unheard
from ..table.rename import to_real
from ..table.validate import validate_content
from ..table.write import routing_content

if TYPE_CHECKING:
    from .messages import FailureReason, Reply

log = logging.getLogger(__name__)

LEAST_TIME: Final = 1.0
"""Time limit of a request whose own is spent [s]."""
LARGEST_FIGURE: Final = 1e12
"""Nothing larger is reported of a search: it is no figure of a plan."""


@dataclass(frozen=True, eq=False)
class PlanAnswer:
    """The outcome for a problem.

    ``table``: the plan's routing table as JSON; empty without a plan, or if it only counts islands.
    """

    problem: PlanningProblem
    outcome: PlanningOutcome
    table: str = ""

    @property
    def plan(self) -> Plan | None:
        """The plan, if there is one."""
        return None if isinstance(self.outcome, Infeasible) else self.outcome.plan


def plan(
    resource: ServingPlanResource,
    running: tuple[RunningIsland, ...] = (),
    calibrations: tuple[Calibration, ...] = (),
    progress: Progress = quiet,
    *,
    on_found: Finds = unheard,
    spent: float = 0.0,
) -> PlanAnswer:
    """Plan a ServingPlan, and check the plan and its table.

    Args:
        resource: The ServingPlan.
        running: Islands that run now; the plan changes as few of them as it can.
        calibrations: Corrections of the performance model, all of its pools and models.
        progress: Called with what is being done.
        on_found: Called with what a search has found so far.
        spent: Part of the time limit that is over already [s].

    Raises:
        SpecError: the resource breaks a rule.
        SolverError: the solver gave no usable answer.
        CheckError: a check refuses the plan: a defect of ours, so it must never be published.
    """
    problem = to_problem(resource.metadata.name, resource.spec)
    problem = replace(problem, running=running, calibrations=calibrations)
    limit = max(problem.solver.time_limit - spent, min(LEAST_TIME, problem.solver.time_limit))
    problem = replace(problem, solver=replace(problem.solver, time_limit=limit))
    outcome = strategy(problem.solver.strategy).plan(problem, progress, on_found)
    if isinstance(outcome, Infeasible):
        return PlanAnswer(problem, outcome)
    progress("checking the plan", 0.0)
    refuse_faulty(problem, outcome.plan)
    if outcome.plan.only_counts:
        return PlanAnswer(problem, outcome)
    return PlanAnswer(problem, outcome, checked_table(resource.spec, outcome.plan))


def refuse_faulty(problem: PlanningProblem, plan: Plan) -> None:
    """Run the independent checker.

    Raises:
        CheckError: the plan is wrong.
    """
    if findings := [line for item in run_checks(problem, plan) for line in item.findings]:
        raise CheckError(findings)


def checked_table(spec: ServingPlanSpec, plan: Plan, nodes: Mapping[str, str] | None = None) -> str:
    """Return the content of a plan's routing table as canonical JSON.

    ``nodes``: the cluster's name of a node by the planner's; without it the planner's names stay.

    Raises:
        CheckError: it is not a valid table.
    """
    content = to_real(routing_content(spec, plan), nodes or {})
    if findings := validate_content(content):
        raise CheckError(findings)
    return canonical_text(content)


def load_search_libraries() -> None:
    """Load what searches need, gigabytes and seconds of it, before the first one."""
    from ..strategies.bayesian import load_libraries  # noqa: PLC0415

    load_libraries()


def planning_failure(work: Callable[[], Reply]) -> Reply:
    """Return the reply, or the reason why there is none: no error of any kind gets through."""
    from .messages import FailureReason, FailureReply  # noqa: PLC0415  # no command needs them

    try:
        return work()
    except SpecError as error:
        reason, message = spec_failure_reason(error), "; ".join(str(error).splitlines())
    except PlanFileError as error:
        message = f"the published table does not fit the spec: {error}"
        reason = FailureReason.CHECK_FAILED
    except CheckError as error:
        reason, message = FailureReason.CHECK_FAILED, "; ".join(error.findings)
    except SolverError as error:
        reason, message = FailureReason.SOLVER_FAILED, str(error)
    except ArchipelagoError as error:
        reason, message = FailureReason.INVALID_SPEC, "; ".join(str(error).splitlines())
    except MemoryError as error:
        reason, message = FailureReason.PLANNER_OOM, f"planning ran out of memory: {error}"
    except Exception as error:  # a defect, or torch's way to say that there is no memory
        if "can't allocate memory" in str(error):
            message = f"the planner process ran out of memory: {str(error)[:200]}"
            return FailureReply(reason=FailureReason.PLANNER_OOM, message=message)
        log.exception("the planner failed, and its process goes on for other plans")
        reason = FailureReason.PLANNER_CRASHED
        message = f"the planner failed ({type(error).__name__}): a defect; please report it"
    return FailureReply(reason=reason, message=message)


def spec_failure_reason(error: SpecError) -> FailureReason:
    """Return the most specific reason: a name that the catalogue lacks, or an invalid field."""
    from .messages import FailureReason  # noqa: PLC0415

    paths = [path for path, _ in error.problems]
    if any(path.endswith(".accelerator") for path in paths):
        return FailureReason.UNKNOWN_ACCELERATOR
    if any(path.endswith(".architecture") for path in paths):
        return FailureReason.UNKNOWN_MODEL
    return FailureReason.INVALID_SPEC


def largest_ttft(problem: PlanningProblem, plan: Plan) -> float | None:
    """Return the largest mean time to first token [s], at theta, of models with such a target.

    None if no model has one: then nothing limits how busy its islands are. At theta some are busy
    all the time, and the mean has no bound.
    """
    index = PlanIndex(problem, plan)
    with_target = {model.name for model in problem.models if model.targets.ttft is not None}
    reading = [group for group in plan.groups if Phase.PREFILL in group.phase.stages]
    times = [_ttft(index, group) for group in reading if group.model in with_target]
    return max(times, default=None)


def _ttft(index: PlanIndex, group: Group) -> float:
    """Return the mean of one group [s].

    From a prefill island the cache is handed over; on a mixed one a prompt also waits for half a
    token step.
    """
    model, performance = index.models[group.model], index.performance(group)
    seconds = prefill_row(performance, model.lengths, model.ranges)
    busy = float(seconds @ np.array(group.rates)) / group.islands
    waiting = mean_ttft(performance, model.lengths, busy)
    if group.phase is not Phase.MIXED:
        return waiting + mean_transfer(index, group, performance)
    full = np.array(float(performance.kv_capacity()))
    step = float(performance.decode_step_time(np.array(float(group.max_batch)), full))
    return waiting + min(step, model.targets.tpot or step) / 2


def mean_ttft(performance: PerformanceModel, lengths: LengthDistribution, busy: float) -> float:
    """Return the mean time to first token of an M/G/1 queue: E[S] + ``mg1_wait`` [s].

    Without the transfer of the cache.

    ``busy`` is rho, the share of time in which an island computes prompts; S is ``prefill_time``
    over the mix.
    """
    service = performance.prefill_time(lengths.length)
    mean = float(lengths.probability @ service)
    return mean + mg1_wait(busy, mean, float(lengths.probability @ service**2))


def summary(spec: ServingPlanSpec, plan: Plan, ttft: float | None) -> dict[str, Any]:
    """Return the fields of ``status.summary``: integers and decimal strings. ``ttft`` [s]."""
    per_theta = plan.throughput / plan.theta if plan.theta else 1.0
    headroom = plan.objective is not Objective.THROUGHPUT
    bound = plan.certificate.bound * (1.0 if headroom else per_theta)
    rented = sum(gpus for _, gpus in plan.rented)
    steps = [group.step_time for group in plan.groups if group.step_time > 0]
    return {
        "strategy": plan.strategy,
        "objective": str(plan.objective),
        "throughput": decimal(plan.throughput),
        **({"headroom": decimal(plan.theta)} if headroom else {}),
        "bound": decimal(bound),
        "gap": f"{gap(plan):.6f}",
        "costPerHour": f"{plan.cost_per_hour:f}",
        "islands": len(plan.islands),
        "gpus": sum(group.gpus * group.islands for group in plan.groups),
        **({"rentedGpus": rented} if rented else {}),
        "slo": "Met" if any(_has_target(model) for model in spec.models) else "None",
        **({} if ttft is None else {"ttftMilliseconds": round(1000 * ttft)}),
        **({"tpotMilliseconds": round(1000 * max(steps))} if steps else {}),
    }


MOST_FIGURE = 1e18
LEAST_FIGURE = 1e-12
"""What a figure of the status can say: its schema allows 32 characters."""


def decimal(value: float) -> str:
    """Format with six significant digits and no exponent: ``12.5``, ``0.000734``.

    What is smaller than ``LEAST_FIGURE`` is 0, what is larger than ``MOST_FIGURE`` is that.
    """
    bounded = min(MOST_FIGURE, max(-MOST_FIGURE, value)) if abs(value) >= LEAST_FIGURE else 0.0
    return f"{Decimal(f'{bounded:.6g}').normalize():f}"


def figure(value: float) -> str | None:
    """Return a positive figure of a search that the status can hold; None if it is none."""
    return decimal(value) if 0 < value < LARGEST_FIGURE else None


def gap(plan: Plan) -> float:
    """Return the proven gap, rounded up to a millionth: the printed gap is never too small."""
    return max(0, math.ceil(plan.certificate.gap * 1e6)) / 1e6


def _has_target(model: Any) -> bool:  # noqa: ANN401  # a model of the spec
    return model.slo is not None and any(model.slo.model_dump().values())


def describe(plan: Plan) -> str:
    """Return one sentence about a plan for people."""
    unit = "req/s" if plan.objective.value == "throughput" else "times the stated rates"
    least = plan.objective.value == "cost"
    price = f" for ${plan.cost_per_hour}/h" if least else ""
    best = "above the least possible cost" if least else "below the best possible"
    proof = plan.certificate
    limit = "" if proof.complete else f" (stopped early: {proof.reason})"
    return (
        f"{len(plan.islands)} islands sustain {decimal(plan.theta)} {unit}{price}, "
        f"at most {100 * gap(plan):.4f} % {best}{limit}"
    )
