"""Evaluate a table on any demand, and restate it for the observed one.

Headroom is one product of matrices for all draws of a posterior:

    load_gr(lambda) = sum_j A^g_rj s_gj lambda_j / n_g        h(lambda) = 1 / max_g,r load_gr

with s_gj the share of range j that the table sends to group g and n_g its islands. A group whose
engine has several operating points is as good as the best of them. Links between domain classes
are groups of one row. The rows are conservative (docs/explanation/performance-model.md) and the
same for all levels, so that levels compare fairly.

``restate`` keeps weights and islands. Shares, theta, rates and fixed points become what the true
step times give for the observed lengths and rates; the independent checker agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.capacity.rows import network_row
from archipelago.perfmodel.model import FloatArray

from ..layout.assemble import times_from
from ..layout.evaluate import evaluate
from ..plan import MILLION, Certificate, Group, Plan
from ..problem import Objective, Phase, PlanningProblem
from ..templates.template import Template

if TYPE_CHECKING:
    from .deployed import DeployedIslands


TAIL = 0.05
"""Probability below the lower end of a 90 % interval."""
NEVER = 1e18
"""Row entry of a range that an island cannot serve [s]; finite, so that 0 requests load 0."""


@dataclass(frozen=True, eq=False)
class Loads:
    """A table's loads per req/s: ``rows`` of shape (rows, ranges of all models).

    ``options``: first row of every operating point; ``groups``: first option of every group or
    link. ``routed``, shape (ranges,): whether the table has a route for the range.
    """

    rows: FloatArray
    options: NDArray[np.int64]
    groups: NDArray[np.int64]
    routed: NDArray[np.bool_]

    def headroom(self, rates: FloatArray) -> FloatArray:
        """Return the headroom by demand, shape (demands,); infinite without load.

        ``rates``: shape (demands, ranges) [req/s].
        """
        load = self.rows @ rates.T
        best = np.minimum.reduceat(np.maximum.reduceat(load, self.options), self.groups)
        most = best.max(axis=0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(most > 0, 1.0 / most, np.inf))

    def unserved(self, rates: FloatArray) -> float:
        """Return the share of requests without a route; ``rates`` of shape (ranges,) [req/s]."""
        total = float(rates.sum())
        return float(rates[~self.routed].sum()) / total if total > 0 else 0.0


def mean_rates(problem: PlanningProblem) -> FloatArray:
    """Return the observed rate of every range, models in order of their names [req/s]."""
    models = sorted(problem.models, key=lambda m: m.name)
    parts = [(m.rate or 0.0) * m.lengths.moments(m.ranges).probability for m in models]
    return np.concatenate(parts)


def loads_of(deployed: DeployedIslands, plan: Plan | None = None) -> Loads:
    """Return the loads of a table over these islands, by default of the published one."""
    plan = plan or deployed.plan
    first = _first(deployed.problem)
    shares = _shares(deployed.problem, plan, first)
    blocks: list[list[FloatArray]] = []
    for group in plan.groups:
        if (share := shares[group.name]).any():
            ranges = slice(first[group.model], first[group.model] + len(group.rates))
            rows = [t.rows for t in deployed.operating_points(group)]
            rows = rows or [np.full((1, len(group.rates)), NEVER)]
            blocks.append([_widened(r, ranges, share) / group.islands for r in rows])
    blocks += [[row] for row in _links(deployed, plan, first)]
    routed = np.any([*shares.values(), np.zeros(first[""])], axis=0)
    options = [option for block in blocks for option in block] or [np.zeros((1, len(routed)))]
    starts = np.cumsum([0, *(len(option) for option in options)])[:-1]
    groups = np.cumsum([0, *(len(block) for block in blocks)])[:-1] if blocks else np.zeros(1)
    return Loads(
        np.vstack(options), starts, groups.astype(np.int64), np.asarray(routed, dtype=bool)
    )


def best_operating_points(deployed: DeployedIslands) -> dict[str, Template]:
    """Return the least utilised operating point of every group under the published table.

    It determines the group's headroom. Groups that can serve nothing have none.
    """
    first = _first(deployed.problem)
    shares = _shares(deployed.problem, deployed.plan, first)
    mean = mean_rates(deployed.problem)
    points = {}
    for group in deployed.plan.groups:
        ranges = slice(first[group.model], first[group.model] + len(group.rates))
        rates = (shares[group.name] * mean)[ranges]
        choices = deployed.operating_points(group)
        if choices:
            loads = [float((np.minimum(t.rows, NEVER) @ rates).max()) for t in choices]
            points[group.name] = choices[int(np.argmin(loads))]
    return points


def _first(problem: PlanningProblem) -> dict[str, int]:
    """Return the column of every model's first range; under "" the number of columns."""
    first, at = {}, 0
    for model in sorted(problem.models, key=lambda m: m.name):
        first[model.name] = at
        at += len(model.ranges)
    return {**first, "": at}


def _shares(problem: PlanningProblem, plan: Plan, first: dict[str, int]) -> dict[str, FloatArray]:
    """Return the share of every range that each group serves, shape (ranges of all models,)."""
    shares = {group.name: np.zeros(first[""]) for group in plan.groups}
    for column, pairs in _by_column(problem, plan, first):
        for prefill, decode, share in pairs:
            for name in {prefill, decode}:
                shares[name][column] += share
    return shares


