"""The exact program: a mixed-integer linear program over counts of islands by template.

    maximise theta
      sum over c serving stage p of (m, j)  y_cj = theta                every m, stage p, j
      sum_j A^c_rj p_mj w_m y_cj <= n_c                                 every template c and row r
      sum over c of size >= s in pool k  (s_c / s) n_c <= C_k(s)        every pool, class and size
      sum_c price_c n_c <= budget
      sum over c serving stage p of (m, j)  n_c >= 1                    every m, stage p, j
      n_c integer >= 0, y_cj >= 0, theta >= 0

``y_cj = lambda_cj / (p_mj w_m)`` is the part of theta that template c serves of range j: all
columns are as large as theta, whatever the probabilities. y and theta are in units of ``scale``,
so that the solver works with numbers near 1. A mixed template serves both stages of the same
requests, so its y is in the rows of both stages. The cover rows follow from the others for ranges
of positive probability; they give ranges of probability 0 their route.

A problem can need three more blocks of columns, which follow y: KV flows between domain classes,
nodes that are paid for as a whole, and restarted islands. ``constraints.py`` builds the rows;
docs/explanation/planning.md explains each with its unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from archipelago.perfmodel.capacity.rows import network_row
from archipelago.perfmodel.model import FloatArray

from ..deadline import ENDLESS, Deadline
from ..errors import SolverError
from ..problem import STAGES, Billing, Link, Phase, PlanningProblem
from ..templates.packing import capacity, domains_of
from ..templates.template import Template, running_island_class
from .constraints import with_constraints
from .variables import Demand, Flow, NodeColumn, Program, RestartColumn

FAR = 1000.0
"""Ratio of the largest theta of two models or stages above which ``scale`` follows the smaller:
a billionth of ``scale`` is below the solver's tolerance."""
MOST_ENTRIES = 10_000_000
"""Limit on the entries of the matrix: each takes about 100 bytes with its copies in the solver. The
largest benchmark, 100,000 GPUs of 10 types, has half a million."""


def class_routes(
    templates: Sequence[Template], model: str, ranges: int, links: Sequence[Link] = ()
) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """Return the class pairs (prefill, decode) of a model between which KV caches may move.

    In alphabetical order, each with the ranges that keep TTFT that way, shape (ranges,).
    """
    linked = {pair for link in links for pair in (link.classes, link.classes[::-1])}
    senders: dict[str, Template] = {}  # one of each class: all have the same ways
    receivers: set[str] = set()
    for template in templates:
        if template.model == model and template.phase is Phase.PREFILL:
            senders.setdefault(template.domain_class, template)
        elif template.model == model and template.phase is Phase.DECODE:
            receivers.add(template.domain_class)
    linked.update((place, place) for place in senders)
    none, every = np.zeros(ranges, dtype=bool), np.ones(ranges, dtype=bool)
    return {
        (p, d): every if (ways := senders[p].ways) is None else ways.get(d, none)
        for p, d in sorted(linked)
        if p in senders and d in receivers
    }


def served_ranges(
    templates: Sequence[Template], model: str, ranges: int, links: Sequence[Link] = ()
) -> NDArray[np.bool_]:
    """Return the mask of ranges that can be served, KV transfer included, shape (ranges,)."""
    own = [t for t in templates if t.model == model]
    served = np.zeros(ranges, dtype=bool)
    servable: dict[tuple[Phase, str], NDArray[np.bool_]] = {}
    for template in own:
        if template.phase is Phase.MIXED:
            served |= template.servable
        else:
            place = template.phase, template.domain_class
            servable[place] = servable.get(place, False) | template.servable
    for (prefill, decode), able in class_routes(own, model, ranges, links).items():
        served |= servable[Phase.PREFILL, prefill] & servable[Phase.DECODE, decode] & able
    return served


