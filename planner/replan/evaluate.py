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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archipelago.perfmodel.capacity.rows import network_row
from archipelago.perfmodel.model import FloatArray

from ..layout.assemble import times_from
from ..layout.evaluate import evaluate
from ..plan import MILLION, Certificate, Group, Pair, Plan, Unfinished
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
    rates = _observed_rates(problem)
    return np.concatenate([rates[name] for name in sorted(rates)])


def _observed_rates(problem: PlanningProblem) -> dict[str, FloatArray]:
    """Return the observed rate of every range by model [req/s]."""
    return {
        model.name: (model.rate or 0.0) * model.lengths.moments(model.ranges).probability
        for model in problem.models
    }


def _columns(problem: PlanningProblem) -> dict[str, slice]:
    """Return the columns of every model's ranges, models in order of their names."""
    sizes = {model.name: len(model.ranges) for model in problem.models}
    ends = accumulate(sizes[name] for name in sorted(sizes))
    return {n: slice(end - sizes[n], end) for n, end in zip(sorted(sizes), ends, strict=True)}


def loads_of(deployed: DeployedIslands, plan: Plan | None = None) -> Loads:
    """Return the loads of a table over these islands, by default of the published one."""
    plan = plan or deployed.plan
    columns = _columns(deployed.problem)
    shares = _range_shares(deployed.problem, plan)
    routed = np.zeros(sum(len(model.ranges) for model in deployed.problem.models), dtype=np.bool_)
    blocks: list[list[FloatArray]] = []
    for group in plan.groups:
        share, ranges = shares[group.name], columns[group.model]
        if share.any():
            routed[ranges] |= share > 0
            points = [t.rows for t in deployed.operating_points(group)]
            options = []
            for rows in points or [np.full((1, len(share)), NEVER)]:
                wide = np.zeros((len(rows), len(routed)))
                wide[:, ranges] = np.minimum(rows, NEVER) * share
                options.append(wide / group.islands)
            blocks.append(options)
    blocks += [[row] for row in _link_rows(deployed, plan, columns, len(routed))]
    blocks = blocks or [[np.zeros((1, len(routed)))]]
    options = [option for block in blocks for option in block]
    starts = np.cumsum([0, *(len(option) for option in options)])[:-1]
    groups = np.cumsum([0, *(len(block) for block in blocks)])[:-1]
    return Loads(np.vstack(options), starts, groups, routed)


def headroom_of(deployed: DeployedIslands, plan: Plan | None = None) -> float:
    """Return a table's headroom on the mean demand, by default of the published one."""
    rates = mean_rates(deployed.problem)[np.newaxis, :]
    return float(loads_of(deployed, plan).headroom(rates)[0])


def best_operating_points(deployed: DeployedIslands) -> dict[str, Template]:
    """Return the least utilised operating point of every group under the published table.

    It determines the group's headroom. Groups that can serve nothing have none.
    """
    shares = _range_shares(deployed.problem, deployed.plan)
    observed = _observed_rates(deployed.problem)
    points = {}
    for group in deployed.plan.groups:
        rates = shares[group.name] * observed[group.model]
        if choices := deployed.operating_points(group):
            loads = [float((np.minimum(t.rows, NEVER) @ rates).max()) for t in choices]
            points[group.name] = choices[int(np.argmin(loads))]
    return points


def routed_ranges(problem: PlanningProblem, plan: Plan) -> Iterator[tuple[str, int, Pair]]:
    """Yield model, index of the range and pair of every route to a range of the workload."""
    index = {(m.name, span): j for m in problem.models for j, span in enumerate(m.ranges)}
    for route in plan.routes:
        if (j := index.get((route.model, route.range))) is not None:
            for pair in route.pairs:
                yield route.model, j, pair


