"""How the requests of a table are shared by the groups that are left after a loss.

The one rule of repairs, whether the table is a plan or JSON. Needs groups and routes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..plan import MILLION, Pair
from ..problem import Phase


@dataclass(frozen=True)
class Unrepairable:
    """Why the last good table stays: a phase of ``model`` has no island left."""

    model: str
    message: str


class Side(NamedTuple):
    """A group, with its islands before and after the loss."""

    model: str
    phase: Phase
    domain_class: str
    before: int
    after: int


class Way(NamedTuple):
    """The pairs of one model for lengths up to ``end`` [tokens]."""

    model: str
    end: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Loss:
    """All groups and routes of a table, of which islands are lost."""

    groups: Mapping[str, Side]
    routes: Sequence[Way]

    def refusal(self) -> Unrepairable | None:
        """Return why no table works; None if one does."""
        for model in sorted({group.model for group in self.groups.values()}):
            if not any(self.possible(model)):
                message = f"{model}: no prefill island can reach a decode island; the table stays"
                return Unrepairable(model, message)
        return None

    def weight(self, pair: Pair) -> float:
        """Return the pair's weight times what remains of both groups (a mixed group once)."""
        weight = float(pair.weight)
        for name in sorted({pair.prefill, pair.decode}):
            group = self.groups[name]
            weight *= group.after / group.before if group.after else 0.0
        return weight

    def rerouted(self, route: Way) -> tuple[Pair, ...]:
        """Return the route's new pairs.

        A pair's weight falls with the islands that its groups lost. A route that lost all pairs
        goes to groups that serve ranges at least as long, else to any of the model: an engine may
        refuse a request there, but a lost island certainly does.
        """
        weights = [self.weight(pair) for pair in route.pairs]
        if any(weights):
            return _weighted(route.pairs, weights)
        pairs = self.able(route) or list(self.possible(route.model))
        return _weighted(pairs, [float(pair.weight) for pair in pairs])

    def surely_served(self, route: Way) -> bool:
        """Return whether a remaining group served the range or longer ones."""
        return any(map(self.weight, route.pairs)) or bool(self.able(route))

    def able(self, route: Way) -> list[Pair]:
        """Return the possible pairs of groups that have a route at least as long."""
        names = {
            name
            for other in self.routes
            if other.model == route.model and other.end >= route.end
            for pair in other.pairs
            for name in (pair.prefill, pair.decode)
        }
        return [p for p in self.possible(route.model) if {p.prefill, p.decode} <= names]

    def possible(self, model: str) -> Iterator[Pair]:
        """Yield pairs of groups that can reach each other, weighted by the islands on both sides.

        Groups of one domain class, or of classes between which the table already sends KV caches.
        """
        classes = {name: group.domain_class for name, group in self.groups.items()}
        crossed = {
            (classes[pair.prefill], classes[pair.decode])
            for route in self.routes
            if route.model == model
            for pair in route.pairs
        }
        remaining = [(n, g) for n, g in self.groups.items() if g.model == model and g.after]
        for name, group in remaining:
            if group.phase is Phase.MIXED:
                yield Pair(name, name, group.after**2)
            for other, target in remaining if group.phase is Phase.PREFILL else ():
                ends = group.domain_class, target.domain_class
                if target.phase is Phase.DECODE and (ends[0] == ends[1] or ends in crossed):
                    yield Pair(name, other, group.after * target.after)


def _weighted(pairs: Sequence[Pair], weights: Sequence[float]) -> tuple[Pair, ...]:
    """Return the pairs with whole weights per million, by largest remainder; ties go first."""
    total = sum(weights)
    exact = [weight / total * MILLION for weight in weights]
    whole = [int(share) for share in exact]
    order = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for index in order[: MILLION - sum(whole)]:
        whole[index] += 1
    return tuple(
        Pair(pair.prefill, pair.decode, share)
        for pair, share in zip(pairs, whole, strict=True)
        if share
    )