def build_program(
    problem: PlanningProblem, templates: tuple[Template, ...], deadline: Deadline = ENDLESS
) -> Program:
    """Build the exact program over the given templates, without ranges that none can serve.

    Raises:
        OutOfTimeError: the deadline passed before all rows were built.
        SolverError: the matrix would have more entries than fit into memory.
    """
    demands = _demands(problem, templates)
    index = {demand.model: i for i, demand in enumerate(demands)}
    usable = [t.servable & demands[index[t.model]].served for t in templates]
    # Refuse what does not fit into memory before it is allocated.
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
    per_template = [np.flatnonzero(mask) for mask in usable]
    pair_template = np.repeat(np.arange(len(templates)), [len(p) for p in per_template])
    pair_range = np.concatenate(per_template) if per_template else np.zeros(0, dtype=np.int64)
    deadline.check("building the program", f"{len(pair_range)} rates")
    upper = np.array(list(_max_counts(problem, templates)), dtype=np.float64)
    flows = (
        Flow(d, int(j), pair)
        for d, demand in enumerate(demands)
        for pair, able in demand.routes.items()
        for j in np.flatnonzero(demand.served & able)
    )
    running = Counter(running_island_class(problem, island) for island in problem.running)
    gpus = {t.island_class: t.gpus for t in templates}
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
        flows=tuple(deadline.watch("building the program", flows, "flows")),
        nodes=tuple(_nodes(problem, templates)),
        restarts=tuple(RestartColumn(c, running[c], gpus[c]) for c in gpus if c in running),
    )
    return with_constraints(program, problem, deadline)


def _demands(problem: PlanningProblem, templates: tuple[Template, ...]) -> tuple[Demand, ...]:
    models = sorted(problem.models, key=lambda m: m.name)
    weights = np.array([problem.weight(m) for m in models])
    demands = []
    for model, weight in zip(models, weights, strict=True):
        own = [t for t in templates if t.model == model.name]
        spans_classes = len({t.domain_class for t in own if t.phase is not Phase.MIXED}) > 1
        count, kv_bytes = len(model.ranges), np.zeros(0)
        routes = class_routes(own, model.name, count, problem.links)
        if spans_classes:
            size = model.sent_bytes(own[0].performance)
            kv_bytes = network_row(size, model.lengths, model.ranges, 1.0)
        demands.append(
            Demand(
                model.name,
                float(weight),
                model.lengths.moments(model.ranges).probability,
                served_ranges(own, model.name, count, problem.links),
                spans_classes,
                routes if spans_classes else {},
                kv_bytes,
            )
        )
    return tuple(demands)


def _nodes(problem: PlanningProblem, templates: tuple[Template, ...]) -> Iterator[NodeColumn]:
    """Yield the nodes that are paid for as a whole, of pools and classes that a template uses."""
    used = {(part.pool, t.domain_class) for t in templates for part in t.sections}
    for pool in sorted(problem.pools, key=lambda p: p.name):
        if pool.billing is not Billing.PER_NODE or pool.gpus_per_node is None:
            continue
        for domain_class in pool.classes:
            if (pool.name, domain_class) in used:
                count = sum(d.nodes for d in domains_of(pool) if d.domain_class == domain_class)
                price = float(pool.price_per_gpu_hour) * pool.gpus_per_node
                yield NodeColumn(pool.name, domain_class, count, pool.gpus_per_node, price)


def _max_counts(problem: PlanningProblem, templates: tuple[Template, ...]) -> Iterator[int]:
    """Yield, for each template, the islands that an empty pool holds."""
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
    max_counts: FloatArray,
) -> float:
    """Return a power of two near theta: that of all islands of the best template at the mix.

    If models or stages differ by more than ``FAR``, the smallest theta counts: it limits all.
    """
    best = {(d, stage): 0.0 for d in range(len(demands)) for stage in STAGES}
    for template, count in zip(templates, max_counts, strict=True):
        d = index[template.model]
        mix = np.where(template.servable, demands[d].probability * demands[d].weight, 0.0)
        load = float((template.rows @ mix).max())
        for stage in template.phase.stages:
            best[d, stage] = max(best[d, stage], count / load if load > 0 else 0.0)
    thetas = [value for value in best.values() if value > 0]
    if not thetas:
        return 1.0
    near = max(thetas) <= FAR * min(thetas)
    return float(2.0 ** np.round(np.log2(max(thetas) if near else min(thetas))))
