"""How many layers each section of a pipeline holds.

A pipeline is as fast as its slowest stage, and its cache as large as that of the stage with least
room. The two pull apart where fast GPUs have little memory, so splits are sought for several
amounts of room, and the one that costs a typical request least time comes first.

Stages are sums over their layers, so the time of any stage follows from the time of one layer of
each kind; the best cut is then found exactly, section by section from the last (dynamic
programming over the layer at which a section begins).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.errors import DoesNotFit
from archipelago.perfmodel.layers import LayerCounts, consecutive
from archipelago.perfmodel.placement import place, stack
from archipelago.perfmodel.settings import EngineSettings, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.placement import Mould, Placed, Section

_ROOMS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the largest possible cache that splits are sought for."""

_KNOWN = 4096
"""Costs of stages that are kept: sizes of one pair of pools ask for the same ones again."""

_NONE = LayerCounts(0, 0, 0, 0)
_ONE_OF_EACH = (
    LayerCounts(1, 0, 0, 0),
    LayerCounts(0, 1, 0, 0),
    LayerCounts(0, 0, 1, 0),
    LayerCounts(0, 0, 0, 1),
)

_SLACK = 1 + 1e-12
"""Sums of floating-point numbers in another order are still equal."""


@dataclass(frozen=True)
class Typical:
    """What layers are balanced for: lengths of a request and the largest batch [tokens, sequences].

    ``longest``: input and output of a request that the cache should hold if any split's can.
    """

    length: float = 1024.0
    output: float = 256.0
    sequences: float = 256.0
    longest: float = 32_768.0


def balanced_layers(
    architecture: ModelArchitecture,
    sections: Sequence[Section],
    tp: int,
    phase: str,
    typical: Typical | None = None,
    *,
    max_sequences: int = 1024,
    settings: EngineSettings | None = None,
) -> tuple[int, ...]:
    """Layers per section that cost a typical request least time on the slowest stage.

    The first of ``layer_splits``, which see.
    """
    return layer_splits(
        architecture,
        sections,
        tp,
        phase,
        typical,
        max_sequences=max_sequences,
        settings=settings,
    )[0]


def layer_splits(
    architecture: ModelArchitecture,
    sections: Sequence[Section],
    tp: int,
    phase: str,
    typical: Typical | None = None,
    *,
    max_sequences: int = 1024,
    settings: EngineSettings | None = None,
) -> tuple[tuple[int, ...], ...]:
    """The few splits worth a template, the one with the least time per request first.

    For each of a few amounts of cache the split whose slowest stage is fastest among those with
    that much room; of equals the one with the least time over all stages, then the fewest layers
    in front. Prefill counts a prompt of the typical length; decode the typical output in batches
    as large as that cache holds; mixed both.

    Args:
        architecture: The model.
        sections: In order; their ``layers`` are not looked at.
        tp: Tensor parallelism of every stage.
        phase: ``prefill``, ``decode`` or ``mixed``.
        typical: What to balance for.
        max_sequences: Largest batch that the engine runs.
        settings: Engine, chunk size, prefix hits and memory policy.

    Raises:
        PerfModelError: the sections do not make a pipeline of this model.
        DoesNotFit: no split fits; names the most layers that each section could hold.
    """
    typical = typical or Typical()
    mould = stack(architecture, sections, tp, max_sequences, settings or EngineSettings())
    tables = [_Table(mould, sections, at) for at in range(len(sections))]
    rooms = [table.rooms for table in tables]
    most = -_narrowest([-room for room in rooms])
    if most < 1:
        raise DoesNotFit(_why_not(mould, sections, rooms))
    found: dict[tuple[int, ...], float] = {}
    for share in _ROOMS:
        wanted = max(share * most, min(most, typical.longest))
        stages = [table.seconds(phase, typical, wanted) for table in tables]
        split, cost = _fastest(stages, [room >= wanted for room in rooms])
        found[split] = min(cost, found.get(split, np.inf))
    return tuple(sorted(found, key=lambda split: (found[split], split)))


