"""Template: one thing an island can be, with the capacity rows that say what it can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.plan import Part
from archipelago.planner.problem import DEFAULT_CLASS, Phase

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray, PerformanceModel
    from archipelago.perfmodel.parallelism import Parallelism


@dataclass(frozen=True, eq=False)
class Template:
    """One thing an island can be.

    ``pool`` and ``gpus``: where the GPUs come from and how many; for islands of several pools the
    names joined by ``+`` and the total, ``parts`` saying how many of which. ``rows`` has shape
    (rows, ranges): island-seconds per request [s] over the row's limit. ``servable`` (ranges,):
    pairs (template, range) that memory and length targets allow. ``price``: of one island, as far
    as its GPUs are paid for one by one [$/h]. ``prompt`` (ranges,): island-seconds that a mixed
    island spends on the prompt of a request [s]; None for the other phases.
    """

    model: str
    pool: str
    phase: Phase
    gpus: int
    parallelism: Parallelism
    max_batch: int
    row_names: tuple[str, ...]
    rows: FloatArray
    servable: NDArray[np.bool_]
    performance: PerformanceModel
    domain_class: str = DEFAULT_CLASS
    parts: tuple[Part, ...] = ()
    price: float = 0.0
    prompt: FloatArray | None = None

    @property
    def sections(self) -> tuple[Part, ...]:
        """The parts of one island, also where it is of one pool alone."""
        return self.parts or (Part(self.pool, self.gpus),)

    def gpus_of(self, pool: str) -> int:
        """GPUs that one island takes from a pool."""
        return sum(part.gpus for part in self.sections if part.pool == pool)

    @property
    def key(self) -> str:
        """Canonical name; equal for equal templates of any two runs."""
        batch = "" if self.phase is Phase.PREFILL else f"/b{self.max_batch}"
        size = "+".join(str(part.gpus) for part in self.sections)
        place = place_name(self.pool, self.domain_class)
        return f"{self.model}/{place}/x{size}/{self.phase}/{self.parallelism}{batch}"


def place_name(pool: str, domain_class: str) -> str:
    """A pool and, where there is more than the default class, the class."""
    return pool if domain_class == DEFAULT_CLASS else f"{pool}@{domain_class}"