def by_group(
    problem: PlanningProblem, plan: Plan, rates: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Split the rates of every model's ranges among the groups, by the weights of the table."""
    parts = {group.name: np.zeros(len(rates[group.model])) for group in plan.groups}
    for model, j, pair in routed_ranges(problem, plan):
        for name in {pair.prefill, pair.decode}:
            parts[name][j] += rates[model][j] * pair.weight / MILLION
    return parts


def _range_shares(problem: PlanningProblem, plan: Plan) -> dict[str, FloatArray]:
    """Return the share of each of its model's ranges that every group serves."""
    return by_group(problem, plan, {m.name: np.ones(len(m.ranges)) for m in problem.models})


def _link_rows(
    deployed: DeployedIslands, plan: Plan, columns: Mapping[str, slice], width: int
) -> Iterable[FloatArray]:
    """Return one row per link and direction that KV caches cross."""
    problem = deployed.problem
    classes = {group.name: group.domain_class for group in plan.groups}
    bandwidths = {
        direction: link.bytes_per_second
        for link in problem.links
        for direction in (link.classes, link.classes[::-1])
    }
    if not bandwidths:
        return ()
    sizes = {model.name: np.zeros(len(model.ranges)) for model in problem.models}
    for model in problem.models:  # mean bytes of a prompt's KV cache
        split = (
            t for t in deployed.templates if t.model == model.name and t.phase is not Phase.MIXED
        )
        if template := next(split, None):
            size = model.sent_bytes(template.performance)
            row = network_row(size, model.lengths, model.ranges, 1.0)
            sizes[model.name][: len(row)] = row
    rows: dict[tuple[str, str], FloatArray] = {}
    for name, j, pair in routed_ranges(problem, plan):
        direction = classes[pair.prefill], classes[pair.decode]
        if direction in bandwidths and pair.prefill != pair.decode:
            row = rows.setdefault(direction, np.zeros((1, width)))
            share = pair.weight / MILLION
            row[0, columns[name].start + j] += share * sizes[name][j] / bandwidths[direction]
    return rows.values()


def unproven(theta: float) -> Certificate:
    """Return the certificate of a table over deployed islands: no bound on other islands."""
    return Certificate(theta, 0.0, complete=False, reason=Unfinished.AS_DEPLOYED)


def restate(deployed: DeployedIslands, theta: float) -> Plan:
    """Return the published table with the theta, at most ``theta``, and rates that it supports.

    Without demand (theta is infinite) it stays as it was planned.
    """
    plan, problem = deployed.plan, deployed.problem
    if not np.isfinite(theta):
        return plan
    if names := {template.performance.name for template in deployed.templates}:
        plan = replace(plan, performance_model=times_from(problem, min(names)))
    observed = _observed_rates(problem)
    units = by_group(problem, plan, observed)
    points = best_operating_points(deployed)
    demands = {model.name: model for model in problem.models}

    def at(theta: float) -> list[tuple[Group, float]]:
        """Return the groups at theta, each with the share of its rates that it supports."""
        groups = []
        for group in plan.groups:
            rates, template = units[group.name] * theta, points.get(group.name)
            stated, supported = replace(group, rates=tuple(rates.tolist())), 0.0
            if template is not None:
                result = evaluate(template, demands[group.model], rates / group.islands)
                supported = result.supported
                stated = replace(stated, utilisation=result.utilisation, binding=result.binding)
                if (point := result.point) is not None:
                    stated = replace(
                        stated,
                        step_time=point.step_time,
                        sequences=point.sequences,
                        kv_tokens=point.kv_tokens,
                        kv_capacity=template.performance.kv_capacity(),
                    )
            groups.append((stated, supported))
        return groups

    theta = min(theta, headroom_of(deployed))
    theta *= min([1.0, *(share for group, share in at(theta) if units[group.name].any())])
    routed = {(route.model, route.range) for route in plan.routes}
    rate, shares = 0.0, {}
    for model in problem.models:
        probability = model.lengths.moments(model.ranges).probability.tolist()
        for j, span in enumerate(model.ranges):
            shares[model.name, span] = probability[j]
            rate += float(observed[model.name][j]) if (model.name, span) in routed else 0.0
    return replace(
        plan,
        objective=Objective.HEADROOM,
        theta=theta,
        throughput=theta * rate,
        groups=tuple(group for group, _ in at(theta)),
        routes=tuple(
            replace(r, share=shares.get((r.model, r.range), r.share)) for r in plan.routes
        ),
        certificate=unproven(theta),
        changes=None,
        interval=None,
    )
