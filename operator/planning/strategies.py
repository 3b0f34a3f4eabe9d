"""Which processes plan by which strategy, and which strategies this installation has.

What is installed is looked up and never imported: the operator itself loads no solver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from archipelago.planner.problem import PACKAGES, missing_packages

from ..metrics import Metrics
from ..resources.names import Key
from ..resources.status import Reason
from .messages import Job
from .pool import PlannerPool
from .result import PlanFailed, PlannerResult

REMEDY: Final = (
    "install the image with it (chart: image.variant=bayes; kustomize: deploy/components/bayes), "
    "or choose strategy exact"
)


@cache
def missing_strategies() -> Mapping[str, tuple[str, ...]]:
    """Return the strategies that cannot be used here, with the packages that each of them lacks."""
    lacks = {name: missing_packages(name) for name in PACKAGES}
    return {name: packages for name, packages in lacks.items() if packages}


def available_strategies() -> tuple[str, ...]:
    """Return the strategies that can be used here."""
    return tuple(name for name in PACKAGES if name not in missing_strategies())


class StrategyPools:
    """Hands each job to the processes of its strategy; it is a pool of its own to the outside.

    ``solvers``: for strategies that need nothing but the solver. ``searches``: for the others.
    """

    def __init__(
        self,
        solvers: PlannerPool,
        searches: PlannerPool,
        on_result: Callable[[Key, PlannerResult], None],
        metrics: Metrics,
    ) -> None:
        self._solvers = solvers
        self._searches = searches
        self._on_result = on_result
        self._metrics = metrics

    def ask(self, job: Job) -> None:
        """Queue the job; a strategy that is not available is a result, too."""
        self.cancel(job.key)
        missing = missing_strategies().get(job.strategy)
        if missing:
            message = (
                f"spec.planner.strategy: this operator has no {job.strategy} (its image lacks "
                f"{', '.join(missing)}): {REMEDY}"
            )
            failure = PlanFailed(job.inputs_hash, Reason.STRATEGY_UNAVAILABLE, message)
            self._metrics.planned(failure.reason, 0.0)
            asyncio.get_running_loop().call_soon(self._on_result, job.key, failure)
        else:
            pool = self._searches if PACKAGES.get(job.strategy) else self._solvers
            pool.ask(job)

    def cancel(self, key: Key) -> None:
        """Drop the job of the key."""
        self._solvers.cancel(key)
        self._searches.cancel(key)

    async def run(self) -> None:
        """Run the processes until cancelled, then end them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._solvers.run(), name="solvers")
            group.create_task(self._searches.run(), name="searches")