class _Table:
    """One section: what it would cost and hold, by the layer it begins at and its layers.

    Arrays have shape (start, layers), both from 0 to the model's number of layers; what cannot be
    is infinitely slow and has no room.
    """

    def __init__(self, mould: Mould, sections: Sequence[Section], at: int) -> None:
        self.mould = mould
        bare = [replace(section, layers=section.gpus) for section in sections]
        self.placed = list(place(mould, bare, at, 0))  # of no layers in particular
        layers, stages = mould.model.layers, len(self.placed)
        start, held = np.indices((layers + 1, layers + 1))
        possible = (held >= stages) & (start + held <= layers)
        possible &= (start == 0) if at == 0 else (start > 0)
        if at == len(sections) - 1:
            possible &= start + held == layers
        self.possible = possible
        self.start, self.held = start[possible], held[possible]
        before = [consecutive(mould.model, 0, stop) for stop in range(layers + 1)]
        self._before = np.array([[c.full, c.windowed, c.dense, c.sparse] for c in before])

    @property
    def rooms(self) -> FloatArray:
        """KV tokens of the stage with least room."""
        room = np.full(len(self.held), np.inf)
        for number, stage in enumerate(self.placed):
            kinds, which = np.unique(self._counts(number), axis=0, return_inverse=True)
            held = [replace(stage, counts=_layer_counts(kind)).kv_tokens for kind in kinds]
            room = np.minimum(room, np.array(held, dtype=np.float64)[which.ravel()])
        return self._spread(room, 0.0)

    def seconds(self, phase: str, typical: Typical, room: float) -> tuple[FloatArray, FloatArray]:
        """Time of a typical request on the slowest stage and over all stages [s]."""
        slowest, total = np.zeros(len(self.held)), np.zeros(len(self.held))
        for number, stage in enumerate(self.placed):
            layers, rest = _costs(stage, phase, typical, room)
            seconds = self._counts(number) @ layers + rest
            slowest, total = np.maximum(slowest, seconds), total + seconds
        return self._spread(slowest, np.inf), self._spread(total, np.inf)

    def _counts(self, number: int) -> NDArray[np.int64]:
        """Layers of each kind on a stage of the section, shape (possible, 4)."""
        fewest, more = np.divmod(self.held, len(self.placed))
        begin = self.start + number * fewest + np.minimum(number, more)
        return np.asarray(self._before[begin + fewest + (number < more)] - self._before[begin])

    def _spread(self, values: FloatArray, elsewhere: float) -> FloatArray:
        table = np.full(self.possible.shape, elsewhere)
        table[self.possible] = values
        return table


def _layer_counts(kind: NDArray[np.int64]) -> LayerCounts:
    return LayerCounts(*(int(count) for count in kind))


@lru_cache(maxsize=_KNOWN)
def _costs(stage: Placed, phase: str, typical: Typical, room: float) -> tuple[FloatArray, float]:
    """Seconds of a typical request per layer of each kind, and beside the layers.

    ``room``: tokens of cache that the island fills as far as its batch goes.
    """
    context = typical.length + typical.output / 2
    batch = min(typical.sequences, stage.mould.sequences, room / context)
    tokens = np.array(max(1.0, batch / stage.mould.parallelism.pp))
    prompt = Prompt.of(np.array(typical.length), stage.mould.settings)
    layers, rest = np.zeros(4), 0.0
    one = [replace(stage.stage, counts=counts) for counts in _ONE_OF_EACH]
    bare = replace(stage, counts=_NONE)  # the hand-over, and the head of the last stage
    if phase != "decode":
        layers += [float(prompt.passes * layer.prefill_pass(prompt)) for layer in one]
        rest += float(bare.prefill(prompt))
    if phase != "prefill":
        steps = typical.output / float(tokens)
        layers += [steps * float(layer.decode_pass(tokens, tokens * context)) for layer in one]
        rest += steps * float(bare.decode(tokens, tokens * context))
    return layers, rest


def _narrowest(scores: Sequence[FloatArray]) -> float:
    """Least possible maximum of a score over the sections."""
    return float(_onwards(scores, np.maximum)[0][0])


def _onwards(scores: Sequence[FloatArray], join: np.ufunc) -> list[FloatArray]:
    """Best score from every section on, by the layer it begins at; the last entry ends it all."""
    layers = len(scores[0]) - 1
    end = np.full(layers + 1, np.inf)
    end[layers] = -np.inf if join is np.maximum else 0.0
    after = np.add.outer(np.arange(layers + 1), np.arange(layers + 1)).clip(max=layers)
    best = [end]
    for score in reversed(scores):
        best.insert(0, join(score, best[0][after]).min(axis=1))
    return best


def _fastest(
    stages: Sequence[tuple[FloatArray, FloatArray]], able: Sequence[NDArray[np.bool_]]
) -> tuple[tuple[int, ...], float]:
    """Split with the fastest slowest stage, and that stage's time."""
    slowest = [np.where(ok, slow, np.inf) for (slow, _), ok in zip(stages, able, strict=True)]
    limit = _narrowest(slowest) * _SLACK
    totals = [
        np.where(slow <= limit, total, np.inf)
        for slow, (_, total) in zip(slowest, stages, strict=True)
    ]
    best = _onwards(totals, np.add)
    split: list[int] = []
    for total, onwards in zip(totals, best[1:], strict=True):
        start = sum(split)
        split.append(int((total[start, : len(onwards) - start] + onwards[start:]).argmin()))
    return tuple(split), limit / _SLACK


def _why_not(mould: Mould, sections: Sequence[Section], rooms: Sequence[FloatArray]) -> str:
    model = mould.model
    most = [int(np.nonzero((room > 0).any(axis=0))[0].max(initial=0)) for room in rooms]
    held = ", ".join(
        f"{layers} on {section.gpus} x {section.accelerator.name}"
        for layers, section in zip(most, sections, strict=True)
    )
    return (
        f"{model.name} in {model.precision.name} ({model.parameters / 1e9:.1f} billion "
        f"parameters) as {mould.parallelism} has {model.layers} layers; at most fit: {held}"
    )
