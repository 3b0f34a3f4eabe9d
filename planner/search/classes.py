"""Each domain class alone: what its GPUs serve without the links, added up.

With many linked classes, rounding the whole relaxation is far off; a class alone is a small program
that HiGHS solves well, and theta adds up over classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..milp.columns import Effort
from .state import Search, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

SECONDS, NODES, GAP = 1.5, 50, 2e-3
"""Limits of the program of one class."""
NEAR, ALL = 2.0, 1e6
"""Templates beside the relaxation's that take part, as a multiple: of many models, and of one."""


@dataclass(eq=False)
class Classes(Step):
    """One plan from plans of each class; for theta and two classes or more."""

    def turn(self, search: Search) -> bool:
        """Solve every class alone, once."""
        program = search.program
        classes = np.array([template.domain_class for template in program.templates])
        names = sorted(set(classes.tolist()))
        if len(names) < 2 or not search.for_theta:  # noqa: PLR2004  # nothing to divide
            return False
        total, nothing = np.zeros((2, len(search.master.columns)))
        alone = len(program.demands) == 1
        near = search.near(ALL if alone else NEAR)
        solved: dict[tuple[object, ...], FloatArray] = {}
        for name in names:
            own = np.flatnonzero(classes == name)
            alike = _alike(search, own)
            if alike not in solved:
                effort = Effort(search.seconds(SECONDS), NODES, GAP)
                free = near & (classes == name)
                answer = search.count(
                    search.blocks.solve(free, nothing, search.master.cost, effort, alone=True)
                )
                solved[alike] = np.zeros(len(own)) if answer.x is None else answer.x[own]
            total[own] = solved[alike]
        search.offer(search.blocks.completed(total))
        return False


def _alike(search: Search, own: NDArray[np.int64]) -> tuple[object, ...]:
    """Return what two classes share that have the same islands and the same room."""
    templates, most = search.program.templates, search.blocks.most
    return tuple(
        (t.model, t.phase, t.parallelism, t.max_batch, t.sections, most[c])
        for c, t in ((c, templates[c]) for c in own.tolist())
    )
