"""Number formats of weights, caches and multiplications, by part of a model."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownName

BF16_BYTES = 2.0

KV_BYTES = {"bf16": BF16_BYTES, "fp8": 1.0}
"""Bytes per element of a KV cache by its format; one scale per layer is left out."""


@dataclass(frozen=True)
class Format:
    """A format of stored weights: bytes per parameter with their scales, and operand type.

    ``compute``: type that both operands of a product have (a key of the accelerator's peaks);
    weight-only formats are unpacked and multiplied in BF16. ``whole``: whole numbers, not floats.
    """

    size: float
    compute: str = "bf16"
    whole: bool = False


BF16 = Format(BF16_BYTES)
FP32 = Format(4.0)

FP8 = Format(1.0, "fp8")
"""FP8 with a scale per tensor or per channel, which does not count."""

FP8_BLOCK = Format(1 + 4 / 128**2, "fp8_block")
"""FP8 with one FP32 scale per 128 x 128 block (DeepSeek-V3 README_WEIGHTS.md): other kernels."""

MXFP4 = Format(4.25 / 8, "fp4")
"""Blocks of 32 four-bit values share one 8-bit scale (OCP Microscaling 1.0, section 5)."""

NVFP4 = Format(4.5 / 8, "fp4")
"""Blocks of 16 four-bit values share one FP8 scale (NVIDIA modelopt, NVFP4)."""


def integer(bits: int, group: int | None) -> Format:
    """Return weight-only integers: 16 bits of scale and as many bits of zero point per group.

    AWQ and GPTQ store packed zero points of ``bits`` bits; ``group`` None: a scale per column,
    which does not count.
    """
    return Format((bits + ((16 + bits) / group if group else 0.0)) / 8, whole=True)


@dataclass(frozen=True)
class Precision:
    """How a model is stored and multiplied.

    ``linear`` and ``expert``: bytes per parameter of the matrices of attention and dense
    feed-forwards, and of the routed experts. ``compute`` and ``expert_compute``: operand type of
    their products (a key of the accelerator's peaks). ``kv``: bytes per cached element.
    ``attention``, ``shared``, ``head``: formats of the mixers, the shared experts and the output
    head if they are stored otherwise than ``linear`` (the head: than BF16). Attention itself,
    embeddings, norms and router stay in BF16, as the published checkpoints have them.
    """

    name: str
    linear: float
    expert: float
    compute: str
    expert_compute: str
    kv: float = BF16_BYTES
    attention: Format | None = None
    shared: Format | None = None
    head: Format = BF16

    @classmethod
    def of(cls, name: str, linear: Format, expert: Format) -> Precision:
        """Return the precision whose parts have these two formats."""
        return cls(name, linear.size, expert.size, linear.compute, expert.compute)

    @property
    def of_experts(self) -> Format:
        """Return the format of the routed experts."""
        return Format(self.expert, self.expert_compute)

    def part(self, name: str) -> Format:
        """Return the format of ``linear``, ``attention``, ``shared`` or ``head``."""
        if name == "head":
            return self.head
        stated: Format | None = getattr(self, name) if name != "linear" else None
        return stated or Format(self.linear, self.compute)


PRECISIONS = {
    "bf16": Precision.of("bf16", BF16, BF16),
    "fp8": Precision.of("fp8", FP8, FP8),
    # Four-bit checkpoints quantise the experts; dense models have all their matrices in FP4.
    "fp4": Precision.of("fp4", MXFP4, MXFP4),
    # Weight-only, as engines quantise on the fly: a scale per column, or per 128 rows.
    "int8": Precision.of("int8", integer(8, None), integer(8, None)),
    "int4": Precision.of("int4", integer(4, 128), integer(4, 128)),
}

FP8_BLOCKS = Precision.of("fp8", FP8_BLOCK, FP8_BLOCK)
"""``fp8_block`` in rows of the catalogue: FP8 of models that publish it with scales per block."""

MOE_FP4 = Precision.of("fp4", BF16, MXFP4)
"""gpt-oss: MXFP4 experts, BF16 elsewhere (model card)."""

MOE_INT4 = Precision.of("int4", BF16, Format((4 + 16 / 32) / 8, whole=True))
"""Kimi-K2-Thinking: symmetric INT4 experts in groups of 32, BF16 elsewhere (its config.json)."""


def named_precision(name: str, *, experts: bool) -> Precision:
    """Return the precision of that name; ``experts`` says whether the model has routed experts.

    Raises:
        UnknownName: lists the known names.
    """
    if name == FP8_BLOCK.compute:
        return FP8_BLOCKS
    if name not in PRECISIONS:
        names = ", ".join(PRECISIONS)
        raise UnknownName(f"unknown precision {name!r}; known: {names}")
    if experts and name in ("fp4", "int4"):
        return MOE_FP4 if name == "fp4" else MOE_INT4
    return PRECISIONS[name]
