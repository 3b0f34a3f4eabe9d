"""The time of handing over caches: which islands serve a request together within its TTFT target.

A request has its first token when its cache is on the island that decodes it,

    X(l) = alpha + bytes(l) / min(adapters of a sending copy, of a receiving copy, link)

after its prompt. Who sends to whom is decided later, by the program, and again by a repair or a
router. So templates are made such that every pair keeps the target that a plan could form:

    a way takes a range        if X of its longest prompt over it is within the allowance
    a prefill island serves it if its longest prompt and X over its slowest way are within TTFT
    its load                   leaves W = TTFT - E[S] - E[X] of the mix for the mean wait

A larger allowance admits slower receivers and links, and costs the prefill islands the time that
they would need for the slowest of them. If the largest, TTFT itself, costs nothing, it is taken;
else the one of a few with the largest throughput of the model, by a linear program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from archipelago.perfmodel.capacity.queueing import mg1_utilisation
from archipelago.perfmodel.capacity.rows import network_row
from archipelago.perfmodel.model import FloatArray
from archipelago.perfmodel.roofline.kv_transfer import Way, latency

from ..plan import Exclusion, IslandClass
from ..problem import Link, ModelDemand, Phase, PlanningProblem
from .packing import capacity
from .template import FirstTokens, Template

Mask: TypeAlias = NDArray[np.bool_]
Entry: TypeAlias = tuple[tuple[object, ...], int, float]
"""Row, column and value of a matrix."""

HALVINGS = 10
"""Allowances that are compared: TTFT, its half, and so on; a 512th of it is the least."""
ROUNDING = 1e-6
"""Relative difference of throughputs, and of sums of probabilities, that is rounding."""
NOTHING = 1e-3
"""Share of its time that the widest allowance may cost a prefill island, without a comparison: the
default gap of a plan."""


def ways_of(links: Iterable[Link], classes: Iterable[str]) -> dict[tuple[str, str], Way]:
    """Return the ways between domain classes that caches may take, those inside a class included.

    Inside a class only the adapters limit the bandwidth.
    """
    default = latency()
    ways = {(place, place): Way(default, np.inf) for place in classes}
    for link in links:
        alpha = default if link.latency is None else link.latency
        for pair in (link.classes, link.classes[::-1]):
            ways[pair] = Way(alpha, link.bytes_per_second)
    return ways


@dataclass(frozen=True)
class Dropped:
    """A template that no other one can serve requests with; ``factor``: its time over TTFT [1]."""

    template: Template
    factor: float
    reason: str

    @property
    def exclusion(self) -> Exclusion:
        """What the plan shows of it."""
        return Exclusion(self.template.key, self.reason)


def settled(
    problem: PlanningProblem,
    templates: Sequence[Template],
    deployed: AbstractSet[IslandClass] = frozenset(),
) -> tuple[list[Template], list[Dropped]]:
    """Return the templates with what the transfers leave of them, and those of which nothing is.

    Args:
        problem: The problem; models without a TTFT target keep their templates as they are.
        templates: Templates by their own times alone.
        deployed: Classes of islands that should keep their ranges, because requests are there.
    """
    new: dict[int, Template] = {}
    dropped: list[Dropped] = []
    for demand in problem.models:
        own = [template for template in templates if template.model == demand.name]
        phases = {template.phase for template in own}
        if demand.targets.ttft is None or not {Phase.PREFILL, Phase.DECODE} <= phases:
            continue
        transfers = _Transfers(problem, demand, demand.targets.ttft, own)
        settlement = transfers.best(deployed)
        for template, change in transfers.applied(settlement):
            if isinstance(change, Dropped):
                dropped.append(change)
            new[id(template)] = template if isinstance(change, Dropped) else change
    gone = {id(each.template) for each in dropped}
    return [new.get(id(t), t) for t in templates if id(t) not in gone], dropped


@dataclass(frozen=True, eq=False)
class _Settlement:
    """What an allowance [s] admits: ranges of receivers, senders and ways, and shares of time.

    ``senders`` and ``receivers``, shape (templates, ranges). ``shares``, shape (senders,): of time
    for prompts [1]. ``sent``, shape (senders, ranges): X of the longest prompts [s].
    """

    allowance: float
    senders: Mask
    receivers: Mask
    ways: dict[tuple[str, str], Mask]
    shares: FloatArray
    sent: FloatArray


class _Transfers:
    """The transfers of one model between all pairs of its templates."""

    def __init__(
        self, problem: PlanningProblem, demand: ModelDemand, ttft: float, own: list[Template]
    ) -> None:
        self.problem, self.demand, self.ttft = problem, demand, ttft
        self.senders = [t for t in own if t.phase is Phase.PREFILL]
        self.receivers = [t for t in own if t.phase is Phase.DECODE]
        self.mixed = [t for t in own if t.phase is Phase.MIXED]
        self.firsts: list[FirstTokens] = [t.first for t in self.senders if t.first is not None]
        self.size = demand.sent_bytes(own[0].performance)
        self.longest = self.size(np.array([span.max - 1.0 for span in demand.ranges]))
        lengths = demand.lengths
        ends = [span.max for span in demand.ranges[:-1]]
        at = np.searchsorted(ends, lengths.length, side="right")
        count, p = len(demand.ranges), lengths.probability
        # Of the whole mix; what is longer than every range counts in the last one.
        self.requests = np.bincount(at, p, count)
        self.volume = np.bincount(at, p * self.size(lengths.length), count)
        self.ways = ways_of(problem.links, {t.domain_class for t in self.senders})
        self.speeds = np.array([t.speed for t in self.senders])
        self.alone = np.stack([first.alone for first in self.firsts])
        self.able = np.stack([t.servable for t in self.senders])

    def under(self, allowance: float) -> _Settlement:
        """Return what an allowance admits [s]."""
        default = latency()
        speeds = np.array([t.speed for t in self.receivers])[:, None]
        takes = np.stack([t.servable for t in self.receivers])
        takes = takes & (default + self.longest / speeds <= allowance)
        places = np.array([t.domain_class for t in self.receivers])
        slowest = {  # of the receivers of each class
            place: np.where(takes, speeds, np.inf)[places == place].min(axis=0)
            for place in sorted({*places.tolist()})
        }
        ways: dict[tuple[str, str], Mask] = {}
        alpha: dict[str, FloatArray] = defaultdict(lambda: np.full(len(self.longest), -np.inf))
        beta: dict[str, FloatArray] = defaultdict(lambda: np.full(len(self.longest), np.inf))
        for (source, target), way in self.ways.items():
            if target not in slowest:
                continue
            speed = np.minimum(slowest[target], way.beta)
            opened = takes[places == target].any(axis=0)
            opened = opened & (way.alpha + self.longest / speed <= allowance)
            ways[source, target] = opened
            alpha[source] = np.where(opened, np.maximum(alpha[source], way.alpha), alpha[source])
            beta[source] = np.where(opened, np.minimum(beta[source], speed), beta[source])
        alphas = np.stack([alpha[t.domain_class] for t in self.senders])
        betas = np.stack([beta[t.domain_class] for t in self.senders])
        reached = np.isfinite(alphas)
        alphas = np.where(reached, alphas, default)  # of ranges that are not sent: own adapters
        able, shares, sent = self._left(alphas, np.minimum(betas, self.speeds[:, None]))
        able &= reached
        sending = {
            place: able[[t.domain_class == place for t in self.senders]].any(axis=0)
            for place in {t.domain_class for t in self.senders}
        }
        fed = {place: np.zeros(len(self.longest), dtype=bool) for place in slowest}
        for (source, target), opened in ways.items():
            if source in sending:
                fed[target] |= opened & sending[source]
        takes &= np.stack([fed[place] for place in places.tolist()])
        return _Settlement(allowance, able, takes, ways, shares, sent)

    def _left(self, alphas: FloatArray, betas: FloatArray) -> tuple[Mask, FloatArray, FloatArray]:
        """Return the ranges of senders within TTFT, shares of time for prompts, and X [s].

        ``alphas`` [s] and ``betas`` [B/s], shape (senders, ranges): of the slowest way.
        """
        sent = alphas + self.longest / betas
        means = alphas @ self.requests + (1 / betas) @ self.volume
        most = self.demand.max_utilisation
        shares = np.array([
            min(mg1_utilisation(self.ttft - mean - first.mean, first.mean, first.square), most)
            for mean, first in zip(means.tolist(), self.firsts, strict=True)
        ])  # fmt: skip
        able = self.able & (self.alone + sent <= self.ttft) & (shares > 0)[:, None]
        return able, shares, sent

    def best(self, deployed: AbstractSet[IslandClass]) -> _Settlement:
        """Return the settlement with the largest throughput; of equal ones the widest."""
        widest = self.under(self.ttft)
        own = np.full_like(self.alone, latency())
        able, shares, _ = self._left(own, np.broadcast_to(self.speeds[:, None], own.shape))
        reached = np.zeros_like(able)
        for (source, _), opened in widest.ways.items():
            reached[[t.domain_class == source for t in self.senders]] |= opened
        lost = (able & reached & ~widest.senders).any()
        if not lost and (widest.shares >= shares * (1 - NOTHING)).all():
            return widest
        choices = [widest, *(self.under(self.ttft / 2**n) for n in range(1, HALVINGS))]
        kept = [self._kept(each, deployed) for each in choices]
        choices = [each for each, n in zip(choices, kept, strict=True) if n == max(kept)]
        served = [float(self.probability[self._served(each)].sum()) for each in choices]
        least = max(served) * (1 - ROUNDING)
        choices = [each for each, part in zip(choices, served, strict=True) if part >= least]
        thetas = [self._throughput(each) for each in choices]
        near = max(thetas) * (1 - ROUNDING)
        return next(each for each, theta in zip(choices, thetas, strict=True) if theta >= near)

    @cached_property
    def probability(self) -> FloatArray:
        """Probability of each range, shape (ranges,)."""
        return self.demand.lengths.moments(self.demand.ranges).probability

    def _kept(self, settlement: _Settlement, deployed: AbstractSet[IslandClass]) -> int:
        """Return how many ranges the islands that run keep."""
        sides = ((self.senders, settlement.senders), (self.receivers, settlement.receivers))
        return sum(
            int(able.sum())
            for templates, masks in sides
            for template, able in zip(templates, masks, strict=True)
            if template.island_class in deployed
        )

    def _served(self, settlement: _Settlement) -> Mask:
        served = np.zeros(len(self.longest), dtype=bool)
        for template in self.mixed:
            served |= template.servable
        return served | settlement.receivers.any(axis=0)

    def _throughput(self, settlement: _Settlement) -> float:
        """Return the model's throughput with all GPUs [req/s], without whole islands.

        A linear program over the rates of each range: of each pool and class the best template of a
        stage, GPUs of pools, ways between classes and the bandwidths of links.
        """
        ranges = np.flatnonzero(self._served(settlement) & (self.probability > 0))
        if not len(ranges):
            return 0.0
        balance: list[Entry] = []
        limits: list[Entry] = []
        column = 0
        for template, j, load in self._options(settlement, ranges):
            column += 1
            limits += [
                ((part.pool, template.domain_class), column, load * part.gpus)
                for part in template.sections
            ]
            if template.phase is Phase.MIXED:
                balance.append((("range", j), column, 1.0))
            else:
                balance.append(((template.phase, template.domain_class, j), column, 1.0))
        room: dict[tuple[object, ...], float] = {
            (pool.name, place): float(capacity(pool, 1, place))
            for pool in self.problem.pools
            for place in pool.classes
        }
        bytes_of = network_row(self.size, self.demand.lengths, self.demand.ranges, 1.0)
        for (source, target), opened in settlement.ways.items():
            for j in ranges[opened[ranges]].tolist():
                column += 1
                balance.append((("range", j), column, 1.0))
                balance.append(((Phase.PREFILL, source, j), column, -1.0))
                balance.append(((Phase.DECODE, target, j), column, -1.0))
                if source != target:
                    key = (f"link {source}", target)
                    limits.append((key, column, float(bytes_of[j])))
                    room[key] = self.ways[source, target].beta
        balance += [(("range", j), 0, -float(self.probability[j])) for j in ranges.tolist()]
        cost = np.zeros(column + 1)
        cost[0] = -1.0
        equal, _ = _matrix(balance, column + 1)
        upper, names = _matrix(limits, column + 1)
        most = np.array([room[name] for name in names])
        result = linprog(cost, upper, most, equal, np.zeros(equal.shape[0]), method="highs")
        return float(-result.fun) if result.success else 0.0

    def _options(
        self, settlement: _Settlement, ranges: NDArray[np.int64]
    ) -> Iterator[tuple[Template, int, float]]:
        """Yield the template of fewest GPUs per request by pools, class, phase and range.

        With the island-seconds that it needs for one request [s].
        """
        shares = settlement.shares.tolist()
        factors = [f.share / s if s else 1.0 for f, s in zip(self.firsts, shares, strict=True)]
        factors += [1.0] * (len(self.receivers) + len(self.mixed))
        masks = [*settlement.senders, *settlement.receivers, *(t.servable for t in self.mixed)]
        best: dict[tuple[str, str, Phase, int], tuple[float, Template, float]] = {}
        everyone = [*self.senders, *self.receivers, *self.mixed]
        for template, mask, factor in zip(everyone, masks, factors, strict=True):
            load = _scaled(template, factor).max(axis=0)
            for j in ranges[mask[ranges] & np.isfinite(load[ranges])].tolist():
                key = template.pool, template.domain_class, template.phase, j
                work = float(load[j]) * template.gpus
                if key not in best or work < best[key][0]:
                    best[key] = work, template, float(load[j])
        for (*_, j), (_, template, seconds) in best.items():
            yield template, j, seconds

    def applied(self, settlement: _Settlement) -> Iterator[tuple[Template, Template | Dropped]]:
        """Yield each template with what is left of it."""
        ms = 1e3
        ways: dict[str, dict[str, Mask]] = defaultdict(dict)
        for (source, target), opened in settlement.ways.items():
            ways[source][target] = opened
        for i, (template, first) in enumerate(zip(self.senders, self.firsts, strict=True)):
            if settlement.senders[i].any():
                share = float(settlement.shares[i])
                yield (
                    template,
                    replace(
                        template,
                        rows=_scaled(template, first.share / share),
                        servable=settlement.senders[i],
                        first=replace(first, share=share),
                        ways=dict(ways[template.domain_class]),
                    ),
                )
                continue
            alone, sent = float(first.alone[0]), float(settlement.sent[i, 0])
            reason = (
                f"TTFT {self.ttft * ms:.0f} ms: an idle island needs {alone * ms:.0f} ms for the "
                f"shortest range and {first.mean * ms:.0f} ms on average, and {sent * ms:.0f} ms "
                "to hand the cache of the former over"
            )
            yield template, Dropped(template, (alone + sent) / self.ttft, reason)
        fastest = float(self.alone.min())
        for template, able in zip(self.receivers, settlement.receivers, strict=True):
            if able.any():
                yield template, replace(template, servable=able)
                continue
            received = latency() + float(self.longest[0]) / template.speed
            reason = (
                f"TTFT {self.ttft * ms:.0f} ms: the cache of the shortest range takes "
                f"{received * ms:.0f} ms to it, its prompt {fastest * ms:.0f} ms on the fastest "
                f"island; transfers may take {settlement.allowance * ms:.0f} ms in this plan"
            )
            yield template, Dropped(template, (received + fastest) / self.ttft, reason)


def _scaled(template: Template, factor: float) -> FloatArray:
    """Return the rows with the time row of a prefill island longer by a factor."""
    factors = [factor if name == "time" else 1.0 for name in template.row_names]
    return np.asarray(template.rows * np.array(factors)[:, np.newaxis])


def _matrix(
    entries: Sequence[Entry], columns: int
) -> tuple[sparse.csr_array, list[tuple[object, ...]]]:
    """Return the matrix of some entries, and the names of its rows in order."""
    rows: dict[tuple[object, ...], int] = {}
    at = [rows.setdefault(row, len(rows)) for row, _, _ in entries]
    place = at, [column for _, column, _ in entries]
    values = [value for _, _, value in entries]
    return sparse.csr_array((values, place), shape=(len(rows), columns)), list(rows)
