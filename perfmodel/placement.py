"""Stages of a pipeline where they stand: which layers on which GPUs, and what follows them.

``pipeline.py`` makes an island of them, ``balance.py`` chooses how many layers each section holds.
What a layer costs is ``stage.py``'s, as in every other island.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel import memory
from archipelago.perfmodel.communication import Network
from archipelago.perfmodel.errors import DoesNotFit, PerfModelError
from archipelago.perfmodel.layers import consecutive
from archipelago.perfmodel.parallelism import Parallelism
from archipelago.perfmodel.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.layers import LayerCounts
    from archipelago.perfmodel.model import FloatArray
    from archipelago.perfmodel.settings import EngineSettings, Prompt


@dataclass(frozen=True)
class Section:
    """GPUs of one accelerator that hold consecutive layers, one or more stages of them.

    ``layers`` are split evenly over the stages, the first ones taking what is left over; 0 where
    it is not decided yet (``balance.py`` does). ``gpus_per_node`` None: GPUs come one by one.
    """

    accelerator: Accelerator
    gpus: int
    layers: int = 0
    gpus_per_node: int | None = None

    @property
    def network(self) -> Network:
        """The links between the section's GPUs."""
        return Network(self.accelerator, self.accelerator.local_gpus(self.gpus_per_node))

    def cuts(self, stages: int, start: int) -> list[int]:
        """Where each stage begins, and where the last one ends, in layers of the model.

        The fullest stage has ceil(layers / stages).
        """
        fewest, more = divmod(self.layers, stages)
        return [start + stage * fewest + min(stage, more) for stage in range(stages + 1)]


@dataclass(frozen=True)
class Mould:
    """What all stages of an island have in common: model, parallelism, engine, GPUs in all."""

    model: ModelArchitecture
    parallelism: Parallelism
    settings: EngineSettings
    sequences: int


@dataclass(frozen=True)
class Placed:
    """One stage: its layers, the links of its GPUs, and the way to the next stage.

    ``span``: GPUs of its section. ``receiver``: network of the next section, None where the next
    stage stands in the same one. ``first`` and ``last``: it has the embedding, the output head.
    """

    mould: Mould
    counts: LayerCounts
    network: Network
    span: int
    receiver: Network | None
    first: bool
    last: bool

    def prefill(self, prompt: Prompt) -> FloatArray:
        """All passes of a prompt, with their hand-overs to the next stage [s]."""
        passed = self.stage.prefill_pass(prompt) + self.handover(prompt.tokens)
        head = self.stage.head(np.ones_like(prompt.tokens)) if self.last else 0.0
        return np.asarray(prompt.passes * passed + head)

    def decode(self, tokens: FloatArray, context: FloatArray) -> FloatArray:
        """One micro-batch of ``tokens`` sequences, with its hand-over to the next stage [s]."""
        rows = tokens * self.mould.settings.rows
        passed = self.stage.decode_pass(tokens, context) + self.handover(rows)
        return passed + self.stage.head(rows) if self.last else passed

    @property
    def kv_tokens(self) -> int:
        """Tokens of context whose cache of these layers fits beside their weights; 0 if none."""
        usable, weights, working = self._bytes
        mould, counts = self.mould, self.counts
        return memory.stage_kv_tokens(
            mould.model,
            mould.parallelism.tp,
            usable - weights - working,
            mould.sequences,
            full=counts.full,
            windowed=counts.windowed,
        )

    def check_weights(self, number: int) -> None:
        """Raise ``DoesNotFit`` with the sizes where stage ``number`` cannot hold its weights."""
        usable, weights, working = self._bytes
        if usable - weights - working <= 0:
            mould, card = self.mould, self.network.accelerator.name
            raise DoesNotFit(
                f"stage {number} of {mould.parallelism} with {self.counts.layers} of "
                f"{mould.model.layers} layers of {mould.model.name} in "
                f"{mould.model.precision.name} needs {weights / 1e9:.1f} GB of weights and "
                f"{working / 1e9:.1f} GB of working space per GPU; an engine on {card} has "
                f"{usable / 1e9:.1f} GB for them"
            )

    @cached_property
    def _bytes(self) -> tuple[float, float, float]:
        """Usable memory, weights and working space of one GPU [B]."""
        mould, counts = self.mould, self.counts
        policy, shape = mould.settings.memory, mould.parallelism
        ends = int(self.first) + int(self.last)
        return (
            policy.usable(self.network.accelerator, shape.gpus),
            memory.stage_weights(mould.model, shape, counts.dense, counts.sparse, ends),
            memory.activation_bytes(mould.model, shape, mould.settings.chunk),
        )

    @cached_property
    def stage(self) -> Stage:
        """The layers on their GPUs."""
        mould = self.mould
        return Stage(mould.model, self.counts, mould.parallelism, self.network, mould.settings)

    def handover(self, tokens: FloatArray) -> FloatArray:
        """Hidden states to the next stage, every tensor-parallel rank its part; 0 if last [s]."""
        if self.last:
            return np.zeros_like(tokens)
        size = tokens * (self.stage.hidden_bytes / self.mould.parallelism.tp)
        if self.receiver is None:
            return self.network.send(size, self.span)
        return self.network.send_out(size, self.receiver)


def stack(
    architecture: ModelArchitecture,
    sections: Sequence[Section],
    tp: int,
    max_sequences: int,
    settings: EngineSettings,
) -> Mould:
    """What the stages of such an island have in common.

    Raises:
        PerfModelError: ``tp`` does not divide the heads or a section, or leaves its local links.
    """
    heads = architecture.attention.heads
    if not sections or tp < 1 or heads % tp:
        raise PerfModelError(
            f"a pipeline of {len(sections)} sections with tp {tp}: valid are one section or more "
            f"and a divisor of the {heads} heads of {architecture.name}"
        )
    for section in sections:
        local = section.network.local
        if section.gpus < tp or section.gpus % tp or tp > local:
            raise PerfModelError(
                f"a section of {section.gpus} GPUs of {section.accelerator.name} with tp {tp}: "
                f"stages are tp GPUs each, and at most {local} reach each other locally"
            )
    stages = sum(section.gpus for section in sections) // tp
    return Mould(architecture, Parallelism(tp=tp, pp=stages), settings, max_sequences)


def place(mould: Mould, sections: Sequence[Section], at: int, start: int) -> Iterator[Placed]:
    """The stages of section ``at``, whose first layer is layer ``start`` of the model."""
    section = sections[at]
    stages = section.gpus // mould.parallelism.tp
    following = sections[at + 1].network if at + 1 < len(sections) else None
    cuts = section.cuts(stages, start)
    for number, (begin, end) in enumerate(pairwise(cuts), start=1):
        leaves = number == stages
        yield Placed(
            mould,
            consecutive(mould.model, begin, end),
            section.network,
            section.gpus,
            following if leaves else None,
            first=at == 0 and number == 1,
            last=leaves and following is None,
        )
