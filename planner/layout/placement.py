"""Concrete nodes for islands, after the solve; islands that run stay where they are.

Islands that are kept are put down first, on the nodes they have. The others follow by decreasing
size, each into the tightest place. For a divisibility chain that always succeeds where the packing
rows hold, with one repair: where kept islands have scattered the free GPUs, the smaller islands in
the cheapest place give way and are placed again later. They are reported as moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.deadline import ENDLESS, Deadline
from archipelago.planner.errors import OutOfTimeError, SolverError
from archipelago.planner.packing import nodes_of
from archipelago.planner.problem import Billing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archipelago.planner.problem import Pool


@dataclass(frozen=True)
class Assignment:
    """Nodes of every island, and the kept islands that had to leave theirs."""

    nodes: dict[str, tuple[str, ...]]
    moved: tuple[str, ...] = ()


class _Board:
    """Which island takes how many GPUs of which node, while islands are placed.

    ``_whole`` and ``_partial`` find free places at once; their entries may be outdated and are
    checked when used, so that a fleet of 100,000 GPUs is placed in a moment.
    """

    def __init__(self, node_gpus: int, domains: dict[str, tuple[str, ...]]) -> None:
        self.node_gpus = node_gpus
        self.domains = domains
        self.nodes: dict[str, tuple[str, ...]] = {}  # island -> nodes
        self.domain_of = {node: name for name, nodes in domains.items() for node in nodes}
        self.on: dict[str, dict[str, int]] = {node: {} for node in self.domain_of}
        self.free = dict.fromkeys(self.on, node_gpus)
        self._whole = {name: list(reversed(nodes)) for name, nodes in domains.items()}
        self._partial: dict[int, list[str]] = {gpus: [] for gpus in range(1, node_gpus)}

    def put(self, island: str, size: int, nodes: tuple[str, ...]) -> None:
        self.nodes[island] = nodes
        for node in nodes:
            self.on[node][island] = min(size, self.node_gpus)
            self._change(node, -min(size, self.node_gpus))

    def take(self, island: str) -> None:
        for node in self.nodes.pop(island):
            self._change(node, self.on[node].pop(island))

    def _change(self, node: str, gpus: int) -> None:
        self.free[node] += gpus
        if 0 < self.free[node] < self.node_gpus:
            self._partial[self.free[node]].append(node)
        elif self.free[node] == self.node_gpus:
            self._whole[self.domain_of[node]].append(node)

    def whole(self, count: int) -> tuple[str, ...] | None:
        """Untouched nodes of the first domain that has enough."""
        for domain in self.domains:
            untouched = self._untouched(self._whole[domain], count)
            self._whole[domain] = untouched
            if len(untouched) >= count:
                return tuple(untouched[-count:][::-1])
        return None

    def _untouched(self, nodes: list[str], count: int) -> list[str]:
        """The list without outdated entries, as far as its last ``count`` go."""
        if all(self.free[node] == self.node_gpus for node in nodes[-count:]):
            return nodes
        return [node for node in nodes if self.free[node] == self.node_gpus]

    def part(self, size: int) -> str | None:
        """The node in use with the least room that suffices, else an untouched one."""
        for gpus in range(size, self.node_gpus):
            nodes = self._partial[gpus]
            while nodes and self.free[nodes[-1]] != gpus:
                nodes.pop()
            if nodes:
                return nodes[-1]
        untouched = self.whole(1)
        return untouched[0] if untouched else None


def assign_nodes(
    pool: Pool,
    sizes: Mapping[str, int],
    domain_class: str | None = None,
    kept: Mapping[str, tuple[str, ...]] | None = None,
    *,
    deadline: Deadline = ENDLESS,
) -> Assignment:
    """Nodes of every island in a pool, or in one domain class of it.

    Args:
        pool: the pool; without ``gpus_per_node`` every island gets no nodes.
        sizes: island name -> GPUs.
        domain_class: the class whose nodes may be used; None: all.
        kept: island name -> nodes on which it runs and should stay.
        deadline: when it must be done.

    Returns:
        Island name -> node names, several for islands above a node; and who had to move.

    Raises:
        OutOfTimeError: the deadline passed before all were placed.
        SolverError: the islands do not fit, which the packing rows rule out.
    """
    if pool.gpus_per_node is None or not sizes:
        return Assignment(dict.fromkeys(sizes, ()))
    kept = kept or {}
    # Where nothing runs the first nodes are filled: of a million nodes only those have names.
    need = sum(-(-size // pool.gpus_per_node) for size in sizes.values())
    domains = nodes_of(pool, domain_class, None if kept else need)
    if pool.billing is Billing.PER_NODE and kept:
        try:
            paid = _paid(pool.gpus_per_node, domains, sizes, kept)
            return _assign(pool.gpus_per_node, paid, sizes, kept, deadline)
        except OutOfTimeError:
            raise
        except SolverError:  # the fullest nodes lie in the wrong domains: start from scratch
            kept = {}
    return _assign(pool.gpus_per_node, domains, sizes, kept, deadline)


def _assign(
    node_gpus: int,
    domains: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    kept: Mapping[str, tuple[str, ...]],
    deadline: Deadline,
) -> Assignment:
    board = _Board(node_gpus, domains)
    for island in sizes:
        if island in kept and _fits(board, sizes[island], kept[island]):
            board.put(island, sizes[island], kept[island])
    moved = {island for island in sizes if island in kept and island not in board.nodes}
    waiting = [island for island in sizes if island not in board.nodes]
    for size in sorted(set(sizes.values()), reverse=True):
        due = [island for island in waiting if sizes[island] == size]
        for island in deadline.watch("placing islands", due):
            displaced = _place(board, island, sizes)  # smaller ones: their turn comes
            moved |= displaced
            waiting += sorted(displaced)
    return Assignment({island: board.nodes[island] for island in sizes}, tuple(sorted(moved)))


def _paid(
    node_gpus: int,
    domains: dict[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    kept: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """As many nodes as must be paid for, the fullest first, where each node costs as a whole."""
    load: dict[str, int] = {}
    for island, nodes in kept.items():
        for node in nodes:
            load[node] = load.get(node, 0) + min(sizes[island], node_gpus)
    need = -(-sum(sizes.values()) // node_gpus)
    everything = [node for nodes in domains.values() for node in nodes]
    chosen = set(sorted(everything, key=lambda node: -load.get(node, 0))[:need])
    return {name: tuple(n for n in nodes if n in chosen) for name, nodes in domains.items()}


def _fits(board: _Board, size: int, nodes: tuple[str, ...]) -> bool:
    """Whether an island may stay: its nodes exist, lie in one domain and have room."""
    count = max(1, size // board.node_gpus)
    if len(nodes) != count or len(set(nodes)) != count:
        return False
    if len({board.domain_of.get(node) for node in nodes}) != 1 or nodes[0] not in board.free:
        return False
    return all(board.free[node] >= min(size, board.node_gpus) for node in nodes)


def _place(board: _Board, island: str, sizes: Mapping[str, int]) -> set[str]:
    """Put one island down; the islands that had to give way."""
    size = sizes[island]
    if size >= board.node_gpus:
        count = size // board.node_gpus
        nodes = board.whole(count) or _cleared_nodes(board, count, size, sizes)
    else:
        nodes = (board.part(size) or _cleared_node(board, size, sizes),)
    displaced = {other for node in nodes for other in _in_the_way(board, node, size, sizes)}
    for other in displaced:
        board.take(other)
    board.put(island, size, nodes)
    return displaced


def _cleared_nodes(
    board: _Board, count: int, size: int, sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """Nodes of one domain from which the fewest GPUs must be cleared of smaller islands."""
    best: tuple[int, tuple[str, ...]] | None = None
    for nodes in board.domains.values():
        able = [node for node in nodes if _clearable(board, node, size, sizes) == board.node_gpus]
        able.sort(key=lambda node: -board.free[node])  # stable
        used = sum(board.node_gpus - board.free[node] for node in able[:count])
        if len(able) >= count and (best is None or used < best[0]):
            best = used, tuple(able[:count])
    if best is None:
        raise SolverError(f"no domain has {count} free nodes left: the packing rows were violated")
    return best[1]


def _cleared_node(board: _Board, size: int, sizes: Mapping[str, int]) -> str:
    """The node from which the fewest GPUs must be cleared of smaller islands."""
    able = [node for node in board.free if _clearable(board, node, size, sizes) >= size]
    if not able:
        raise SolverError(f"no node has {size} GPUs left: the packing rows were violated")
    return max(able, key=board.free.__getitem__)


def _clearable(board: _Board, node: str, size: int, sizes: Mapping[str, int]) -> int:
    """GPUs of a node that are free or held by islands smaller than ``size``."""
    smaller = (gpus for other, gpus in board.on[node].items() if sizes[other] < size)
    return board.free[node] + sum(smaller)


def _in_the_way(board: _Board, node: str, size: int, sizes: Mapping[str, int]) -> set[str]:
    """Smaller islands that must leave a node, the smallest first, no more than needed."""
    leaving: set[str] = set()
    missing = min(size, board.node_gpus) - board.free[node]
    smaller = [other for other in board.on[node] if sizes[other] < size]
    for other in sorted(smaller, key=lambda o: (sizes[o], o)):
        if missing > 0:
            missing -= board.on[node][other]
            leaving.add(other)
    return leaving
