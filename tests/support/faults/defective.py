"""The operator with a defect in each place: run as a process, it fails for the objects named so.

``decide-1`` makes the decision about that plan fail, ``read-1`` the reader of its object, and so
on; whatever has another name is handled as ever. The error is drawn from the object's name.
"""

import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

from archipelago.operator import __main__ as program
from archipelago.operator.apply import observation, reconciler, tables
from archipelago.operator.cluster import handlers, resync
from archipelago.operator.metrics import Metrics
from archipelago.operator.planning import pool

ERRORS: Final = (
    OverflowError, KeyError, ValueError, TypeError, RecursionError, ZeroDivisionError, MemoryError,
    AttributeError, AssertionError, RuntimeError, UnicodeError, StopIteration, OSError,
)  # fmt: skip
PLACES: Final = ("decide", "receive", "reply", "observe", "store", "figures")
"""Places in which the handling of a plan fails."""


def error_of(name: str) -> type[Exception]:
    """The error that an object of that name leads to."""
    return ERRORS[zlib.crc32(name.encode()) % len(ERRORS)]


def fail(place: str, call: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
    """The function, which fails for objects that are named after the place."""

    def defective(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        name = name_of(*args)
        if name.startswith(f"{place}-"):
            raise error_of(name)(f"a defect at {place}")
        return call(*args, **kwargs)

    return defective


def body_name(body: Any) -> str:  # noqa: ANN401
    """The name of an object."""
    name: str = body["metadata"]["name"]
    return name


def main() -> None:
    """Run the operator."""
    module: Any = reconciler
    module.decide = fail("decide", module.decide, lambda observed, *_: observed.key.name)
    module.receive = fail("receive", module.receive, lambda observed, *_: observed.key.name)
    module = observation.ObservationBuilder
    module.build = fail("observe", module.build, lambda _self, objects, *_: objects.key.name)
    module = tables.Tables
    module.write = fail("store", module.write, lambda _self, plan, *_: plan.key.name)
    module = Metrics
    module.show = fail("figures", module.show, lambda _self, plan: plan.key.name if plan else "")
    module = pool.PlannerPool
    result = module._result

    def _result(self: Any, job: Any, reply: Any) -> Any:  # noqa: ANN401
        if job.key.name.startswith("reply-"):
            reply = _Broken(error_of(job.key.name))
        return result(self, job, reply)

    module._result = _result
    for place in (handlers, resync):
        module = place
        module.read_config_map = fail("table", module.read_config_map, body_name)
        module.read_versioned = fail("node", module.read_versioned, body_name)
        module.read_pod = fail("pod", module.read_pod, body_name)
    sys.argv[0] = "archipelago-operator"
    program.main()


class _Broken:
    """A reply that cannot be read."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def done(self) -> bool:
        """It is there."""
        return True

    def result(self) -> object:
        """What reading it leads to."""
        raise self._error("a defect of the reply")


if __name__ == "__main__":
    main()
