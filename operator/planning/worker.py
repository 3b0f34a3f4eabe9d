"""The planner process: ``python -m archipelago.operator.worker MEMORY_MIB``; JSON in, JSON out.

One request per line; ``taken`` and then the reply, a line each. It knows neither Kubernetes nor
the operator's state, may be killed at any time, and ends when its standard input is closed.
Whatever the planner's libraries print goes to standard error, which the operator logs.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from archipelago.operator.conditions import Reason
from archipelago.operator.unknown import remark, without_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    """Plan one resource, or answer a live question; what goes wrong has a reason and a message."""
    if "live" in document:
        from archipelago.operator.liveanswer import live_answer  # noqa: PLC0415

        return live_answer(document)
    known, ignored = without_unknown(document)
    ((kind, reply),) = _answer(known).items()
    return {kind: {**reply, "message": reply["message"] + remark(ignored)}}


def _answer(document: Mapping[str, Any]) -> Reply:
    from archipelago.operator.failures import attempted  # noqa: PLC0415  # after the memory limit
    from archipelago.planner.spec import load_resource  # noqa: PLC0415

    return attempted(lambda: _plan(load_resource(document)))


def _plan(wanted: ServingPlanResource) -> Reply:
    from archipelago.operator.failures import failed, of_spec  # noqa: PLC0415
    from archipelago.operator.latency import largest_ttft  # noqa: PLC0415
    from archipelago.operator.summary import described, summary  # noqa: PLC0415
    from archipelago.planner.errors import SpecError  # noqa: PLC0415
    from archipelago.planner.plan import Infeasible  # noqa: PLC0415
    from archipelago.planner.spec import to_problem  # noqa: PLC0415
    from archipelago.planner.strategies import strategy  # noqa: PLC0415

    try:
        problem = to_problem(wanted.metadata.name, wanted.spec)
    except SpecError as error:
        return failed(of_spec(error), "; ".join(str(error).splitlines()))
    outcome = strategy(problem.solver.strategy).plan(problem)
    if isinstance(outcome, Infeasible):
        return failed(Reason.INFEASIBLE, outcome.message)
    content = checked_content(wanted.spec, outcome.plan)
    return {
        "planned": {
            "summary": summary(wanted.spec, outcome.plan, largest_ttft(problem, outcome.plan)),
            "message": described(outcome.plan),
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
