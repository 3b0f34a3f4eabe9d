"""The columns of the exact program: what each stands for, and what one unit of it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from archipelago.planner.kinds import kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray
    from archipelago.planner.kinds import Kind
    from archipelago.planner.template import Template

THETA = 0
"""Column of theta; the template counts follow, then the rates."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What one model asks: weight w_m and probabilities p_mj of its servable ranges.

    ``apart``: its templates stand in several domain classes, so that KV flows say who reaches whom.
    ``routes``: pairs of classes (prefill, decode) between which its KV caches may move.
    ``kv_bytes``, shape (ranges,): mean size of the cache of a prompt [B]; empty where the templates
    are not apart.
    """

    model: str
    weight: float
    probability: FloatArray  # (ranges,)
    served: NDArray[np.bool_]  # (ranges,) some template of each stage can serve it
    apart: bool
    routes: tuple[tuple[str, str], ...]
    kv_bytes: FloatArray


@dataclass(frozen=True, eq=False)
class Flow:
    """Requests of (demand, range) that are prefilled in one class and decoded in another."""

    demand: int
    range: int
    classes: tuple[str, str]


@dataclass(frozen=True)
class NodeColumn:
    """Nodes of a pool's domain class that are paid for as a whole."""

    pool: str
    domain_class: str
    nodes: int  # there are this many
    node_gpus: int
    price: float  # of a node [$/h]


@dataclass(frozen=True)
class KindColumn:
    """Islands of a kind beyond those of it that run now: they would have to start anew."""

    kind: Kind
    running: int
    gpus: int


@dataclass(frozen=True, eq=False)
class Program:
    """Rows ``lower <= matrix x <= upper`` over x = (theta, n_c ..., y_cj ..., others).

    ``pair_template`` and ``pair_range``, shape (pairs,): what each y column stands for.
    ``count_upper``, shape (templates,): islands of one template that fit an empty pool.
    ``price``, shape (columns,): dollars per hour of a unit of each column [$/h].
    """

    templates: tuple[Template, ...]
    demands: tuple[Demand, ...]
    matrix: sparse.csr_array
    lower: FloatArray
    upper: FloatArray
    count_upper: FloatArray
    pair_template: NDArray[np.int64]
    pair_range: NDArray[np.int64]
    scale: float
    cover: int = 0  # cover rows, which come last
    flows: tuple[Flow, ...] = ()
    nodes: tuple[NodeColumn, ...] = ()
    kinds: tuple[KindColumn, ...] = ()

    @property
    def columns(self) -> int:
        """Number of variables."""
        return self.first_kind + len(self.kinds)

    @property
    def first_pair(self) -> int:
        """Column of the first y."""
        return 1 + len(self.templates)

    @property
    def first_flow(self) -> int:
        """Column of the first KV flow."""
        return self.first_pair + len(self.pair_template)

    @property
    def first_node(self) -> int:
        """Column of the first pool's nodes."""
        return self.first_flow + len(self.flows)

    @property
    def first_kind(self) -> int:
        """Column of the first kind's islands that start anew."""
        return self.first_node + len(self.nodes)

    @cached_property
    def demand_of(self) -> NDArray[np.int64]:
        """Index of each template's demand, shape (templates,)."""
        index = {demand.model: i for i, demand in enumerate(self.demands)}
        return np.array([index[t.model] for t in self.templates], dtype=np.int64)

    @cached_property
    def flows_of(self) -> dict[tuple[int, int], list[tuple[int, Flow]]]:
        """(Column, flow) of every (demand, range)."""
        found: dict[tuple[int, int], list[tuple[int, Flow]]] = {}
        for column, flow in enumerate(self.flows, start=self.first_flow):
            found.setdefault((flow.demand, flow.range), []).append((column, flow))
        return found

    @cached_property
    def integer(self) -> NDArray[np.bool_]:
        """Columns that count whole things, shape (columns,)."""
        mask = np.zeros(self.columns, dtype=bool)
        mask[1 : self.first_pair] = True
        mask[self.first_node : self.first_kind] = True
        return mask

    @cached_property
    def largest(self) -> FloatArray:
        """Upper bound of every column, shape (columns,)."""
        upper = np.full(self.columns, np.inf)
        upper[1 : self.first_pair] = self.count_upper
        upper[self.first_node : self.first_kind] = [column.nodes for column in self.nodes]
        return upper

    @cached_property
    def price(self) -> FloatArray:
        """Dollars per hour of one unit of every column, shape (columns,)."""
        price = np.zeros(self.columns)
        price[1 : self.first_pair] = [template.price for template in self.templates]
        price[self.first_node : self.first_kind] = [column.price for column in self.nodes]
        return price

    @cached_property
    def disruption(self) -> FloatArray:
        """GPUs that would start anew for one unit of every column, shape (columns,)."""
        running = {column.kind for column in self.kinds}
        gpus = np.zeros(self.columns)
        gpus[1 : self.first_pair] = [
            0.0 if kind_of(t) in running else float(t.gpus) for t in self.templates
        ]
        gpus[self.first_kind :] = [float(column.gpus) for column in self.kinds]
        return gpus

    def without_cover(self) -> Program:
        """The same program for fixed, possibly fractional, counts: cover is decided then."""
        keep = len(self.lower) - self.cover
        return replace(
            self, matrix=self.matrix[:keep], lower=self.lower[:keep], upper=self.upper[:keep]
        )

    def at_most(self, cost: FloatArray, limit: float) -> Program:
        """The same program with one more row: ``cost x <= limit``."""
        row = sparse.csr_array(cost[np.newaxis, :])
        return replace(
            self,
            matrix=sparse.csr_array(sparse.vstack([row, self.matrix])),
            lower=np.concatenate([[-np.inf], self.lower]),
            upper=np.concatenate([[limit], self.upper]),
        )

    def pair_rate(self) -> FloatArray:
        """Requests per second that one unit of each y column stands for, shape (pairs,)."""
        unit = np.concatenate([d.probability * d.weight for d in self.demands])
        start = np.cumsum([0, *[len(d.probability) for d in self.demands]])
        return self.scale * unit[start[self.demand_of[self.pair_template]] + self.pair_range]
