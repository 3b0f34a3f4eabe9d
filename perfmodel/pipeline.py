"""A pipeline whose stages stand on GPUs of several accelerators: one island of several pools.

Sections follow each other in the order of the model's layers; each is a run of equal GPUs that
holds ``gpus / tp`` stages. A layer costs what it costs in ``roofline.py``: both run ``stage.py``.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from archipelago.perfmodel.balance import Typical, balanced_layers, layer_splits
from archipelago.perfmodel.errors import PerfModelError
from archipelago.perfmodel.placement import Mould, Placed, Section, place, stack
from archipelago.perfmodel.settings import EngineSettings, Prompt
from archipelago.perfmodel.stage import handed_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from archipelago.perfmodel.accelerators import Accelerator
    from archipelago.perfmodel.architecture import ModelArchitecture
    from archipelago.perfmodel.model import FloatArray

__all__ = ["Pipeline", "Section", "Typical", "balanced_layers", "layer_splits"]


class Pipeline:
    """Times and capacities of one island of several sections; implements ``PerformanceModel``.

    P stages keep up to P micro-batches in flight. A token passes every stage, and a stage every
    micro-batch, so a step takes the sum of the stages or P times the slowest, whichever is longer.
    ``Roofline`` knows only the sum: it takes its stages as equal and the output head as spread.

    Args:
        sections: In the order of the layers, each with its share of them.
        architecture: The model, in its precision.
        tp: Tensor parallelism of every stage [GPUs].
        max_sequences: Largest batch that the engine runs.
        settings: Engine, chunk size, prefix hits and memory policy.

    Raises:
        PerfModelError: the sections do not make a pipeline of this model.
        DoesNotFit: a stage's weights need more memory than its GPUs leave for them.
    """

    name = "roofline"

    def __init__(
        self,
        sections: Sequence[Section],
        architecture: ModelArchitecture,
        tp: int,
        max_sequences: int = 1024,
        *,
        settings: EngineSettings | None = None,
    ) -> None:
        mould = stack(architecture, sections, tp, max_sequences, settings or EngineSettings())
        self.sections = tuple(sections)
        self.architecture = architecture
        self.parallelism = mould.parallelism
        self.settings = mould.settings
        self._sequences = max_sequences
        placed = _placed(mould, self.sections)
        for number, stage in enumerate(placed, start=1):
            stage.check_weights(number)
        self._stages = Counter(placed)  # equal stages take equal time: how many of each
        # One engine drives all sections from the host of the first.
        self._overheads = self.settings.on(self.sections[0].accelerator).overheads

    @property
    def max_length(self) -> int:
        """Longest sequence that the architecture accepts [tokens]."""
        return self.architecture.max_length

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerators that its times depend on."""
        return tuple(dict.fromkeys(section.accelerator for section in self.sections))

    def refitted(self, accelerator: Accelerator, values: Mapping[str, float]) -> Pipeline:
        """The same island with values of ``EngineFit`` changed on one of its accelerators.

        Raises:
            UnknownName: a fit has no such value.
        """
        fit = self.settings.on(accelerator).replaced(values)
        settings = replace(self.settings, fit=fit)
        other = copy(self)
        other._stages = Counter()  # noqa: SLF001  # its own copy
        for stage, count in self._stages.items():
            here = stage.network.accelerator == accelerator
            mould = replace(stage.mould, settings=settings) if here else stage.mould
            other._stages[replace(stage, mould=mould)] += count  # noqa: SLF001
        if self.sections[0].accelerator == accelerator:
            other._overheads = fit.overheads  # noqa: SLF001
        return other

    def max_sequences(self) -> int:
        """Largest batch of the island [sequences]."""
        return self._sequences

    def kv_capacity(self) -> int:
        """KV-cache tokens that the stage with least room for its layers' cache holds [tokens]."""
        return min(stage.kv_tokens for stage in self._stages)

    def kv_bytes(self, length: FloatArray) -> FloatArray:
        """Bytes of cache of a prompt, over all stages [B]."""
        return handed_over(self.architecture, length)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Seconds to the first token of one prompt: all of its passes through all stages."""
        prompt = Prompt.of(length, self.settings)
        total = prompt.passes * self._overheads.step
        for stage, count in self._stages.items():
            total = total + count * stage.prefill(prompt)
        return np.asarray(total)

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Seconds that one prompt keeps the slowest stage busy: the others overlap with it.

        Host work per pass is spread over the stages, as in ``Roofline``.
        """
        prompt = Prompt.of(length, self.settings)
        slowest = np.max([stage.prefill(prompt) for stage in self._stages], axis=0)
        host = self._overheads.step / self.parallelism.pp
        return np.asarray(slowest + prompt.passes * host)

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Seconds per token: all stages in turn, or the slowest for every micro-batch.

        Each of P stages sees B / P sequences with K / P tokens at a time; of fewer than P
        sequences each is a micro-batch of its own. Host work is that of ``Roofline``. Stages do
        not get faster with B and are convex in K, and neither do sums and maxima of them.
        """
        sequences, kv_tokens = np.broadcast_arrays(
            np.asarray(sequences, dtype=np.float64), np.asarray(kv_tokens, dtype=np.float64)
        )
        stages = self.parallelism.pp
        running = np.maximum(1.0, sequences)
        tokens, context = np.maximum(1.0, running / stages), kv_tokens / stages
        slowest, total = np.zeros_like(tokens), np.zeros_like(tokens)
        for stage, count in self._stages.items():
            seconds = stage.decode(tokens, context)
            slowest = np.maximum(slowest, seconds)
            total = total + count * seconds
        spent = self._overheads
        host = spent.step + spent.sequence * running
        step = np.maximum(np.minimum(running, stages) * slowest, total) + host
        return np.asarray(step * self.settings.per_token)


def _placed(mould: Mould, sections: Sequence[Section]) -> list[Placed]:
    """All stages in order; raises where the sections do not hold each layer once."""
    tp, model = mould.parallelism.tp, mould.model
    held = [section.layers for section in sections]
    if sum(held) != model.layers or any(s.layers * tp < s.gpus for s in sections):
        raise PerfModelError(
            f"sections of {held} layers for {model.name}: its {model.layers} layers must each lie "
            f"in one, and every stage needs one or more"
        )
    starts = accumulate(held, initial=0)
    pairs = zip(range(len(sections)), starts, strict=False)
    return [stage for at, start in pairs for stage in place(mould, sections, at, start)]
