"""The nodes and pods of the cluster as the plans see them, and when a plan has to hear of it.

Lives in the operator's loop; the watches hand over small facts. What a plan is told is held back:
``inventory`` gives what the plan was last told, until its own spec changes or the next re-plan for
nodes' sake is due (``nodenews``: a minute apart at least). So whoever asks, and however often, no
plan is made more often than that. Losses do not wait: ``lost`` is as of now, and is told within
half a second. Nothing is known, and nothing is decided, before the first list is complete.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from archipelago.operator.manifests import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from archipelago.operator.claims import Claimant
    from archipelago.operator.conditions import Finding
    from archipelago.operator.manifests import Right
    from archipelago.operator.podfacts import IslandPods, SeenPod
    from archipelago.operator.stock import LiveInventory
    from archipelago.planner.nodes import SeenNode

TURN: Final = 0.05
"""Seconds between two looks at what is due, however much is heard."""
TIDY: Final = 600.0
"""Seconds between two times that old records of nodes are dropped."""


class Fleet:
    """Nodes and pods, which plan they belong to, and what that plan has to hear of them.

    Args:
        allowed: The administrator's selector: no plan gets a node outside it.
        on_news: Called with the plans whose nodes were lost (True: their tables are to be
            repaired) or whose ``inventory`` is another one now (False).
        on_pods: Called with a plan whose island pods changed: placed, ready, another phase, gone.
        on_lack: Called where nodes have to be listed once more, for labels that were not kept.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        allowed: Mapping[str, str],
        on_news: Callable[[frozenset[Key], bool], None],
        on_pods: Callable[[Key], None],
        on_lack: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = allowed
        self._on_news, self._on_pods, self._on_lack = on_news, on_pods, on_lack
        self._clock = clock

    @property
    def complete(self) -> bool:
        """Whether the nodes were listed; before that nothing is said of any."""

    # What is seen: called by the watches and the lists.

    def see_node(self, node: SeenNode, version: int) -> None:
        """A node as it was at that version of its object."""

    def drop_node(self, name: str, version: int) -> None:
        """A node was deleted at that version."""

    def begin_list(self) -> None:
        """Nodes are about to be listed: from now on keep every label that some plan asks for."""

    def nodes_listed(self, names: Collection[str], version: int) -> None:
        """All nodes of the cluster were seen, as they were at that version."""

    def see_pod(self, pod: SeenPod) -> None:
        """A pod that asks for GPUs or says that it belongs to a plan."""

    def drop_pod(self, uid: str, version: int) -> None:
        """A pod is gone, or nobody's any more."""

    def pods_listed(self, uids: Collection[str], version: int, namespace: str | None) -> None:
        """All pods of the namespace (None: of the cluster) were seen, as of that version."""

    def forbid(self, missing: Sequence[Right]) -> None:
        """The rights that are missing to see the nodes of the cluster; none: it may."""

    # Whose they are: called for every plan, live or not.

    def plans(self, plans: Mapping[Key, Claimant | None]) -> None:
        """All plans there are; None: one whose pools state their counts."""

    def see_plan(self, key: Key, claimant: Claimant | None) -> None:
        """A plan is there or has changed; the same again costs nothing."""

    def drop_plan(self, key: Key) -> None:
        """A plan is gone, and its nodes are free."""

    # What a plan asks.

    def inventory(self, claimant: Claimant) -> LiveInventory | None:
        """What the plan is to be made with; None: not known yet, ``on_news`` will tell.

        The same until the plan's pools change or ``on_news`` tells of another one.
        """

    def finding(self, claimant: Claimant) -> Finding:
        """What the condition ``InventoryResolved`` says of it."""

    def lost(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the nodes whose pods do not serve now: gone, not ready, being taken away.

        One that comes back is lost until it has stayed for a while (``steadiness``); one that is
        cordoned is not. Nothing is lost before the first list is complete.
        """

    def island_pods(self, key: Key) -> dict[str, IslandPods]:
        """Pods of the plan's islands, by the value of their label (``label_value(island)``)."""

    def counts(self) -> dict[str, int]:
        """Nodes with GPUs: ``usable``, ``lost`` (not serving) and ``aside`` (all others)."""

    # Time.

    def tick(self) -> None:
        """Tell what is due."""

    def wake(self) -> float | None:
        """When to ``tick`` next if nothing is heard [monotonic s]; None: no need."""

    async def run(self) -> None:
        """Tell what is due when it is due, until cancelled."""