def _by_column(
    problem: PlanningProblem, plan: Plan, first: dict[str, int]
) -> Iterator[tuple[int, list[tuple[str, str, float]]]]:
    """Yield column and pairs of every planned range; a range beyond the workload has none."""
    columns = {
        (model.name, span): first[model.name] + j
        for model in problem.models
        for j, span in enumerate(model.ranges)
    }
    for route in plan.routes:
        column = columns.get((route.model, route.range))
        if column is not None:
            yield column, [(p.prefill, p.decode, p.weight / MILLION) for p in route.pairs]


def _widened(rows: FloatArray, ranges: slice, share: FloatArray) -> FloatArray:
    """Return rows over the ranges of all models, times the group's share of each range."""
    wide = np.zeros((len(rows), len(share)))
    wide[:, ranges] = np.minimum(rows, NEVER) * share[ranges]
    return wide


def _links(deployed: DeployedIslands, plan: Plan, first: dict[str, int]) -> Iterator[FloatArray]:
    """Yield one row per link and direction that KV caches cross."""
    classes = {group.name: group.domain_class for group in plan.groups}
    bandwidths = {
        direction: link.bytes_per_second
        for link in deployed.problem.links
        for direction in (link.classes, link.classes[::-1])
    }
    rows: dict[tuple[str, str], FloatArray] = {}
    sizes = _cache_bytes(deployed, first) if bandwidths else np.zeros(first[""])
    for column, pairs in _by_column(deployed.problem, plan, first):
        for prefill, decode, share in pairs:
            direction = classes[prefill], classes[decode]
            if direction in bandwidths and prefill != decode:
                row = rows.setdefault(direction, np.zeros((1, first[""])))
                row[0, column] += share * sizes[column] / bandwidths[direction]
    yield from rows.values()


def _cache_bytes(deployed: DeployedIslands, first: dict[str, int]) -> FloatArray:
    """Return the mean size of a prompt's KV cache for every range [B]."""
    sizes = np.zeros(first[""])
    for model in deployed.problem.models:
        split = (
            t for t in deployed.templates if t.model == model.name and t.phase is not Phase.MIXED
        )
        if template := next(split, None):
            row = network_row(template.performance, model.lengths, model.ranges, 1.0)
            sizes[first[model.name] : first[model.name] + len(row)] = row
    return sizes


def unproven(theta: float) -> Certificate:
    """Return the certificate of a table over deployed islands: no bound on other islands."""
    return Certificate(theta, 0.0, complete=False, reason="islands as they stand: no bound")


def restate(deployed: DeployedIslands, theta: float) -> Plan:
    """Return the published table with the theta, at most ``theta``, and rates that it supports.

    Without demand (theta is infinite) it stays as it was planned.
    """
    plan, problem = deployed.plan, deployed.problem
    if not np.isfinite(theta):
        return plan
    if names := {template.performance.name for template in deployed.templates}:
        plan = replace(plan, performance_model=times_from(problem, min(names)))
    shares = {
        (model.name, span): float(share)
        for model in problem.models
        for span, share in zip(
            model.ranges, model.lengths.moments(model.ranges).probability, strict=True
        )
    }
    units = _units(problem, plan)
    points = best_operating_points(deployed)
    rows = loads_of(deployed).headroom(mean_rates(problem)[np.newaxis, :])
    theta = min(theta, float(rows[0]))
    supported = [
        _at_rates(deployed, g, points.get(g.name), units[g.name] * theta)[1]
        for g in plan.groups
        if units[g.name].any()
    ]
    theta *= min([1.0, *supported])
    routed = {(route.model, route.range) for route in plan.routes}
    rate = sum(
        (model.rate or 0.0) * shares[model.name, span]
        for model in problem.models
        for span in model.ranges
        if (model.name, span) in routed
    )
    return replace(
        plan,
        objective=Objective.HEADROOM,
        theta=theta,
        throughput=theta * rate,
        groups=tuple(
            _at_rates(deployed, g, points.get(g.name), units[g.name] * theta)[0]
            for g in plan.groups
        ),
        routes=tuple(
            replace(r, share=shares.get((r.model, r.range), r.share)) for r in plan.routes
        ),
        certificate=unproven(theta),
        changes=None,
        interval=None,
    )


def _units(problem: PlanningProblem, plan: Plan) -> dict[str, FloatArray]:
    """Return the rates of every group by range at theta 1, by the routes' weights [req/s]."""
    units = {group.name: np.zeros(len(group.rates)) for group in plan.groups}
    for model in problem.models:
        rates = (model.rate or 0.0) * model.lengths.moments(model.ranges).probability
        place = {span: j for j, span in enumerate(model.ranges)}
        for route in plan.routes:
            j = place.get(route.range) if route.model == model.name else None
            for pair in route.pairs if j is not None else ():
                for name in {pair.prefill, pair.decode}:
                    units[name][j] += rates[j] * pair.weight / MILLION
    return units


def _at_rates(
    deployed: DeployedIslands, group: Group, template: Template | None, rates: FloatArray
) -> tuple[Group, float]:
    """Return the group at these rates [req/s], and the share of them that it supports."""
    group = replace(group, rates=tuple(rates.tolist()))
    if template is None:
        return group, 0.0
    demand = next(m for m in deployed.problem.models if m.name == group.model)
    result = evaluate(template, demand, rates / group.islands)
    group = replace(group, utilisation=result.utilisation, binding=result.binding)
    if (point := result.point) is not None:
        group = replace(
            group,
            step_time=point.step_time,
            sequences=point.sequences,
            kv_tokens=point.kv_tokens,
            kv_capacity=template.performance.kv_capacity(),
        )
    return group, result.supported
