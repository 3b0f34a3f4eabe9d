"""Pipelines over several pools: stages on GPUs of several accelerators, and the split of layers.

Sections follow each other in the order of the model's layers; each is a run of equal GPUs that
holds ``gpus / tp`` stages. A layer costs the same as in ``island.py``: both run ``stage.py``.

A pipeline is as fast as its slowest stage, and its cache as large as that of the stage with least
room. Fast GPUs with little memory bring the two into conflict, so ``layer_splits`` searches for
several amounts of cache, and the split with the least time for a typical request comes first.
Stages are sums over their layers, so the time of a stage follows from the time of one layer of each
kind. The best split is then exact, section by section from the last, by dynamic programming over
the layer at which a section begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from ..catalogue.accelerators import Accelerator
from ..catalogue.shape import ModelArchitecture
from ..errors import DoesNotFit, PerfModelError
from ..model import FloatArray
from . import memory
from .communication import Network
from .memory import LayerCounts, consecutive
from .parallelism import Parallelism
from .settings import EngineSettings, Prompt
from .stage import IslandLimits, Stage, beside_host


@dataclass(frozen=True)
class Section:
    """GPUs of one accelerator that hold consecutive layers, one or more stages of them.

    ``layers`` are split evenly over the stages, the first ones taking the remainder; 0 if
    ``layer_splits`` is still to decide. ``gpus_per_node`` None: GPUs come one by one.
    """

    accelerator: Accelerator
    gpus: int
    layers: int = 0
    gpus_per_node: int | None = None

    @property
    def network(self) -> Network:
        """Return the links between the section's GPUs."""
        return Network(self.accelerator, self.accelerator.local_gpus(self.gpus_per_node))


@dataclass(frozen=True)
class PipelineSpec:
    """What all stages of an island have in common: model, parallelism, engine, GPUs in all."""

    model: ModelArchitecture
    parallelism: Parallelism
    settings: EngineSettings
    sequences: int


@dataclass(frozen=True)
class PipelineStage:
    """One stage: its layers, the links of its GPUs, and the way to the next stage.

    ``span``: GPUs of its section. ``receiver``: network of the next section, None if the next
    stage stands in the same one. ``first`` and ``last``: it has the embedding, the output head.
    """

    spec: PipelineSpec
    counts: LayerCounts
    network: Network
    span: int
    receiver: Network | None
    first: bool
    last: bool

    def prefill(self, prompt: Prompt) -> FloatArray:
        """Return seconds [s] of all passes of a prompt, with their hand-overs to the next stage.

        passes (layers + hand-over), plus the output head on the last stage.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        passed = self.stage.prefill_pass(prompt) + self.handover(prompt.tokens)
        head = self.stage.head(np.ones_like(prompt.tokens)) if self.last else 0.0
        return np.asarray(prompt.passes * passed + head)

    def decode(self, tokens: FloatArray, context: FloatArray) -> FloatArray:
        """Return seconds [s] of one micro-batch, with its hand-over to the next stage.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.

        Args:
            tokens: Sequences of the micro-batch [sequences].
            context: Their cached tokens in all [tokens].
        """
        rows = tokens * self.spec.settings.rows
        passed = self.stage.decode_pass(tokens, context) + self.handover(rows)
        return passed + self.stage.head(rows) if self.last else passed

    @property
    def kv_tokens(self) -> int:
        """Return the tokens of context [tokens] whose cache fits beside the weights.

        0 if none; see ``memory.stage_kv_tokens``.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        usable, weights, working = self.bytes_per_gpu
        spec, counts = self.spec, self.counts
        return memory.stage_kv_tokens(
            spec.model,
            spec.parallelism.tp,
            usable - weights - working,
            min(spec.sequences, self.sequences),
            counts.mixers,
        )

    @property
    def sequences(self) -> int:
        """Return the largest batch whose recurrent states fit [sequences]; see ``memory``.

        Source: docs/explanation/performance-model.md#memory.
        """
        usable, weights, working = self.bytes_per_gpu
        spec = self.spec
        kept = memory.state_bytes_per_gpu(spec.model, spec.parallelism.tp, self.counts.mixers)
        return memory.sequences_with_states(kept, usable - weights - working, spec.sequences)

    @cached_property
    def bytes_per_gpu(self) -> tuple[float, float, float]:
        """Return usable memory, weights and working space of one GPU [B].

        Source: docs/explanation/performance-model.md#memory.
        """
        spec, counts = self.spec, self.counts
        policy, shape = spec.settings.memory, spec.parallelism
        ends = int(self.first) + int(self.last)
        return (
            policy.usable(self.network.accelerator, shape.gpus),
            memory.stage_weights(spec.model, shape, counts, ends),
            memory.activation_bytes(spec.model, shape, spec.settings.chunk),
        )

    @cached_property
    def stage(self) -> Stage:
        """Return the layers on their GPUs."""
        spec = self.spec
        return Stage(spec.model, self.counts, spec.parallelism, self.network, spec.settings)

    def handover(self, tokens: FloatArray) -> FloatArray:
        """Return seconds [s] to pass ``tokens`` [tokens] to the next stage; 0 if last.

        Every tensor-parallel rank sends its part. Inside a section over the local link, between
        sections over the slower of the two NICs.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        if self.last:
            return np.zeros_like(tokens)
        size = tokens * (self.stage.hidden_bytes / self.spec.parallelism.tp)
        if self.receiver is None:
            return self.network.send(size, self.span)
        return self.network.send_out(size, self.receiver)


def pipeline_spec(
    architecture: ModelArchitecture,
    sections: Sequence[Section],
    tp: int,
    max_sequences: int,
    settings: EngineSettings,
) -> PipelineSpec:
    """Return what the stages of such an island have in common.

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
    return PipelineSpec(architecture, Parallelism(tp=tp, pp=stages), settings, max_sequences)


