"""The exact program: islands of equal template are counted, not named.

    maximise theta
      sum over c serving stage p of (m, j)  y_cj = theta                every m, stage p, j
      sum_j A^c_rj p_mj w_m y_cj <= n_c                                 every template c and row r
      sum over c of size >= s in pool k  (s_c / s) n_c <= C_k(s)        every pool, class and size
      sum_c price_c n_c <= budget
      sum over c serving stage p of (m, j)  n_c >= 1                    every m, stage p, j
      n_c integer >= 0, y_cj >= 0, theta >= 0

``y_cj = lambda_cj / (p_mj w_m)`` is the part of theta that template c serves of range j: all
columns then have the size of theta whatever the probabilities. y and theta are in units of
``scale`` req/s, so that the solver sees numbers near 1. A mixed template serves both stages of the
same requests, so its y stands in both rows. The cover rows are implied for ranges with a
probability and give ranges of probability 0 their route.

Three more kinds of columns stand behind y where a problem needs them: KV flows between domain
classes, nodes that are paid for as a whole, and GPUs of islands that would have to start anew.
``rows.py`` writes the rows; docs/planning.md explains each with its unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from archipelago.perfmodel.capacity import network_row
from archipelago.planner.columns import (
    THETA,
    Demand,
    Flow,
    KindColumn,
    NodeColumn,
    Program,
)
from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.errors import SolverError
from archipelago.planner.kinds import kind_of, running_kind
from archipelago.planner.packing import capacity, classes_of, domains_of
from archipelago.planner.problem import STAGES, Billing, Phase, PlanningProblem
from archipelago.planner.rows import all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.problem import Link
    from archipelago.planner.template import Template

__all__ = ["THETA", "Demand", "Program", "build_program", "served_ranges"]


FAR = 1000.0
"""Theta of one model or stage over another's from which on ``scale`` goes by the smaller: the
solver does not see what is a billionth of ``scale``."""
MOST_ENTRIES = 10_000_000
"""Of the matrix; with its copies in the solver about 100 bytes each. The largest benchmark, 100,000
GPUs of 10 types, has half a million."""


def class_routes(
    templates: Sequence[Template], model: str, links: Sequence[Link] = ()
) -> tuple[tuple[str, str], ...]:
    """Pairs of classes (prefill, decode) of a model's templates between which KV may move."""
    linked = {pair for link in links for pair in (link.classes, link.classes[::-1])}
    stand: dict[Phase, set[str]] = {stage: set() for stage in STAGES}
    for template in templates:
        if template.model == model and template.phase is not Phase.MIXED:
            stand[template.phase].add(template.domain_class)
    prefill, decode = (stand[stage] for stage in STAGES)
    linked.update((place, place) for place in prefill)
    return tuple(sorted((p, d) for p, d in linked if p in prefill and d in decode))


def served_ranges(
    templates: Sequence[Template], model: str, ranges: int, links: Sequence[Link] = ()
) -> NDArray[np.bool_]:
    """Ranges that templates of every stage can serve, KV transfer included, shape (ranges,)."""
    mine = [t for t in templates if t.model == model]
    served = np.zeros(ranges, dtype=bool)
    able: dict[tuple[Phase, str], NDArray[np.bool_]] = {}
    for template in mine:
        if template.phase is Phase.MIXED:
            served |= template.servable
        else:
            place = template.phase, template.domain_class
            able[place] = able.get(place, False) | template.servable
    for prefill, decode in class_routes(mine, model, links):
        served |= able[Phase.PREFILL, prefill] & able[Phase.DECODE, decode]
    return served


def build_program(
    problem: PlanningProblem, templates: tuple[Template, ...], deadline: Deadline = ENDLESS
) -> Program:
    """The exact program over the given templates; ranges nobody serves are left out.

    Raises:
        OutOfTimeError: the deadline passed before all rows were written.
        SolverError: it would have more entries than fit into memory.
    """
    demands = _demands(problem, templates)
    index = {demand.model: i for i, demand in enumerate(demands)}
    usable = [t.servable & demands[index[t.model]].served for t in templates]
    _check_size(templates, demands, usable)
    per_template = [np.flatnonzero(mask) for mask in usable]
    pair_template = np.repeat(np.arange(len(templates)), [len(p) for p in per_template])
    pair_range = np.concatenate(per_template) if per_template else np.zeros(0, dtype=np.int64)
    deadline.check("building the program", f"{len(pair_range)} rates")
    upper = np.array(list(_largest_counts(problem, templates)), dtype=np.float64)
    program = Program(
        templates,
        demands,
        sparse.csr_array((0, 0)),
        np.zeros(0),
        np.zeros(0),
        upper,
        pair_template,
        pair_range,
        _scale(templates, demands, index, upper),
        flows=tuple(deadline.watch("building the program", _flows(demands), "flows")),
        nodes=tuple(_nodes(problem, templates)),
        kinds=_kinds(problem, templates),
    )
    return all_rows(program, problem, deadline)


