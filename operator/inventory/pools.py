"""What is said of live pools in the condition ``InventoryResolved``; pure.

A plan goes on with what it has. The message counts before it names, names five nodes at most, and
never another plan: who may read one namespace is not told what another has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from archipelago.operator.conditions import Finding, Reason, Truth
from archipelago.operator.stock import UNKNOWN, Aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipelago.operator.manifests import Right
    from archipelago.operator.stock import Left, LiveInventory

NAMED: Final = 5
"""Nodes that a message names."""


def inventory_finding(inventory: LiveInventory) -> Finding:
    """The reason that explains most, and a sentence for each.

    Claimed and unknown nodes come before an empty pool: they may be why it is empty.
    """
    found = [*_claimed(inventory), *_unknown(inventory), *_empty(inventory)]
    if not found:
        return Finding(Truth.TRUE, Reason.NODES_FOUND, _summary(inventory))
    message = "; ".join(sentence for _, sentence in found)
    return Finding(Truth.FALSE, found[0][0], f"{message}; {_summary(inventory)}")


def unlisted(missing: Sequence[Right], *, off: bool) -> Finding:
    """Pools have nodes, and which is not known: switched off, not allowed, not listed yet."""
    if off:
        said = "the operator does not look at nodes: set ARCHIPELAGO_INVENTORY=Auto"
    elif missing:
        rights = ", ".join(map(str, missing))
        said = f"missing right: {rights} in the cluster; grant what deploy/base/rbac.yaml grants"
    else:
        said = "the nodes of the cluster are being listed"
    return Finding(Truth.UNKNOWN, Reason.NO_NODES, said)


def named(left: Sequence[Left], *, details: bool = True) -> str:
    """At most five names with what decided, and how many more there are."""
    shown = [f"{i.node} ({i.detail})" if details and i.detail else i.node for i in left[:NAMED]]
    more = len(left) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _summary(inventory: LiveInventory) -> str:
    pools = [f"{stock.pool.name} {stock.count}" for stock in inventory.stocks]
    return "GPUs in use by pool: " + ", ".join(pools)


def _empty(inventory: LiveInventory) -> list[tuple[Reason, str]]:
    return [
        (Reason.NO_NODES, f"pool {stock.pool.name} has no node{_why(inventory, stock.pool.name)}")
        for stock in inventory.stocks
        if not stock.count
    ]


def _why(inventory: LiveInventory, pool: str) -> str:
    counts: dict[str, int] = {}
    for left in inventory.left:
        if left.pool == pool:
            counts[left.why] = counts.get(left.why, 0) + 1
    reasons = [f"{count} {why}" for why, count in sorted(counts.items())]
    return f" ({', '.join(reasons)})" if reasons else ": none has the labels that it selects"


def _claimed(inventory: LiveInventory) -> list[tuple[Reason, str]]:
    left = inventory.because({Aside.CLAIMED})
    if not left:
        return []
    said = f"{len(left)} nodes that this plan selects belong to an older plan: {named(left)}"
    return [(Reason.POOL_CLAIMED, said)]


def _unknown(inventory: LiveInventory) -> list[tuple[Reason, str]]:
    left = inventory.because(UNKNOWN)
    if not left:
        return []
    said = f"{len(left)} nodes have accelerators that are not in the catalogue: {named(left)}"
    return [(Reason.UNKNOWN_ACCELERATOR, said)]
