"""Which kinds of layers a run of consecutive layers holds: what a pipeline stage is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.perfmodel.architecture import LatentAttention

if TYPE_CHECKING:
    from archipelago.perfmodel.architecture import ModelArchitecture


@dataclass(frozen=True)
class LayerCounts:
    """Layers by their attention and by their feed-forward; both pairs have the same sum.

    ``full`` see the whole context, ``windowed`` no more than their window; ``dense`` have one
    feed-forward, ``sparse`` routed experts.
    """

    full: int
    windowed: int
    dense: int
    sparse: int

    @property
    def layers(self) -> int:
        """Layers in all."""
        return self.dense + self.sparse


def whole(model: ModelArchitecture) -> LayerCounts:
    """All layers of a model."""
    windowed, sparse = model.windowed_layers, model.sparse_layers
    return LayerCounts(model.layers - windowed, windowed, model.layers - sparse, sparse)


def consecutive(model: ModelArchitecture, start: int, stop: int) -> LayerCounts:
    """Layers ``start`` to ``stop`` (exclusive), counted from 0.

    Dense layers come first, and every ``full_every``-th layer sees the whole context, as the
    published models have it.
    """
    layers = stop - start
    full = _full_before(model, stop) - _full_before(model, start)
    first_sparse = model.layers - model.sparse_layers
    sparse = max(0, stop - max(start, first_sparse))
    return LayerCounts(full, layers - full, layers - sparse, sparse)


def _full_before(model: ModelArchitecture, stop: int) -> int:
    """How many of the first ``stop`` layers see the whole context."""
    if isinstance(model.attention, LatentAttention) or model.attention.window is None:
        return stop
    return stop // model.attention.full_every