def section_stages(
    spec: PipelineSpec, sections: Sequence[Section], at: int, start: int
) -> Iterator[PipelineStage]:
    """Yield the stages of section ``at``, whose first layer is layer ``start`` of the model."""
    section = sections[at]
    stages = section.gpus // spec.parallelism.tp
    following = sections[at + 1].network if at + 1 < len(sections) else None
    fewest, more = divmod(section.layers, stages)
    cuts = [start + stage * fewest + min(stage, more) for stage in range(stages + 1)]
    for number, (begin, end) in enumerate(pairwise(cuts), start=1):
        leaves = number == stages
        yield PipelineStage(
            spec,
            consecutive(spec.model, begin, end),
            section.network,
            section.gpus,
            following if leaves else None,
            first=at == 0 and number == 1,
            last=leaves and following is None,
        )


_CACHE_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the largest possible cache that splits are sought for."""

_CACHED_COSTS = 4096
"""Costs of stages that are kept: sizes of one pair of pools ask for the same ones again."""

_CACHED_TABLES = 4
"""Tables of sections that are kept: those of the phases and widths of one size."""

_CODED_KINDS = 6
"""Kinds of layers whose counts are told apart by one number; of more, rows are sorted."""

_SLACK = 1 + 1e-12
"""Sums of floating-point numbers in another order are still equal."""


@dataclass(frozen=True)
class TypicalRequest:
    """What layers are balanced for: lengths of a request and the largest batch [tokens, sequences].

    ``longest``: input and output of a request that the cache should hold if any split's can.
    """

    length: float = 1024.0
    output: float = 256.0
    sequences: float = 256.0
    longest: float = 32_768.0


def layer_splits(
    architecture: ModelArchitecture,
    sections: Sequence[Section],
    tp: int,
    phase: str,
    typical: TypicalRequest | None = None,
    *,
    max_sequences: int = 1024,
    settings: EngineSettings | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Return the few splits [layers] worth a template, the one with the least time first.

    For each of a few amounts of cache the split whose slowest stage is fastest among those with
    that much room; of equals the one with the least time over all stages, then the fewest layers in
    front. Prefill counts a prompt of the typical length; decode the typical output in batches as
    large as that cache holds; mixed both. Exact by dynamic programming over the layer at which a
    section begins.

    Source: docs/explanation/performance-model.md#pipelines-over-several-pools.

    Args:
        architecture: The model.
        sections: In order; their ``layers`` are ignored.
        tp: Tensor parallelism of every stage [GPUs].
        phase: ``prefill``, ``decode`` or ``mixed``.
        typical: What to balance for.
        max_sequences: Largest batch that the engine runs [sequences].
        settings: Engine, chunk size, prefix hits and memory policy.

    Raises:
        PerfModelError: the sections do not make a pipeline of this model.
        DoesNotFit: no split fits; names the most layers that each section could hold.
    """
    typical = typical or TypicalRequest()
    spec = pipeline_spec(architecture, sections, tp, max_sequences, settings or EngineSettings())
    tables = _tables(spec, tuple(sections))
    kv_capacities = [table.kv_capacities for table in tables]
    most = -_min_max([-room for room in kv_capacities])
    if most < 1:
        held = [
            f"{int(np.nonzero((room > 0).any(axis=0))[0].max(initial=0))} on {section.gpus} x "
            f"{section.accelerator.name}"
            for room, section in zip(kv_capacities, sections, strict=True)
        ]
        raise DoesNotFit(
            f"{architecture.name} in {architecture.precision.name} "
            f"({architecture.parameters / 1e9:.1f} billion parameters) as {spec.parallelism} has "
            f"{architecture.layers} layers; at most fit: {', '.join(held)}"
        )
    costs: dict[tuple[int, ...], float] = {}
    rooms = [max(share * most, min(most, typical.longest)) for share in _CACHE_SHARES]
    rooms = list(dict.fromkeys(rooms))
    times = zip(*(table.seconds(phase, typical, rooms) for table in tables), strict=True)
    for tokens, stages in zip(rooms, times, strict=True):
        split, cost = _fastest_split(stages, [room >= tokens for room in kv_capacities])
        costs[split] = min(cost, costs.get(split, np.inf))
    return tuple(sorted(costs, key=lambda split: (costs[split], split)))


