"""Headroom of a table on any demand: one product of matrices for all draws of a posterior.

    load_gr(lambda) = sum_j A^g_rj s_gj lambda_j / n_g        h(lambda) = 1 / max_g,r load_gr

with s_gj the share of range j that the table sends to group g and n_g its islands. A group whose
engine has several operating points is as good as the best of them. Links between domain classes
are groups of one row. The rows are conservative (docs/performance-model.md), and the same for all
rungs, so that rungs compare fairly; what is published is settled with the true step times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.capacity import network_row
from archipelago.planner.plan import MILLION
from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem
    from archipelago.planner.replan.standing import Standing
    from archipelago.planner.template import Template

TAIL = 0.05
"""Probability below the lower end of a 90 % interval."""
NEVER = 1e18
"""Entry of a row of what an island cannot serve [s]; finite, so that 0 requests of it load 0."""


@dataclass(frozen=True, eq=False)
class Load:
    """A table's loads: ``rows`` (rows, ranges of all models) per req/s.

    ``options``: first row of every operating point; ``groups``: first option of every group or
    link. ``routed``, shape (ranges,): ranges that the table has a route for.
    """

    rows: FloatArray
    options: NDArray[np.int64]
    groups: NDArray[np.int64]
    routed: NDArray[np.bool_]

    def headroom(self, rates: FloatArray) -> FloatArray:
        """Of every demand, shape (demands, ranges) [req/s]; infinite where nothing is asked."""
        load = self.rows @ rates.T
        best = np.minimum.reduceat(np.maximum.reduceat(load, self.options), self.groups)
        most = best.max(axis=0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(most > 0, 1.0 / most, np.inf))

    def unserved(self, rates: FloatArray) -> float:
        """Share of the requests, shape (ranges,) [req/s], without a route."""
        total = float(rates.sum())
        return float(rates[~self.routed].sum()) / total if total > 0 else 0.0


def mean_rates(problem: PlanningProblem) -> FloatArray:
    """Observed rate of every range of all models, by the models' names [req/s]."""
    models = sorted(problem.models, key=lambda m: m.name)
    parts = [(m.rate or 0.0) * m.lengths.moments(m.ranges).probability for m in models]
    return np.concatenate(parts)


def load_of(standing: Standing, plan: Plan | None = None) -> Load:
    """The loads of a table over these islands; of the standing one where no other is given."""
    plan = plan or standing.plan
    first = _first(standing.problem)
    shares = _shares(standing.problem, plan, first)
    blocks: list[list[FloatArray]] = []
    for group in plan.groups:
        if (share := shares[group.name]).any():
            of = slice(first[group.model], first[group.model] + len(group.rates))
            rows = [t.rows for t in standing.choices(group)] or [_never(len(group.rates))]
            blocks.append([_wide(r, of, share) / group.islands for r in rows])
    blocks += [[row] for row in _links(standing, plan, first)]
    routed = np.any([*shares.values(), np.zeros(first[""])], axis=0)
    return _stacked(blocks, np.asarray(routed, dtype=bool))


def fittest(standing: Standing) -> dict[str, Template]:
    """Of every group the operating point that is used least by the published table.

    The one that the group's headroom goes by; groups that could serve nothing have none.
    """
    first = _first(standing.problem)
    shares = _shares(standing.problem, standing.plan, first)
    mean = mean_rates(standing.problem)
    found = {}
    for group in standing.plan.groups:
        of = slice(first[group.model], first[group.model] + len(group.rates))
        rates = (shares[group.name] * mean)[of]
        choices = standing.choices(group)
        if choices:
            loads = [float((np.minimum(t.rows, NEVER) @ rates).max()) for t in choices]
            found[group.name] = choices[int(np.argmin(loads))]
    return found


def _never(ranges: int) -> FloatArray:
    return np.full((1, ranges), NEVER)


def _first(problem: PlanningProblem) -> dict[str, int]:
    """Column of every model's first range; under "" the number of columns."""
    first, at = {}, 0
    for model in sorted(problem.models, key=lambda m: m.name):
        first[model.name] = at
        at += len(model.ranges)
    return {**first, "": at}


def _shares(problem: PlanningProblem, plan: Plan, first: dict[str, int]) -> dict[str, FloatArray]:
    """Share of every range that each group serves, shape (ranges of all models,)."""
    found = {group.name: np.zeros(first[""]) for group in plan.groups}
    for column, pairs in _by_column(problem, plan, first):
        for prefill, decode, share in pairs:
            for name in {prefill, decode}:
                found[name][column] += share
    return found


def _by_column(
    problem: PlanningProblem, plan: Plan, first: dict[str, int]
) -> Iterator[tuple[int, list[tuple[str, str, float]]]]:
    """Routes of the planned ranges; the one beyond the workload has no column."""
    place = {
        (model.name, span): first[model.name] + j
        for model in problem.models
        for j, span in enumerate(model.ranges)
    }
    for route in plan.routes:
        column = place.get((route.model, route.range))
        if column is not None:
            yield column, [(p.prefill, p.decode, p.weight / MILLION) for p in route.pairs]


def _wide(rows: FloatArray, of: slice, share: FloatArray) -> FloatArray:
    """Rows of one model's ranges over those of all models, times what the group gets of each."""
    wide = np.zeros((len(rows), len(share)))
    mine = share[of]
    wide[:, of] = np.minimum(rows, NEVER) * mine
    return wide


def _links(standing: Standing, plan: Plan, first: dict[str, int]) -> Iterator[FloatArray]:
    """One row per link and direction that caches cross."""
    place = {group.name: group for group in plan.groups}
    carries = {
        way: link.bytes_per_second
        for link in standing.problem.links
        for way in (link.classes, link.classes[::-1])
    }
    found: dict[tuple[str, str], FloatArray] = {}
    sizes = _cache_bytes(standing, first) if carries else np.zeros(first[""])
    for column, pairs in _by_column(standing.problem, plan, first):
        for prefill, decode, share in pairs:
            way = place[prefill].domain_class, place[decode].domain_class
            if way in carries and prefill != decode:
                row = found.setdefault(way, np.zeros((1, first[""])))
                row[0, column] += share * sizes[column] / carries[way]
    yield from found.values()


def _cache_bytes(standing: Standing, first: dict[str, int]) -> FloatArray:
    """Mean size of the cache of a prompt of every range [B]."""
    sizes = np.zeros(first[""])
    for model in standing.problem.models:
        mine = [
            t for t in standing.templates if t.model == model.name and t.phase is not Phase.MIXED
        ]
        for template in mine[:1]:
            row = network_row(template.performance, model.lengths, model.ranges, 1.0)
            sizes[first[model.name] : first[model.name] + len(row)] = row
    return sizes


def _stacked(blocks: list[list[FloatArray]], routed: NDArray[np.bool_]) -> Load:
    options = [option for block in blocks for option in block] or [np.zeros((1, len(routed)))]
    starts = np.cumsum([0, *(len(option) for option in options)])[:-1]
    groups = np.cumsum([0, *(len(block) for block in blocks)])[:-1] if blocks else np.zeros(1)
    return Load(np.vstack(options), starts, groups.astype(np.int64), routed)
