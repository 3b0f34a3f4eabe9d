"""A search over fewer columns, whose plans are plans of the program and whose bound is not.

Neighbouring ranges are served in proportion, as if they were one: a third of the columns or fewer
are left. So there is a plan before the relaxation of a large program is solved, and the same steps
see further in the same time. What they cannot see are plans that divide what was merged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from scipy import sparse

from ..errors import SolverError
from ..milp.highs import LinearObjective
from ..milp.variables import Demand, Flow, Program
from .prices import capacity_entries, loads, values
from .state import Search, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray

PARTS = 4
"""Parts of equal probability into which the ranges of a model are merged: 0.1 to 0.4 % of theta."""
FEWER = 0.5
"""A range that fewer of a model's templates can serve, by this factor, is not merged with others:
the templates that cannot serve it would not serve any of them."""
WORTH_IT = 0.6
"""A smaller program has at most this part of the columns, or it is not made."""


@dataclass(eq=False)
class Merged(Step):
    """The turns of a search over fewer columns, whose plans are offered.

    ``rows``, shape (rows of the program,): the row of the smaller program that stands for each.
    """

    inner: Search
    turns: Iterator[None]
    rows: NDArray[np.int64]

    def turn(self, search: Search) -> bool:
        """Let that search go on from the best plan; False once it has ended."""
        if search.best is not None:
            self.inner.offer(search.best.x)
        while not search.over:
            if not self.go_on(search):
                return False
        return True

    def go_on(self, search: Search) -> bool:
        """Search until the next pause, the first one after a plan; False if that was the end."""
        inner = self.inner
        inner.on_found = lambda plan: search.offer(plan.x)
        work, nodes = inner.work, inner.nodes
        inner.pause = work + min(search.until, search.pause) - search.work
        try:
            return not next(self.turns, True)
        except SolverError:  # of the inner program only
            return False
        finally:
            search.done += inner.work - work
            search.nodes += inner.nodes - nodes

    def prices(self, program: Program) -> FloatArray:
        """Return the inner relaxation's duals in the rows of the program; empty if it has none.

        Ranges share the price of what they were merged into. The capacity of every template is
        worth the requests that it can serve at these prices.
        """
        inner = self.inner.relaxation.duals
        if not len(inner):
            return inner
        duals = np.array(inner[self.rows] / np.bincount(self.rows)[self.rows])
        rows, rates, load = capacity_entries(program)
        capacity = np.zeros(len(duals))
        np.maximum.at(capacity, rows, values(program, duals)[rates] / load)
        duals[rows] = -capacity[rows]
        return duals


Smaller: TypeAlias = tuple[Program, LinearObjective, "NDArray[np.int64]"]
"""A smaller program, its objective, and the row that stands for each row of the program."""


def merge(program: Program, objective: LinearObjective) -> Smaller | None:
    """Return the program over merged ranges; None if they are hardly fewer.

    Templates, nodes and restarts are the same ones in the same order.
    """
    labels = [_labels(program, number) for number in range(len(program.demands))]
    pairs, columns = _pairs(program, labels)
    flows, sent = _flows(program, labels)
    rest = np.arange(program.columns - program.first_node)
    count = program.first_pair + len(pairs) + len(flows) + len(rest)
    if count > WORTH_IT * program.columns:
        return None
    place = np.concatenate([
        np.arange(program.first_pair),
        np.where(columns < 0, -1, program.first_pair + columns),
        program.first_pair + len(pairs) + sent,
        program.first_pair + len(pairs) + len(flows) + rest,
    ])  # fmt: skip
    used = np.flatnonzero(place >= 0)
    entries = np.ones(len(used)), (used, place[used])
    together = sparse.csc_array(entries, shape=(program.columns, count))
    matrix = sparse.csr_array(program.matrix @ together)
    kept, rows = _distinct(matrix, program)
    cover = int((kept >= len(program.lower) - program.cover).sum())
    first = np.zeros(count, dtype=np.int64)
    first[place[used[::-1]]] = used[::-1]
    smaller = replace(
        program,
        demands=tuple(map(_demand, program.demands, labels)),
        matrix=sparse.csr_array(matrix[kept]),
        lower=program.lower[kept],
        upper=program.upper[kept],
        pair_template=pairs[:, 0],
        pair_range=pairs[:, 1],
        cover=cover,
        flows=flows,
    )
    bounds = objective.lower[first], objective.upper[first]
    return smaller, LinearObjective(objective.cost @ together, *bounds, objective.integer), rows


def promising(program: Program, objective: LinearObjective) -> Smaller | None:
    """Return the program over templates that are quick for their GPUs; None if most of them are.

    No price of a GPU is known yet. Of each model, phase, class and pool it is the best one on
    average, and of each range the best one. The others stay, without a rate.
    """
    gpus = np.array([template.gpus for template in program.templates], dtype=np.float64)
    load = loads(program) * gpus[program.pair_template]
    rate = program.pair_rate()
    total, work = (
        np.bincount(program.pair_template, each, len(gpus)) for each in (rate, rate * load)
    )
    worth = np.divide(total, work, out=np.zeros(len(gpus)), where=work > 0)
    kinds = [(t.model, t.phase, t.domain_class) for t in program.templates]
    pools = [
        (*kind, *(part.pool for part in template.sections))
        for kind, template in zip(kinds, program.templates, strict=True)
    ]
    chosen = np.zeros(len(gpus), dtype=bool)
    chosen[_first_of(_numbers(pools), -worth)] = True
    ranges = _numbers(kinds)[program.pair_template] * len(load) + program.pair_range
    chosen[program.pair_template[_first_of(ranges, load)]] = True
    if chosen[program.pair_template].mean() > WORTH_IT:
        return None
    upper = objective.upper.copy()
    upper[1 : program.first_pair][~chosen] = 0.0
    kept = np.ones(program.columns, dtype=bool)
    kept[program.first_pair : program.first_flow] = chosen[program.pair_template]
    pairs = kept[program.first_pair : program.first_flow]
    smaller = replace(
        program,
        matrix=sparse.csr_array(program.matrix[:, np.flatnonzero(kept)]),
        pair_template=program.pair_template[pairs],
        pair_range=program.pair_range[pairs],
    )
    cost, lower = objective.cost[kept], objective.lower[kept]
    limited = LinearObjective(cost, lower, upper[kept], objective.integer)
    return smaller, limited, np.arange(len(program.lower))


def _numbers(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return a number of each distinct name, shape (names,)."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _first_of(group: NDArray[np.int64], value: FloatArray) -> NDArray[np.int64]:
    """Return the places of the smallest value of each group, shape (groups,)."""
    order = np.lexsort((value, group))
    begins = np.diff(group[order], prepend=-1) != 0
    return np.asarray(order[begins])


def _labels(program: Program, number: int) -> NDArray[np.int64]:
    """Return the merged range of each range of a model, shape (ranges,)."""
    probability = program.demands[number].probability
    own = np.flatnonzero(program.demand_of[program.pair_template] == number)
    phase = [str(program.templates[c].phase) for c in program.pair_template[own].tolist()]
    begins = np.zeros(len(probability), dtype=bool)
    for each in set(phase):
        ranges = program.pair_range[own[np.array(phase) == each]]
        able = np.maximum(np.bincount(ranges, minlength=len(begins)), 0.5)
        level = np.floor(np.log(able / able.max()) / np.log(FEWER))
        begins[1:] |= level[1:] != level[:-1]
    middle = np.cumsum(probability) - probability / 2
    part = np.minimum((PARTS * middle).astype(np.int64), PARTS - 1)
    return np.unique(np.cumsum(begins) * PARTS + part, return_inverse=True)[1].ravel()


def _pairs(
    program: Program, labels: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (template, merged range) of the new rates, and the new rate of each old one or -1.

    A template that cannot serve the whole of a merged range does not serve it.
    """
    starts = np.cumsum([0, *(len(label) for label in labels)])
    at = starts[program.demand_of[program.pair_template]] + program.pair_range
    label = np.concatenate(labels)[at]
    size = np.concatenate([np.bincount(label)[label] for label in labels])[at]
    both = np.column_stack([program.pair_template, label])
    pairs, first, of, served = np.unique(
        both, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    whole = served == size[first]
    new = np.where(whole, np.cumsum(whole) - 1, -1)
    return pairs[whole], new[of.ravel()]


def _flows(
    program: Program, labels: list[NDArray[np.int64]]
) -> tuple[tuple[Flow, ...], NDArray[np.int64]]:
    """Return the flows of merged ranges, and the new flow of each old one, shape (flows,)."""
    new: dict[tuple[int, int, tuple[str, str]], int] = {}
    of = [
        new.setdefault((f.demand, int(labels[f.demand][f.range]), f.classes), len(new))
        for f in program.flows
    ]
    return tuple(Flow(*key) for key in new), np.array(of, dtype=np.int64)


def _demand(demand: Demand, label: NDArray[np.int64]) -> Demand:
    probability = np.bincount(label, demand.probability).astype(np.float64)
    kv_bytes = demand.kv_bytes
    if len(kv_bytes):
        total = np.bincount(label, demand.probability * kv_bytes)
        kv_bytes = np.divide(total, probability, out=total, where=probability > 0)
    served = np.bincount(label, demand.served) > 0
    return replace(demand, probability=probability, served=served, kv_bytes=kv_bytes)


def _distinct(
    matrix: sparse.csr_array, program: Program
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows without repetitions, and the place among them of each row.

    Parts of a merged range have equal rows.
    """
    sums = matrix @ np.random.default_rng(0).random(matrix.shape[1])
    _, first, of = np.unique(
        np.column_stack([sums, program.lower, program.upper]),
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    kept = np.sort(first)
    return kept, np.searchsorted(kept, first)[of.ravel()]
