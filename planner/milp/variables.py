"""The variables of the exact program: what each column stands for, its bounds and its price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from ..plan import IslandClass
from ..templates.template import Template

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from archipelago.perfmodel.model import FloatArray


THETA = 0
"""Column of theta; the counts of the templates follow, then their rates."""


@dataclass(frozen=True, eq=False)
class Demand:
    """The demand of one model: weight w_m and probabilities p_mj of its ranges.

    ``spans_classes``: its templates are in several domain classes, so that KV flows connect them.
    ``routes``: by pairs of classes (prefill, decode) between which its KV caches may move, the
    ranges that do, shape (ranges,).
    ``kv_bytes``, shape (ranges,): mean size of the cache of a prompt [B]; empty unless it spans
    classes.
    """

    model: str
    weight: float
    probability: FloatArray  # (ranges,)
    served: NDArray[np.bool_]  # (ranges,) templates of both stages can serve it
    spans_classes: bool
    routes: dict[tuple[str, str], NDArray[np.bool_]]
    kv_bytes: FloatArray


@dataclass(frozen=True, eq=False)
class Flow:
    """Requests of (demand, range) that are prefilled in one class and decoded in another."""

    demand: int
    range: int
    classes: tuple[str, str]


@dataclass(frozen=True)
class NodeColumn:
    """Number of nodes in use of a pool's domain class, if nodes are paid for as a whole."""

    pool: str
    domain_class: str
    nodes: int  # that exist or can be rented
    node_gpus: int
    price: float  # of a node [$/h]


@dataclass(frozen=True)
class RestartColumn:
    """Islands of a class beyond those that run now: they would have to start anew."""

    island_class: IslandClass
    running: int
    gpus: int


@dataclass(frozen=True, eq=False)
class Program:
    """Constraints ``lower <= matrix x <= upper`` over x = (theta, n_c ..., y_cj ..., others).

    ``pair_template`` and ``pair_range``, shape (pairs,): template c and range j of each y_cj.
    ``max_counts``, shape (templates,): islands of one template that fit into an empty pool.
    ``scale``: unit of theta and y [req/s, or multiples of the rates].
    """

    templates: tuple[Template, ...]
    demands: tuple[Demand, ...]
    matrix: sparse.csr_array
    lower: FloatArray
    upper: FloatArray
    max_counts: FloatArray
    pair_template: NDArray[np.int64]
    pair_range: NDArray[np.int64]
    scale: float
    cover: int = 0  # number of cover rows, which come last
    flows: tuple[Flow, ...] = ()
    nodes: tuple[NodeColumn, ...] = ()
    restarts: tuple[RestartColumn, ...] = ()

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.first_restart + len(self.restarts)

    @property
    def first_pair(self) -> int:
        """First column of y."""
        return 1 + len(self.templates)

    @property
    def first_flow(self) -> int:
        """First column of the KV flows."""
        return self.first_pair + len(self.pair_template)

    @property
    def first_node(self) -> int:
        """First column of the nodes."""
        return self.first_flow + len(self.flows)

    @property
    def first_restart(self) -> int:
        """First column of the restarted islands."""
        return self.first_node + len(self.nodes)

    @cached_property
    def demand_of(self) -> NDArray[np.int64]:
        """Index of each template's demand, shape (templates,)."""
        index = {demand.model: i for i, demand in enumerate(self.demands)}
        return np.array([index[t.model] for t in self.templates], dtype=np.int64)

    @cached_property
    def flows_of(self) -> dict[tuple[int, int], list[tuple[int, Flow]]]:
        """(Column, flow) by (demand, range)."""
        flows: dict[tuple[int, int], list[tuple[int, Flow]]] = {}
        for column, flow in enumerate(self.flows, start=self.first_flow):
            flows.setdefault((flow.demand, flow.range), []).append((column, flow))
        return flows

    @cached_property
    def link_rows(self) -> NDArray[np.int64]:
        """Rows of links between classes: they limit KV flows alone, which models share."""
        flows = np.diff(sparse.csr_array(self.matrix[:, self.first_flow : self.first_node]).indptr)
        alone = (flows > 0) & (flows == np.diff(self.matrix.indptr))
        return np.flatnonzero(alone & np.isneginf(self.lower))

    @cached_property
    def integer(self) -> NDArray[np.bool_]:
        """Mask of the integer columns, shape (columns,)."""
        mask = np.zeros(self.columns, dtype=bool)
        mask[1 : self.first_pair] = True
        mask[self.first_node : self.first_restart] = True
        return mask

    @cached_property
    def upper_bounds(self) -> FloatArray:
        """Upper bound of every column, shape (columns,)."""
        upper = np.full(self.columns, np.inf)
        upper[1 : self.first_pair] = self.max_counts
        upper[self.first_node : self.first_restart] = [column.nodes for column in self.nodes]
        return upper

    @cached_property
    def price(self) -> FloatArray:
        """Price of one unit of every column [$/h], shape (columns,)."""
        price = np.zeros(self.columns)
        price[1 : self.first_pair] = [template.price for template in self.templates]
        price[self.first_node : self.first_restart] = [column.price for column in self.nodes]
        return price

    @cached_property
    def disruption(self) -> FloatArray:
        """GPUs that start anew per unit of every column, shape (columns,)."""
        running = {column.island_class for column in self.restarts}
        gpus = np.zeros(self.columns)
        gpus[1 : self.first_pair] = [
            0.0 if t.island_class in running else float(t.gpus) for t in self.templates
        ]
        gpus[self.first_restart :] = [float(column.gpus) for column in self.restarts]
        return gpus

    def without_cover(self) -> Program:
        """Return the program for given, possibly fractional, counts: the cover rows are moot."""
        rows = len(self.lower) - self.cover
        return replace(
            self, matrix=self.matrix[:rows], lower=self.lower[:rows], upper=self.upper[:rows]
        )

    def with_limit(self, cost: FloatArray, limit: float) -> Program:
        """Return the program with one more row: ``cost x <= limit``."""
        row = sparse.csr_array(cost[np.newaxis, :])
        return replace(
            self,
            matrix=sparse.csr_array(sparse.vstack([row, self.matrix])),
            lower=np.concatenate([[-np.inf], self.lower]),
            upper=np.concatenate([[limit], self.upper]),
        )

    def pair_rate(self) -> FloatArray:
        """Return the request rate of one unit of each y [req/s], shape (pairs,)."""
        unit = np.concatenate([d.probability * d.weight for d in self.demands])
        start = np.cumsum([0, *[len(d.probability) for d in self.demands]])
        return self.scale * unit[start[self.demand_of[self.pair_template]] + self.pair_range]
