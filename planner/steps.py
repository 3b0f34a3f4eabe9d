"""Problems one step away: a smallest island, a node, a budget step, a step of the rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from archipelago.planner.packing import classes_of, island_sizes
from archipelago.planner.problem import (
    DEFAULT_CLASS,
    Billing,
    Domain,
    Objective,
    PlanningProblem,
    Pool,
)
from archipelago.planner.resolve import PART

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archipelago.planner.template import Template

RATE_STEP = 5
"""Step of the rates under the cost objective [%]."""


@dataclass(frozen=True, eq=False)
class Changed:
    """A problem one step away; ``problem`` None where nothing of the pool or budget is left.

    ``better``: the step only adds room.
    """

    kind: str
    subject: str
    amount: float
    unit: str
    problem: PlanningProblem | None
    better: bool


def steps(problem: PlanningProblem, templates: tuple[Template, ...]) -> Iterator[Changed]:
    """Every step that can matter, more first."""
    for pool in problem.pools:
        for domain_class in classes_of(pool):
            yield from _gpu_steps(problem, pool, domain_class, templates)
    least = cheapest(problem, templates)
    if problem.budget_per_hour is not None and least is not None:
        for money in (least, -least):
            budget = problem.budget_per_hour + money
            spent = replace(problem, budget_per_hour=budget) if budget > 0 else None
            yield Changed("budget", "all islands", float(money), "$/h", spent, money > 0)
    if problem.objective is Objective.COST:
        for share in (RATE_STEP, -RATE_STEP):
            asked = (problem.min_headroom or 1.0) * (1 + share / 100)
            changed = replace(problem, min_headroom=asked)
            yield Changed("rate", "all models", share, "%", changed, share < 0)


def _gpu_steps(
    problem: PlanningProblem, pool: Pool, domain_class: str, templates: tuple[Template, ...]
) -> Iterator[Changed]:
    sizes = {t.gpus_of(pool.name) for t in templates if t.domain_class == domain_class} - {0}
    node = pool.gpus_per_node
    # Part of a node is a pool of its own, which islands of several pools could not use.
    whole = node is not None and any(pool.name in names for names in problem.pipelines)
    wanted = [] if whole or not sizes else [min(sizes)]
    if node is not None and sizes:
        wanted.append(node)
    for gpus in dict.fromkeys(wanted):
        kind = "node" if gpus == node else "island"
        for amount in (gpus, -gpus):
            changed = with_gpus(problem, pool, amount, domain_class)
            yield Changed(kind, place(pool, domain_class), amount, "GPUs", changed, amount > 0)


def place(pool: Pool, domain_class: str) -> str:
    """The pool, and its class where it has several."""
    return pool.name if len(classes_of(pool)) == 1 else f"{pool.name} in {domain_class}"


def cheapest(problem: PlanningProblem, templates: tuple[Template, ...]) -> Decimal | None:
    """Price of the cheapest island: the smallest budget step that can buy something [$/h]."""
    pools = {pool.name: pool for pool in problem.pools}
    costs = [sum((_price(pools[p.pool], p.gpus) for p in t.sections), Decimal()) for t in templates]
    return min((cost for cost in costs if cost), default=None)


def _price(pool: Pool, gpus: int) -> Decimal:
    """Of some GPUs where nothing stands yet, whole nodes where they are paid for as such [$/h]."""
    node = pool.gpus_per_node if pool.billing is Billing.PER_NODE else None
    return pool.price_per_gpu_hour * (gpus if node is None else math.ceil(gpus / node) * node)


def with_gpus(
    problem: PlanningProblem, pool: Pool, delta: int, domain_class: str | None = None
) -> PlanningProblem | None:
    """The problem with some GPUs of a pool more or fewer; None where no pool is left.

    Whole nodes go where they help most or are missed least. A part of a node is a pool of its own
    with one small node, because it packs like that. Of a pool that may rent, one may rent more or
    fewer. ``domain_class`` None: any.
    """
    node = pool.gpus_per_node
    if node is None or delta % node == 0:
        new = [_resized(pool, delta, domain_class)]
    elif delta > 0:
        whole, part = divmod(delta, node)
        new = [_resized(pool, whole * node, domain_class), _part(pool, part, domain_class)]
    else:
        nodes = math.ceil(-delta / node)  # whole, then part of the last one is given back
        rest = nodes * node + delta
        new = [_resized(pool, -nodes * node, domain_class), _part(pool, rest, domain_class)]
    others = [p for p in problem.pools if p.name != pool.name]
    pools = (*others, *(p for p in new if p.available > 0))
    return _without_lost(replace(problem, pools=pools)) if pools else None


def _without_lost(problem: PlanningProblem) -> PlanningProblem:
    """Pipelines over pools that are gone are gone too."""
    names = {pool.name for pool in problem.pools}
    kept = tuple(pools for pools in problem.pipelines if names.issuperset(pools))
    return replace(problem, pipelines=kept)


def _part(pool: Pool, gpus: int, domain_class: str | None) -> Pool:
    sizes = tuple(size for size in island_sizes(pool) if size <= gpus)
    place = domain_class or DEFAULT_CLASS
    return replace(
        pool,
        name=pool.name + PART,
        count=gpus,
        max_count=None,
        gpus_per_node=gpus,
        domains=() if place == DEFAULT_CLASS else (Domain("part", 1, place),),
        island_sizes=sizes,
    )


def _resized(pool: Pool, delta: int, domain_class: str | None) -> Pool:
    """The pool with GPUs more or fewer: rented ones where it may rent, then its own."""
    if pool.max_count is not None:
        rents = pool.domains[0].domain_class if pool.domains else DEFAULT_CLASS
        if domain_class not in (None, rents):
            own = _resized(replace(pool, max_count=None), delta, domain_class)
            return replace(own, max_count=pool.max_count + delta)
        if pool.max_count + delta > pool.count:
            return replace(pool, max_count=pool.max_count + delta)
        delta += pool.max_count - pool.count
        pool = replace(pool, max_count=None)
    domains = pool.domains
    nodes = 0 if pool.gpus_per_node is None else delta // pool.gpus_per_node
    if domains and pool.gpus_per_node is not None:
        chain = [s // pool.gpus_per_node for s in island_sizes(pool) if s >= pool.gpus_per_node]
        for _ in range(abs(nodes)):
            domains = _one_node(domains, chain, 1 if nodes > 0 else -1, domain_class)
    return replace(pool, count=max(pool.count + delta, 0), domains=domains)


def _one_node(
    domains: tuple[Domain, ...], chain: list[int], sign: int, domain_class: str | None
) -> tuple[Domain, ...]:
    """One node more where it completes the largest island, or fewer where it breaks the least.

    Sizes divide each other, so the number of sizes that divide a domain says how large that is.
    """

    def completes(domain: Domain) -> int:
        nodes = domain.nodes + (1 if sign > 0 else 0)
        return sum(1 for size in chain if nodes % size == 0)

    those = [d for d in domains if domain_class in (None, d.domain_class)]
    if not those:
        return domains
    at = sorted(those, key=completes)[-1 if sign > 0 else 0]
    new = replace(at, nodes=at.nodes + sign)
    changed = (new if domain is at else domain for domain in domains)
    return tuple(domain for domain in changed if domain.nodes > 0)
