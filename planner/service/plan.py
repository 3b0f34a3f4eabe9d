"""What goes wrong in a planner process, as a reason and a message. In planner processes only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from archipelago.operator.conditions import Reason
from archipelago.perfmodel.errors import ArchipelagoError
from archipelago.planner.errors import CheckError, PlanFileError, SolverError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

Reply: TypeAlias = dict[str, Any]


def attempted(work: Callable[[], Reply]) -> Reply:  # noqa: PLR0911  # one per kind of error
    """The reply, or what stood in its way."""
    try:
        return work()
    except SpecError as error:
        return failed(of_spec(error), "; ".join(str(error).splitlines()))
    except PlanFileError as error:
        return failed(Reason.CHECK_FAILED, f"the published table does not fit the spec: {error}")
    except CheckError as error:
        return failed(Reason.CHECK_FAILED, "; ".join(error.findings))
    except SolverError as error:
        return failed(Reason.SOLVER_FAILED, str(error))
    except ArchipelagoError as error:
        return failed(Reason.INVALID_SPEC, str(error))
    except MemoryError as error:
        return failed(Reason.PLANNER_OOM, f"planning ran out of memory: {error}")


def of_spec(error: SpecError) -> Reason:
    """The reason that tells most: a name that the catalogue lacks, or a field that is wrong."""
    paths = [path for path, _ in error.problems]
    if any(path.endswith(".accelerator") for path in paths):
        return Reason.UNKNOWN_ACCELERATOR
    known = any(path.endswith(".architecture") for path in paths)
    return Reason.UNKNOWN_MODEL if known else Reason.INVALID_SPEC


def failed(reason: Reason, message: str) -> Reply:
    """The reply that says so."""
    return {"failed": {"reason": reason.value, "message": message}}