def _check_size(
    templates: tuple[Template, ...], demands: tuple[Demand, ...], usable: list[NDArray[np.bool_]]
) -> None:
    """Refuse what no memory holds before it is allocated.

    Raises:
        SolverError: names the number of entries and what makes fewer.
    """
    capacity_rows = sum(
        int(mask.sum()) * (len(t.rows) + 2) for t, mask in zip(templates, usable, strict=True)
    )
    flow_rows = sum(3 * len(d.routes) * int(d.served.sum()) for d in demands)
    if (entries := capacity_rows + flow_rows) > MOST_ENTRIES:
        raise SolverError(
            f"{len(templates)} templates make a program of {entries} entries, more than the "
            f"{MOST_ENTRIES} that are tried: give fewer ranges or islandSizes, merge pools or "
            "classes of domains, or set serving to what is wanted; a longer timeLimitSeconds does "
            "not help"
        )


def _demands(problem: PlanningProblem, templates: tuple[Template, ...]) -> tuple[Demand, ...]:
    models = sorted(problem.models, key=lambda m: m.name)
    weights = np.array([problem.weight(m) for m in models])
    found = []
    for model, weight in zip(models, weights, strict=True):
        mine = [t for t in templates if t.model == model.name]
        routes = class_routes(mine, model.name, problem.links)
        apart = len({t.domain_class for t in mine if t.phase is not Phase.MIXED}) > 1
        moved = [network_row(t.performance, model.lengths, model.ranges, 1.0) for t in mine[:1]]
        found.append(
            Demand(
                model.name,
                float(weight),
                model.lengths.moments(model.ranges).probability,
                served_ranges(mine, model.name, len(model.ranges), problem.links),
                apart,
                routes if apart else (),
                moved[0] if apart else np.zeros(0),
            )
        )
    return tuple(found)


def _flows(demands: tuple[Demand, ...]) -> Iterator[Flow]:
    for d, demand in enumerate(demands):
        for pair in demand.routes:
            for j in np.flatnonzero(demand.served):
                yield Flow(d, int(j), pair)


def _nodes(problem: PlanningProblem, templates: tuple[Template, ...]) -> Iterator[NodeColumn]:
    """Nodes that cost something as a whole, of pools and classes that some template uses."""
    used = {(part.pool, t.domain_class) for t in templates for part in t.sections}
    for pool in sorted(problem.pools, key=lambda p: p.name):
        if pool.billing is not Billing.PER_NODE or pool.gpus_per_node is None:
            continue
        for domain_class in classes_of(pool):
            if (pool.name, domain_class) in used:
                count = sum(d.nodes for d in domains_of(pool) if d.domain_class == domain_class)
                price = float(pool.price_per_gpu_hour) * pool.gpus_per_node
                yield NodeColumn(pool.name, domain_class, count, pool.gpus_per_node, price)


def _kinds(problem: PlanningProblem, templates: tuple[Template, ...]) -> tuple[KindColumn, ...]:
    """The kinds that run now and that the new plan may have."""
    running = [running_kind(problem, island) for island in problem.running]
    wanted = {kind_of(t): t.gpus for t in templates}
    counts = {kind: running.count(kind) for kind in wanted if kind in set(running)}
    return tuple(KindColumn(kind, counts[kind], wanted[kind]) for kind in counts)


def _largest_counts(problem: PlanningProblem, templates: tuple[Template, ...]) -> Iterator[int]:
    """Islands of each template that an empty pool holds."""
    pools = {pool.name: pool for pool in problem.pools}
    fits: dict[tuple[str, int, str], int] = {}
    for template in templates:
        places = [(part.pool, part.gpus, template.domain_class) for part in template.sections]
        for place in places:
            if place not in fits:
                fits[place] = capacity(pools[place[0]], *place[1:])
        yield min(fits[place] for place in places)


def _scale(
    templates: tuple[Template, ...],
    demands: tuple[Demand, ...],
    index: dict[str, int],
    count_upper: FloatArray,
) -> float:
    """A power of two near theta: all islands of the best template, at the workload's mix.

    Where models or stages lie far apart, of the one that reaches least: it holds the others back.
    """
    best = {(d, stage): 0.0 for d in range(len(demands)) for stage in STAGES}
    for template, count in zip(templates, count_upper, strict=True):
        d = index[template.model]
        mix = np.where(template.servable, demands[d].probability * demands[d].weight, 0.0)
        load = float((template.rows @ mix).max())
        for stage in template.phase.stages:
            best[d, stage] = max(best[d, stage], count / load if load > 0 else 0.0)
    reached = [value for value in best.values() if value > 0]
    if not reached:
        return 1.0
    near = max(reached) <= FAR * min(reached)
    return float(2.0 ** np.round(np.log2(max(reached) if near else min(reached))))
