"""What is known of live plans beside their objects, put together for one decision."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from archipelago.operator.conditions import Finding, Reason, Truth
from archipelago.operator.livefacts import ALONE, Live
from archipelago.operator.livepair import left_until
from archipelago.operator.livepools import NoPoolError, claimant, resolved_spec
from archipelago.operator.nodenames import names
from archipelago.operator.verdict import Planned
from archipelago.planner.canonical import canonical_bytes
from archipelago.planner.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archipelago.operator.claims import Claimant
    from archipelago.operator.fleet import Fleet
    from archipelago.operator.livefacts import Traffic
    from archipelago.operator.manifests import Key
    from archipelago.operator.observe import Observation, SeenPlan
    from archipelago.operator.state import Now, State
    from archipelago.operator.stock import LiveInventory


class Watched(Protocol):
    """The traffic of plans, as far as it is observed."""

    def traffic(self, key: Key) -> Traffic | None:
        """The last window that is over."""

    def finding(self, plan: SeenPlan) -> Finding | None:
        """What the condition ``MetricsAvailable`` says; None: the plan names no source."""

    def forget(self, key: Key) -> None:
        """The plan is gone."""


@dataclass(frozen=True)
class _Resolved:
    """The spec with what its pools have found, for that spec and inventory.

    ``digest``: of ``names``, the real names of nodes by the planner's own. ``view``: of the nodes
    alone, whatever the spec.
    """

    spec: Mapping[str, Any]
    inventory: LiveInventory
    found: Mapping[str, Any]
    names: Mapping[str, str]
    digest: str
    view: str


class Around:
    """Gives every observation of a live plan its nodes, pods and traffic."""

    def __init__(self, fleet: Fleet, watched: Watched) -> None:
        self._fleet = fleet
        self._watched = watched
        self._resolved: dict[Key, _Resolved] = {}
        self._hurried: dict[Key, str] = {}  # the content of which nothing was left
        self._answered: dict[Key, str] = {}  # the view that a stored table was last made of

    def see_all(self, plans: Iterable[SeenPlan | None]) -> None:
        """All plans there are: of two that select a node, the older one has it."""
        self._fleet.plans({plan.key: _claimant(plan) for plan in plans if plan is not None})

    def dress(self, seen: Observation, state: State, now: Now) -> Observation:
        """The same observation with what its plan's pools, pods and traffic are now."""
        plan = seen.plan
        if plan is None:
            return seen
        wanted = _claimant(plan)
        self._fleet.see_plan(plan.key, wanted)
        if not plan.is_live:
            return seen
        live = Live(
            pods=self._fleet.island_pods(plan.key),
            traffic=self._watched.traffic(plan.key),
            metrics=self._watched.finding(plan),
            decision=state.live.decision if state.live.untold else ALONE,
            said=state.live.said,
        )
        if wanted is None:
            return self._left(replace(seen, plan=replace(plan, live=live)), state, now)
        self._hurry(seen, state)
        dressed = self._with_nodes(plan, wanted, live, nodes_of(seen, state))
        return self._left(replace(seen, plan=dressed), state, now)

    def forget(self, key: Key) -> None:
        """The plan is gone."""
        self._resolved.pop(key, None)
        self._hurried.pop(key, None)
        self._answered.pop(key, None)
        self._fleet.drop_plan(key)
        self._watched.forget(key)

    def _left(self, seen: Observation, state: State, now: Now) -> Observation:
        """With the stored table left to the operator that stored it, where that is so.

        What it was made of is then what is asked for: the nodes that we know are not planned with.
        """
        plan, table = seen.plan, seen.table
        if plan is None or plan.live is None or table is None:
            return seen
        if plan.live.refusal is not None or not plan.live.listed:
            return seen
        live, known = plan.live, self._resolved.get(plan.key)
        if known is not None and table.answers(plan):
            self._answered[plan.key] = known.view
        old = known is None or self._answered.get(plan.key) == known.view
        until = left_until(plan, table, state.live, old=old)
        if until <= now.monotonic:
            return seen
        live = replace(live, left=until)
        if table.inputs_hash != plan.inputs_hash and state.live.lying is not None:
            under, trusted = nodes_of(seen, state), state.live.lying.begun
            live = replace(live, lost=self._fleet.lost(under, trusted), away=True)
            plan = replace(plan, inputs_hash=table.inputs_hash or "")
        return replace(seen, plan=replace(plan, live=live))

    def _hurry(self, seen: Observation, state: State) -> None:
        """Where no repair helps, the next plan does not wait for its turn; once for each table."""
        helpless, verdict = state.live.helpless, state.verdict
        hashes = {seen.table.content_hash} if seen.table else set()
        if isinstance(verdict, Planned) and verdict.content is not None:
            hashes.add(verdict.content_hash)
        if helpless in hashes and self._hurried.get(seen.key) != helpless:
            self._hurried[seen.key] = helpless
            self._fleet.hurry(seen.key)

    def _with_nodes(
        self, plan: SeenPlan, wanted: Claimant, live: Live, under: Iterable[str]
    ) -> SeenPlan:
        live = replace(live, inventory=self._fleet.finding(wanted))
        inventory = self._fleet.inventory(wanted)
        if inventory is None and self._fleet.is_blind:
            why = replace(self._fleet.finding(wanted), status=Truth.FALSE)
            return replace(plan, live=replace(live, refusal=why))
        if inventory is None:
            return replace(plan, live=replace(live, listed=False))
        live = replace(live, lost=self._fleet.lost(under))
        try:
            found = self._found(plan, inventory)
        except SpecError as error:
            return replace(plan, live=replace(live, refusal=_refusal(error)))
        live = replace(live, names=found.names, away=bool(self._fleet.lost(found.names.values())))
        return replace(plan.with_nodes(found.found, found.digest), live=live)

    def _found(self, plan: SeenPlan, inventory: LiveInventory) -> _Resolved:
        """Made anew where the spec or the inventory is another one."""
        known = self._resolved.get(plan.key)
        if known is None or known.inventory is not inventory or known.spec != plan.spec:
            found = resolved_spec(plan.spec, inventory)
            named = names(found, inventory)
            digest = hashlib.sha256(canonical_bytes(dict(named))).hexdigest()
            known = _Resolved(plan.spec, inventory, found, named, digest, _view(inventory))
            self._resolved[plan.key] = known
        return known


def _view(inventory: LiveInventory) -> str:
    stocks = [[stock.gpus_per_node, dict(stock.nodes)] for stock in inventory.stocks]
    return hashlib.sha256(canonical_bytes(stocks)).hexdigest()


def nodes_of(seen: Observation, state: State) -> set[str]:
    """Nodes under the stored table, and under the one that is to be stored."""
    table, verdict = seen.table, state.verdict
    found = {node for i in table.islands.values() for node in i.nodes} if table else set()
    if isinstance(verdict, Planned) and verdict.content is not None:
        found |= verdict.nodes
    return found


def _claimant(plan: SeenPlan) -> Claimant | None:
    return claimant(plan.key, plan.uid, plan.created, plan.spec)


def _refusal(error: SpecError) -> Finding:
    """Why there is nothing to plan with, in the words of the one reason that fits."""
    said = "; ".join(str(error).splitlines())
    if isinstance(error, NoPoolError):
        return Finding(Truth.FALSE, Reason.NO_NODES, said)
    unknown = any(path.endswith(".accelerator") for path, _ in error.problems)
    reason = Reason.UNKNOWN_ACCELERATOR if unknown else Reason.INVALID_SPEC
    return Finding(Truth.FALSE, reason, said)
