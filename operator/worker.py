"""The planner process: ``python -m archipelago.operator.worker MEMORY_MIB``; JSON in, JSON out.

One request per line; ``taken`` and then the reply, a line each. It knows neither Kubernetes nor
the operator's state, may be killed at any time, and ends when its standard input is closed.
Whatever the planner's libraries print goes to standard error, which the operator logs.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import threading
from decimal import Decimal
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from archipelago.operator.conditions import Reason
from archipelago.operator.unknown import remark, without_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archipelago.planner.errors import SpecError
    from archipelago.planner.plan import Plan
    from archipelago.planner.spec import ServingPlanResource, ServingPlanSpec

Reply: TypeAlias = dict[str, Any]


def main() -> None:
    """Serve requests until standard input ends."""
    limit_memory(int(sys.argv[1]))
    replies = _own_stdout()
    from archipelago.planner import checker, strategies, table  # noqa: F401, PLC0415  # warm

    _send(replies, {"ready": True})
    for request in _requests():
        _send(replies, {"taken": True})  # from here on a death is the question's fault
        _send(replies, answer(request))


def limit_memory(mebibytes: int) -> None:
    """Let allocations beyond it fail here, before the machine runs out of memory."""
    size = mebibytes << 20
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def answer(document: dict[str, Any]) -> Reply:
    """Plan one resource; what goes wrong becomes a reason and a message."""
    known, ignored = without_unknown(document)
    ((kind, reply),) = _answer(known).items()
    return {kind: {**reply, "message": reply["message"] + remark(ignored)}}


def _answer(document: Mapping[str, Any]) -> Reply:
    from archipelago.perfmodel.errors import ArchipelagoError  # noqa: PLC0415
    from archipelago.planner.errors import (  # noqa: PLC0415  # after the memory limit is set
        CheckError,
        SolverError,
        SpecError,
    )
    from archipelago.planner.spec import load_resource  # noqa: PLC0415

    try:
        return _plan(load_resource(document))
    except SpecError as error:
        return _failed(Reason.INVALID_SPEC, "; ".join(str(error).splitlines()))
    except CheckError as error:
        return _failed(Reason.CHECK_FAILED, "; ".join(error.findings))
    except SolverError as error:
        return _failed(Reason.SOLVER_FAILED, str(error))
    except ArchipelagoError as error:
        return _failed(Reason.INVALID_SPEC, str(error))
    except MemoryError as error:
        return _failed(Reason.PLANNER_OOM, f"planning ran out of memory: {error}")


def _plan(wanted: ServingPlanResource) -> Reply:
    from archipelago.operator.latency import largest_ttft  # noqa: PLC0415
    from archipelago.planner.errors import SpecError  # noqa: PLC0415
    from archipelago.planner.plan import Infeasible  # noqa: PLC0415
    from archipelago.planner.spec import to_problem  # noqa: PLC0415
    from archipelago.planner.strategies import strategy  # noqa: PLC0415

    try:
        problem = to_problem(wanted.metadata.name, wanted.spec)
    except SpecError as error:
        return _failed(_unknown(error), "; ".join(str(error).splitlines()))
    outcome = strategy(problem.solver.strategy).plan(problem)
    if isinstance(outcome, Infeasible):
        return _failed(Reason.INFEASIBLE, outcome.message)
    content = checked_content(wanted.spec, outcome.plan)
    return {
        "planned": {
            "summary": summary(wanted.spec, outcome.plan, largest_ttft(problem, outcome.plan)),
            "message": _describe(outcome.plan),
            "seconds": outcome.seconds,
            "content": content,
        }
    }


def checked_content(spec: ServingPlanSpec, plan: Plan) -> str:
    """The table's content as canonical JSON, if both independent checks let it pass.

    Raises:
        CheckError: a defect of ours; the plan must never be published.
    """
    from archipelago.planner.canonical import canonical_bytes  # noqa: PLC0415
    from archipelago.planner.checker import check_plan  # noqa: PLC0415
    from archipelago.planner.errors import CheckError  # noqa: PLC0415
    from archipelago.planner.table import routing_content, validate_content  # noqa: PLC0415

    content = routing_content(spec, plan)
    findings = [*check_plan(spec, plan), *validate_content(content)]
    if findings:
        raise CheckError(findings)
    return canonical_bytes(content).decode("ascii")


def summary(spec: ServingPlanSpec, plan: Plan, ttft: float | None) -> dict[str, Any]:
    """What the status says of a plan: integers and decimal strings. ``ttft`` [s]."""
    from archipelago.planner.problem import Objective  # noqa: PLC0415

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


def decimal(value: float) -> str:
    """Six significant digits without an exponent: ``12.5``, ``0.000734``."""
    return f"{Decimal(f'{value:.6g}').normalize():f}"


def gap(plan: Plan) -> float:
    """The proven gap, rounded up to a millionth: what is printed is never too good."""
    return max(0, math.ceil(plan.certificate.gap * 1e6)) / 1e6


def _has_target(model: Any) -> bool:  # noqa: ANN401  # a model of the spec
    return model.slo is not None and any(model.slo.model_dump().values())


def _describe(plan: Plan) -> str:
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


def _unknown(error: SpecError) -> Reason:
    paths = [path for path, _ in error.problems]
    if any(path.endswith(".accelerator") for path in paths):
        return Reason.UNKNOWN_ACCELERATOR
    known = any(path.endswith(".architecture") for path in paths)
    return Reason.UNKNOWN_MODEL if known else Reason.INVALID_SPEC


def _failed(reason: Reason, message: str) -> Reply:
    return {"failed": {"reason": reason.value, "message": message}}


def _own_stdout() -> TextIO:
    """The pipe to the operator; file descriptor 1 then leads to standard error for all others."""
    pipe = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return pipe


def _requests() -> Iterator[dict[str, Any]]:
    """Requests as they come. A thread waits for them, to end with the operator even mid-solve."""
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    while True:
        yield json.loads(lines.get())


def _listen(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _send(pipe: TextIO, reply: Reply) -> None:
    pipe.write(json.dumps(reply) + "\n")
    pipe.flush()


if __name__ == "__main__":
    main()