@lru_cache(maxsize=_CACHED_TABLES)
def _tables(spec: PipelineSpec, sections: tuple[Section, ...]) -> tuple[_Table, ...]:
    return tuple(_Table(spec, sections, at) for at in range(len(sections)))


class _Table:
    """One section: what it would cost and hold, by the layer it begins at and its layers.

    Arrays have shape (start, layers), both from 0 to the model's number of layers; what cannot be
    is infinitely slow and has no room.
    """

    def __init__(self, spec: PipelineSpec, sections: Sequence[Section], at: int) -> None:
        bare = [replace(section, layers=0) for section in sections]
        self._stages = [
            replace(stage, counts=consecutive(spec.model, 0, 0))
            for stage in section_stages(spec, bare, at, 0)
        ]
        layers, stages = spec.model.layers, len(self._stages)
        start, held = np.indices((layers + 1, layers + 1))
        possible = (held >= stages) & (start + held <= layers)
        possible &= (start == 0) if at == 0 else (start > 0)
        if at == len(sections) - 1:
            possible &= start + held == layers
        self._possible = possible
        start, held = start[possible], held[possible]
        kinds = np.array(spec.model.prefix)
        fewest, more = np.divmod(held, stages)
        begins = [start + number * fewest + np.minimum(number, more) for number in range(stages)]
        # Layers of each kind on each stage of the section, shape (possible, kinds).
        self._counts = [
            kinds[begin + fewest + (number < more)] - kinds[begin]
            for number, begin in enumerate(begins)
        ]

    @cached_property
    def kv_capacities(self) -> FloatArray:
        """Return KV tokens of the stage with least room."""
        room = np.full(len(self._counts[0]), np.inf)
        base = len(self._possible)  # more than any count
        for stage, counts in zip(self._stages, self._counts, strict=True):
            # Kinds as digits of one number: numpy sorts numbers faster than rows.
            kinds = counts.shape[1]
            coded = counts @ base ** np.arange(kinds) if kinds <= _CODED_KINDS else counts
            _, first, which = np.unique(coded, return_index=True, return_inverse=True, axis=0)
            tokens = np.empty(len(first))
            for i, kind in enumerate(counts[first]):
                tokens[i] = _kv_tokens(stage, _counts(stage.spec.model, kind))
            room = np.minimum(room, tokens[which])
        return self._spread(room, 0.0)

    def seconds(
        self, phase: str, typical: TypicalRequest, rooms: Sequence[float]
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Time of a typical request on the slowest stage and over all stages [s], by room."""
        costs = {stage: _costs(stage, phase, typical, tuple(rooms)) for stage in set(self._stages)}
        times = []
        for room in range(len(rooms)):
            slowest = total = np.zeros(len(self._counts[0]))
            for stage, counts in zip(self._stages, self._counts, strict=True):
                layers, rest = costs[stage]
                seconds = counts @ layers[room] + rest[room]
                slowest, total = np.maximum(slowest, seconds), total + seconds
            times.append((self._spread(slowest, np.inf), self._spread(total, np.inf)))
        return times

    def _spread(self, values: FloatArray, elsewhere: float) -> FloatArray:
        table = np.full(self._possible.shape, elsewhere)
        table[self._possible] = values
        return table


def _counts(model: ModelArchitecture, kinds: Iterable[int]) -> LayerCounts:
    counts = tuple(map(int, kinds))
    return LayerCounts(counts[: len(model.mixers)], counts[len(model.mixers) :])


@lru_cache(maxsize=_CACHED_COSTS)
def _kv_tokens(stage: PipelineStage, counts: LayerCounts) -> int:
    return replace(stage, counts=counts).kv_tokens


@lru_cache(maxsize=_CACHED_COSTS)
def _costs(
    stage: PipelineStage, phase: str, typical: TypicalRequest, rooms: tuple[float, ...]
) -> tuple[FloatArray, FloatArray]:
    """Return seconds of a typical request per layer of each kind, and beside the layers.

    ``rooms``: tokens of cache that the island fills as far as its batch goes. Shapes (rooms, kinds)
    and (rooms,).
    """
    context = typical.length + typical.output / 2
    room = np.array(rooms) / context
    batch = np.minimum(min(typical.sequences, stage.spec.sequences), room)
    tokens = np.maximum(1.0, batch / stage.spec.parallelism.pp)
    prompt = Prompt.of(np.array(typical.length), stage.spec.settings)
    count = len(stage.spec.model.prefix[0])
    layers, rest = np.zeros((len(rooms), count)), np.zeros(len(rooms))
    kinds = _layers_of_kind(stage.spec, stage.network)
    if phase != "decode":
        for kind, layer in kinds:
            layers[:, kind] += prompt.passes * layer.prefill_pass(prompt)
        rest += stage.prefill(prompt)
    if phase != "prefill":
        steps = typical.output / tokens
        for kind, layer in kinds:
            layers[:, kind] += steps * layer.decode_pass(tokens, tokens * context)
        rest += steps * stage.decode(tokens, tokens * context)
    return layers, rest


@lru_cache(maxsize=_CACHED_COSTS)
def _layers_of_kind(spec: PipelineSpec, network: Network) -> tuple[tuple[int, Stage], ...]:
    """Return one layer of each kind that the model has, by the number of the kind."""
    kinds = len(spec.model.prefix[0])
    found = []
    for kind in range(kinds):
        counts = _counts(spec.model, (int(each == kind) for each in range(kinds)))
        stage = Stage(spec.model, counts, spec.parallelism, network, spec.settings)
        found.append((kind, stage))
    return tuple(found)


def _min_max(scores: Sequence[FloatArray]) -> float:
    """Return the least possible maximum of a score over the sections."""
    return float(_suffix_best(scores, np.maximum)[0][0])


def _suffix_best(scores: Sequence[FloatArray], join: np.ufunc) -> list[FloatArray]:
    """Return the best score of all sections from each on, by the layer at which it begins."""
    layers = len(scores[0]) - 1
    end = np.full(layers + 1, np.inf)
    end[layers] = -np.inf if join is np.maximum else 0.0
    after = np.add.outer(np.arange(layers + 1), np.arange(layers + 1)).clip(max=layers)
    best = [end]
    for score in reversed(scores):
        best.insert(0, join(score, best[0][after]).min(axis=1))
    return best


def _fastest_split(
    stages: Sequence[tuple[FloatArray, FloatArray]], able: Sequence[NDArray[np.bool_]]
) -> tuple[tuple[int, ...], float]:
    """Split with the fastest slowest stage, and that stage's time."""
    slowest = [np.where(ok, slow, np.inf) for (slow, _), ok in zip(stages, able, strict=True)]
    limit = _min_max(slowest) * _SLACK
    totals = [
        np.where(slow <= limit, total, np.inf)
        for slow, (_, total) in zip(slowest, stages, strict=True)
    ]
    best = _suffix_best(totals, np.add)
    split: list[int] = []
    for total, onwards in zip(totals, best[1:], strict=True):
        start = sum(split)
        split.append(int((total[start, : len(onwards) - start] + onwards[start:]).argmin()))
    return tuple(split), limit / _SLACK


class Pipeline(IslandLimits):
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
        spec = pipeline_spec(
            architecture, sections, tp, max_sequences, settings or EngineSettings()
        )
        super().__init__(architecture, spec.parallelism, max_sequences, spec.settings)
        self.sections = tuple(sections)
        self.accelerators = tuple(dict.fromkeys(section.accelerator for section in sections))
        held = [section.layers for section in sections]
        if sum(held) != architecture.layers or any(s.layers * tp < s.gpus for s in sections):
            raise PerfModelError(
                f"sections of {held} layers for {architecture.name}: its {architecture.layers} "
                f"layers must each lie in one, and every stage needs one or more"
            )
        stages: list[PipelineStage] = []
        for at, start in enumerate(accumulate(held[:-1], initial=0)):
            stages += section_stages(spec, sections, at, start)
        fitting = min(stage.sequences for stage in stages)
        if fitting < max_sequences:
            self._sequences_per_copy = fitting
            stages = [replace(s, spec=replace(spec, sequences=fitting)) for s in stages]
        for number, stage in enumerate(stages, start=1):
            usable, weights, working = stage.bytes_per_gpu
            if usable - weights - working <= 0:
                raise DoesNotFit(
                    f"stage {number} of {spec.parallelism} with {stage.counts.layers:g} of "
                    f"{architecture.layers} layers of {architecture.name} in "
                    f"{architecture.precision.name} needs {weights / 1e9:.1f} GB of weights and "
                    f"{working / 1e9:.1f} GB of working space per GPU; an engine on "
                    f"{stage.network.accelerator.name} has {usable / 1e9:.1f} GB for them"
                )
        self._stages = Counter(stages)  # equal stages take equal time: how many of each
        # One engine drives all sections from the host of the first.
        self._overheads = self.settings.on(self.sections[0].accelerator).overheads

    def refitted(self, accelerator: Accelerator, values: Mapping[str, float]) -> Pipeline:
        """Return the same island with values of ``EngineFit`` changed on one of its accelerators.

        Raises:
            UnknownName: a fit has no such value.
        """
        fit = self.settings.on(accelerator).replaced(values)
        settings = replace(self.settings, fit=fit)
        other = copy(self)
        other._stages = Counter()  # noqa: SLF001  # its own copy
        for stage, count in self._stages.items():
            here = stage.network.accelerator == accelerator
            spec = replace(stage.spec, settings=settings) if here else stage.spec
            other._stages[replace(stage, spec=spec)] += count  # noqa: SLF001
        if self.sections[0].accelerator == accelerator:
            other._overheads = fit.overheads  # noqa: SLF001
        return other

    def kv_capacity(self) -> int:
        """Return the KV-cache tokens [tokens] of the stage with least room for its layers' cache.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        return min(stage.kv_tokens for stage in self._stages)

    def prefill_time(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] to the first token of ``length`` [tokens]: sum_i t_i, or host.

        All passes run through all stages. Valid without a queue.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        prompt = Prompt.of(length, self.settings)
        total = np.zeros_like(prompt.tokens)
        for stage, count in self._stages.items():
            total = total + count * stage.prefill(prompt)
        spent, passes = self._overheads, prompt.passes
        return beside_host(total, passes * spent.step, spent.exposed) + spent.request

    def prefill_occupancy(self, length: FloatArray) -> FloatArray:
        """Return seconds [s] that a prompt of ``length`` [tokens] keeps the slowest stage busy.

        max_i t_i, or host / P: the other stages overlap with it, and host work per pass is spread
        over the P stages, as in ``Roofline``. Valid under full load.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.
        """
        prompt = Prompt.of(length, self.settings)
        slowest = np.max([stage.prefill(prompt) for stage in self._stages], axis=0)
        spent = self._overheads
        host = prompt.passes * spent.step / self.parallelism.pp
        return beside_host(slowest, host, spent.exposed)

    def decode_step_time(self, sequences: FloatArray, kv_tokens: FloatArray) -> FloatArray:
        """Return seconds per token [s]: max(min(B, P) max_i t_i, sum_i t_i), or host.

        Each of P stages sees B / P sequences with K / P tokens at a time; of fewer than P sequences
        each is a micro-batch of its own. Host work is that of ``Roofline``. Each t_i is
        non-decreasing in B and convex in K, and so are sums and maxima of them.

        Source: docs/explanation/performance-model.md#pipelines-over-several-pools.

        Args:
            sequences: B, running sequences of the island [sequences].
            kv_tokens: K, cached tokens of the island [tokens]; broadcasts with ``sequences``.
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
        gpu = np.maximum(np.minimum(running, stages) * slowest, total)
        return beside_host(gpu, host, spent.exposed) * self.settings.per_token
