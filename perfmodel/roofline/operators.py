"""Operators: the work of one token on one GPU, counted in operations and bytes.

Operations and bytes of an operator grow with the tokens of a pass and with their context; its time
is the roofline's ``max(compute, memory)``. A *block* is half a layer: an attention or a
feed-forward, with its communication. The builders below turn an architecture into blocks, per
phase.

Counts are 2 operations per multiply-accumulate. Letters follow DeepSeek-V2 (arXiv:2405.04434).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..catalogue.accelerators import WEIGHT_ONLY, Accelerator
from ..catalogue.efficiency import Efficiency, EngineFit
from ..catalogue.layers import (
    CompressedAttention,
    Dense,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Mixer,
    StateMixer,
)
from ..catalogue.precision import BF16, BF16_BYTES, Format
from ..catalogue.shape import ModelArchitecture
from ..model import FloatArray
from .memory import kv_elements_per_gpu

ACTIVATION_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "fp4": 0.5, WEIGHT_ONLY: 2.0}

ATTENTION = "attention"
"""Name of the operator in which queries meet the context."""

INDEX = "index scores"
"""Name of the operator in which an indexer scores the context."""

_STATE_OPERATIONS = 6
"""Operations per element of a recurrent state and token: decay, update and read, each a multiply
and an add (the recurrences of arXiv:2405.21060 and arXiv:2412.06464)."""

_TILE = 64
"""Rows of queries that a kernel of decode attention multiplies at least: heads that share a KV head
are packed into them (Dao-AILab/flash-attention, ``pack_gqa``)."""

_NORM_TRAFFIC = 4
"""Reads and writes of the hidden state by one fused norm with residual."""


@dataclass(frozen=True)
class Operator:
    """One kernel on one GPU: operations and bytes per pass, per token and per attended position.

    ``rate`` [FLOP/s] and ``bandwidth`` [B/s] are what the kernel reaches, not the peaks.
    ``flops_pass``: operations that are paid whatever the number of tokens. ``start`` [s]: what no
    work hides, from one kernel to the next. ``serial``: compute and memory time add up, because
    the kernel does not overlap them. ``room``: queries of a sequence for which a tile has room.
    """

    name: str
    rate: float
    bandwidth: float
    flops_pass: float = 0.0
    flops_token: float = 0.0
    flops_context: float = 0.0
    bytes_pass: float = 0.0
    bytes_token: float = 0.0
    bytes_context: float = 0.0
    start: float = 0.0
    serial: bool = False
    room: float = 1.0

    @property
    def attends(self) -> bool:
        """Return whether its work grows with the context."""
        return self.flops_context > 0 or self.bytes_context > 0

    def attending(self, rows: int) -> Operator:
        """Return the operator with ``rows`` queries per attended position, which is read once.

        Rows for which a tile of the kernel has room take no longer than one.
        """
        if rows == 1 or self.name not in (ATTENTION, INDEX):
            return self
        return replace(self, flops_context=max(1.0, rows / self.room) * self.flops_context)

    def seconds(self, tokens: FloatArray, context: FloatArray) -> FloatArray:
        """Return seconds [s] of a pass: start + max(operations / rate, bytes / bandwidth).

        Serial: the sum of all three.

        Both grow with the pass, its tokens and their context: x_pass + x_token tokens + x_context
        context.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            tokens: Tokens of the pass [tokens], any shape.
            context: Positions that they attend to in all [tokens^2 in prefill, tokens in decode].
        """
        worked = self.flops_pass + self.flops_token * tokens + self.flops_context * context
        compute = worked / self.rate
        moved = self.bytes_pass + self.bytes_token * tokens + self.bytes_context * context
        memory = moved / self.bandwidth
        return self.start + (compute + memory if self.serial else np.maximum(compute, memory))


class Operators:
    """Operators that run one after another, evaluated together.

    The arrays of a template are short, so what costs is the number of array operations: here as
    many for all operators as for one. Every time is that of ``Operator.seconds``, bit by bit.
    """

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.each = tuple(operators)
        self._coefficients = np.array(
            [
                (o.flops_pass, o.flops_token, o.rate, o.bytes_pass, o.bytes_token, o.bandwidth)
                for o in self.each
            ]
        ).T
        self._attending = [(at, o) for at, o in enumerate(self.each) if o.attends]
        self._starts = np.array([o.start for o in self.each])
        self._serial = [at for at, o in enumerate(self.each) if o.serial]

    def seconds(self, tokens: FloatArray, context: FloatArray | float = 0.0) -> FloatArray:
        """Return seconds [s] of all operators in a pass: their sum; see ``Operator.seconds``.

        Source: docs/explanation/performance-model.md#times-the-roofline.

        Args:
            tokens: Tokens of the pass [tokens], any shape.
            context: Positions that they attend to in all, as for ``Operator.seconds`` [tokens].
        """
        flops_pass, flops_token, rate, bytes_pass, bytes_token, bandwidth = (
            self._coefficients.reshape(6, len(self.each), *(1,) * tokens.ndim)
        )
        compute = flops_pass + flops_token * tokens
        memory = bytes_pass + bytes_token * tokens
        for at, operator in self._attending:
            compute[at] += operator.flops_context * context
            memory[at] += operator.bytes_context * context
        compute /= rate
        memory /= bandwidth
        seconds = np.maximum(compute, memory)
        for at in self._serial:
            seconds[at] = compute[at] + memory[at]
        seconds += self._starts.reshape(-1, *(1,) * tokens.ndim)
        return functools.reduce(np.add, seconds)  # in their order, whatever the shape


@dataclass(frozen=True)
class Kernels:
    """Makes operators at the rates that an engine reaches with one model on one accelerator."""

    accelerator: Accelerator
    model: ModelArchitecture
    fit: EngineFit

    def operand(self, form: Format) -> str:
        """Return the class of products with weights of a format: a key of the efficiencies."""
        operand = self.accelerator.operand(form.compute)
        return WEIGHT_ONLY if operand == "bf16" and form.size < BF16_BYTES else operand

    def efficiency(self, form: Format) -> Efficiency:
        """Return efficiencies of products with weights of a format."""
        return self.fit.efficiency(self.operand(form))

    @property
    def attending(self) -> Efficiency:
        """Return efficiencies of attention: by the type of its cache."""
        narrow = self.model.precision.kv < BF16_BYTES and self.accelerator.fp8
        return self.fit.fp8 if narrow else self.fit.bf16

    def activation(self, form: Format) -> float:
        """Return bytes moved [B] to read one activation for weights of a format.

        The operand itself, plus what quantising it to FP8 or FP4 moves.

        Source: docs/explanation/performance-model.md#times-the-roofline; quantisation in
        ``efficiencies.yaml``.
        """
        return ACTIVATION_BYTES[self.operand(form)] + self.efficiency(form).quantise_bytes

    def product(
        self,
        name: str,
        inputs: float,
        outputs: float,
        part: str = "linear",
    ) -> Operator:
        """Return a matrix product of the dense part: 2 n in out operations for n rows.

        ``part`` says the format of the weights (``Precision.part``; ``router`` is BF16).
        Activations are read once (and quantised if the operands are narrow), results are written
        in BF16. Sums along the inputs are a chain that no parallel work hides.
        """
        form = BF16 if part == "router" else self.model.precision.part(part)
        efficiency = self.efficiency(form)
        return Operator(
            name,
            rate=efficiency.mfu * self.accelerator.peak(form.compute),
            bandwidth=efficiency.mbu * self.accelerator.bandwidth,
            flops_pass=2 * inputs * outputs * efficiency.ramp_rows,
            flops_token=2 * inputs * outputs,
            bytes_pass=inputs * outputs * form.size,
            bytes_token=inputs * self.activation(form) + outputs * BF16_BYTES,
            start=efficiency.start + efficiency.chain * inputs,
        )

    def per_head(self, name: str, heads: float, inputs: int, outputs: int) -> Operator:
        """Return a product of every head with a matrix of its own, in BF16."""
        efficiency = self.fit.bf16
        return Operator(
            name,
            rate=efficiency.mfu * self.accelerator.half,
            bandwidth=efficiency.mbu * self.accelerator.bandwidth,
            flops_token=2 * heads * inputs * outputs,
            bytes_pass=heads * inputs * outputs * BF16_BYTES,
            bytes_token=heads * (inputs + outputs) * BF16_BYTES,
            start=efficiency.start,
        )

    def norm(self) -> Operator:
        """Return norm, residual and the like: memory traffic only."""
        efficiency = self.fit.bf16
        return Operator(
            "norm",
            rate=self.accelerator.half,
            bandwidth=efficiency.mbu * self.accelerator.bandwidth,
            bytes_token=_NORM_TRAFFIC * self.model.hidden * BF16_BYTES,
        )


def output_head(kernels: Kernels, tp: int) -> Operator:
    """Return the product with the vocabulary, sliced over tp."""
    model = kernels.model
    return kernels.product("output head", model.hidden, model.vocabulary / tp, "head")


def dense_ffn(kernels: Kernels, shape: Dense, tp: int) -> tuple[Operator, ...]:
    """Return a dense feed-forward block on one of ``tp`` GPUs."""
    return ffn(kernels, shape.width / tp, (2 if shape.gated else 1) * shape.width / tp)


def ffn(kernels: Kernels, width: float, up: float, part: str = "linear") -> tuple[Operator, ...]:
    """Return norm, up (and gate) and down products of a feed-forward."""
    hidden = kernels.model.hidden
    return (
        kernels.norm(),
        kernels.product("up", hidden, up, part),
        kernels.product("down", width, hidden, part),
    )


def attention(
    kernels: Kernels, shape: Mixer, tp: int, phase: str, *, absorbed: bool | None = None
) -> tuple[Operator, ...]:
    """Return a mixer's block on one of ``tp`` GPUs, for ``prefill`` or ``decode``.

    ``absorbed``: form of latent attention; None takes what engines do, absorbed in decode only.
    What attends does so over ``shape.reach`` tokens of context at most; its indexer is apart
    (``indexer``).
    """
    if isinstance(shape, StateMixer):
        return (kernels.norm(), *_state(kernels, shape, tp, phase))
    if isinstance(shape, CompressedAttention):
        return (kernels.norm(), *_compressed(kernels, shape, tp, phase))
    if isinstance(shape, LatentAttention):
        if absorbed if absorbed is not None else phase == "decode":
            return (kernels.norm(), *_latent_absorbed(kernels, shape, tp))
        build = _latent_prefill if phase == "prefill" else _latent_expanded_decode
        return (kernels.norm(), *build(kernels, shape, tp))
    return (kernels.norm(), *_grouped(kernels, shape, tp, phase))


def indexer(kernels: Kernels, shape: Mixer, phase: str) -> tuple[Operator, ...]:
    """Return the indexer of a sparse mixer, whole on every rank: it scores all of the context.

    2 heads d operations per query and indexed token, in FP8 where the hardware has it.
    """
    index = shape.index
    if index is None or not index.owned:
        return ()
    ratio = shape.ratio if isinstance(shape, CompressedAttention) else 1
    queried = getattr(shape, "q_rank", None) or kernels.model.hidden
    return (
        kernels.product("index q", queried, index.heads * index.dim, "attention"),
        kernels.product("index k", kernels.model.hidden, index.dim + index.heads, "attention"),
        _index_scores(kernels, index, ratio, phase),
    )


def _index_scores(kernels: Kernels, index: Indexer, ratio: int, phase: str) -> Operator:
    efficiency = kernels.fit.fp8 if kernels.accelerator.fp8 else kernels.fit.bf16
    decode = phase == "decode"
    return Operator(
        INDEX,
        rate=efficiency.latent_mfu * kernels.accelerator.peak("fp8"),
        bandwidth=efficiency.kv_mbu * kernels.accelerator.bandwidth,
        flops_context=2 * index.heads * index.dim / ratio,
        bytes_context=index.key_bytes / ratio if decode else 0.0,
    )


def _state(kernels: Kernels, shape: StateMixer, tp: int, phase: str) -> tuple[Operator, ...]:
    """Return a layer with a state: projections, and the recurrence.

    In decode every sequence's state is read and written at each step; a prefill pass keeps it on
    the chip and streams its inputs and results.
    """
    hidden, efficiency = kernels.model.hidden, kernels.fit.bf16
    if phase == "prefill":
        name, moved = "state scan", (shape.inputs + shape.outputs) * BF16_BYTES
    else:
        name, moved = "state step", 2 * shape.sequence_bytes
    core = Operator(
        name,
        rate=efficiency.prefill_attention_mfu * kernels.accelerator.half,
        bandwidth=efficiency.kv_mbu * kernels.accelerator.bandwidth,
        flops_token=_STATE_OPERATIONS * shape.state / tp,
        bytes_token=moved / tp,
    )
    small = Operator(
        "small weights",
        rate=kernels.accelerator.half,
        bandwidth=efficiency.mbu * kernels.accelerator.bandwidth,
        flops_token=2 * shape.small / tp,
        bytes_pass=shape.small * BF16_BYTES / tp,
    )
    return (
        kernels.product("state input", hidden, shape.inputs / tp, "attention"),
        core,
        small,
        kernels.product("state output", shape.outputs / tp, hidden, "attention"),
    )


def _compressed(
    kernels: Kernels, shape: CompressedAttention, tp: int, phase: str
) -> tuple[Operator, ...]:
    """Return compressed attention: 4 d operations per query head and entry, raw or compressed.

    The raw window is charged whole per token. ``context`` counts tokens: an entry is ``ratio`` of
    them.
    """
    hidden, kv = kernels.model.hidden, kernels.model.precision.kv
    efficiency = kernels.efficiency(kernels.model.precision.part("attention"))
    heads = shape.heads / tp
    per_entry, entry = 4 * heads * shape.dim, shape.dim * kv
    share = 1 / shape.ratio if shape.ratio else 0.0
    decode = phase == "decode"
    core = Operator(
        ATTENTION,
        rate=efficiency.latent_mfu * kernels.accelerator.half,
        bandwidth=efficiency.kv_mbu * kernels.accelerator.bandwidth,
        flops_token=per_entry * shape.near,
        flops_context=per_entry * share,
        bytes_token=shape.near * entry if decode else 2 * heads * shape.dim * BF16_BYTES,
        bytes_context=entry * share if decode else 0.0,
    )
    group = shape.heads * shape.dim / shape.groups
    return (
        kernels.product("q down", hidden, shape.q_rank, "attention"),
        kernels.product("q up", shape.q_rank, heads * shape.dim, "attention"),
        kernels.product("kv", hidden, shape.dim + shape.compressor_width, "attention"),
        core,
        kernels.product("output down", group, shape.groups / tp * shape.out_rank, "attention"),
        kernels.product("output up", shape.groups * shape.out_rank / tp, hidden, "attention"),
    )


def _grouped(
    kernels: Kernels, shape: GroupedAttention, tp: int, phase: str
) -> tuple[Operator, ...]:
    """Return grouped attention: 4 d operations per query head and position.

    Prefill is flash attention, causal: kernels' times are the sum of operations and traffic. Decode
    reads the cache while it works for all query heads: with a sum in place of the maximum, closed
    loops of current engines need a bandwidth above the memory's. A block of threads for each
    sequence and KV head takes its time beside.
    """
    hidden, kv = kernels.model.hidden, kernels.model.precision.kv
    queries = shape.heads * shape.head_dim / tp
    results = shape.heads * shape.value_dim / tp
    cached = kv_elements_per_gpu(shape, tp)
    kv_heads = -(-shape.kv_heads // tp)
    made = 0 if shape.shares_cache else cached
    if shape.key_is_value:
        made -= kv_heads * shape.value_dim
    efficiency, card = kernels.attending, kernels.accelerator
    if phase == "prefill":
        core = Operator(
            ATTENTION,
            rate=efficiency.prefill_attention_mfu * card.half,
            bandwidth=efficiency.prefill_attention_mbu * card.bandwidth,
            flops_context=2 * (queries + results),
            bytes_token=(queries + results + cached) * BF16_BYTES,
            start=efficiency.prefill_attention_start,
            serial=True,
        )
    else:
        bandwidth = efficiency.kv_mbu * card.bandwidth
        blocks = kv_heads * efficiency.decode_attention_block
        core = Operator(
            ATTENTION,
            rate=efficiency.decode_attention_mfu * card.half,
            bandwidth=bandwidth,
            flops_context=2 * (queries + results),
            bytes_token=(queries + results) * BF16_BYTES + cached * kv + blocks * bandwidth,
            bytes_context=cached * kv,
            start=efficiency.decode_attention_start,
            room=max(1.0, _TILE * kv_heads * tp / shape.heads),
        )
    return (
        kernels.product("qkv", hidden, queries + made + shape.gate / tp, "attention"),
        core,
        kernels.product("attention output", results, hidden, "attention"),
    )


def _latent_down(kernels: Kernels, shape: LatentAttention, tp: int) -> tuple[Operator, ...]:
    """Return query path and the joint down-projection of keys and values (whole on every rank)."""
    hidden = kernels.model.hidden
    queries = shape.heads * (shape.nope_dim + shape.rope_dim) / tp
    gate = (kernels.product("gate", hidden, shape.gate / tp, "attention"),) if shape.gate else ()
    down = (kernels.product("kv down", hidden, shape.kv_elements, "attention"), *gate)
    if shape.q_rank is None:
        return (kernels.product("q", hidden, queries, "attention"), *down)
    return (
        kernels.product("q down", hidden, shape.q_rank, "attention"),
        kernels.product("q up", shape.q_rank, queries, "attention"),
        *down,
    )


def _latent_output(kernels: Kernels, shape: LatentAttention, heads: float) -> Operator:
    hidden = kernels.model.hidden
    return kernels.product("attention output", heads * shape.v_dim, hidden, "attention")


def _latent_prefill(kernels: Kernels, shape: LatentAttention, tp: int) -> tuple[Operator, ...]:
    """Return the expanded form: keys and values are made, then attended as by ordinary heads."""
    heads = shape.heads / tp
    efficiency = kernels.efficiency(kernels.model.precision.part("attention"))
    per_head = shape.nope_dim + shape.rope_dim + shape.v_dim
    made = heads * (shape.nope_dim + shape.v_dim)
    core = Operator(
        ATTENTION,
        rate=efficiency.latent_prefill_mfu * kernels.accelerator.half,
        bandwidth=efficiency.kv_mbu * kernels.accelerator.bandwidth,
        flops_context=2 * heads * per_head,
        bytes_token=2 * heads * per_head * BF16_BYTES,
    )
    return (
        *_latent_down(kernels, shape, tp),
        kernels.product("kv up", shape.kv_rank, made, "attention"),
        core,
        _latent_output(kernels, shape, heads),
    )


def _latent_absorbed(kernels: Kernels, shape: LatentAttention, tp: int) -> tuple[Operator, ...]:
    """Return the absorbed form: queries go into the latent space, all heads read one vector.

    2 (r_kv + d_r) operations for the scores and 2 r_kv for the values per head and position.
    """
    heads = shape.heads / tp
    efficiency = kernels.efficiency(kernels.model.precision.part("attention"))
    kv = kernels.model.precision.kv
    core = Operator(
        ATTENTION,
        rate=efficiency.latent_mfu * kernels.accelerator.half,
        bandwidth=efficiency.kv_mbu * kernels.accelerator.bandwidth,
        flops_context=2 * heads * (2 * shape.kv_rank + shape.rope_dim),
        bytes_context=shape.kv_elements * kv,
    )
    return (
        *_latent_down(kernels, shape, tp),
        kernels.per_head("absorb q", heads, shape.nope_dim, shape.kv_rank),
        core,
        kernels.per_head("absorb v", heads, shape.kv_rank, shape.v_dim),
        _latent_output(kernels, shape, heads),
    )


def _latent_expanded_decode(
    kernels: Kernels, shape: LatentAttention, tp: int
) -> tuple[Operator, ...]:
    """Return the expanded form: each step makes keys and values of the whole context.

    2 r_kv H (d_n + d_v) operations per cached token before any head attends.
    """
    heads = shape.heads / tp
    efficiency = kernels.efficiency(kernels.model.precision.part("attention"))
    bandwidth = efficiency.kv_mbu * kernels.accelerator.bandwidth
    made = heads * (shape.nope_dim + shape.v_dim)
    up = Operator(
        "kv up",
        rate=kernels.fit.bf16.mfu * kernels.accelerator.half,
        bandwidth=bandwidth,
        flops_context=2 * shape.kv_rank * made,
        bytes_pass=shape.kv_rank * made * kernels.model.precision.part("attention").size,
        bytes_context=shape.kv_elements * kernels.model.precision.kv + made * BF16_BYTES,
    )
    core = Operator(
        ATTENTION,
        rate=efficiency.decode_attention_mfu * kernels.accelerator.half,
        bandwidth=bandwidth,
        flops_context=2 * heads * (shape.nope_dim + shape.rope_dim + shape.v_dim),
        bytes_context=(made + shape.rope_dim) * BF16_BYTES,
        serial=True,
    )
    out = kernels.product(
        "attention output", heads * shape.v_dim, kernels.model.hidden, "attention"
    )
    return (*_latent_down(kernels, shape, tp), up, core, out)
