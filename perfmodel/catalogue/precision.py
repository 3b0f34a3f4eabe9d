"""Number formats of weights, caches and multiplications."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownName

BF16_BYTES = 2.0

KV_BYTES = {"bf16": BF16_BYTES, "fp8": 1.0}
"""Bytes per element of a KV cache by its format; one scale per layer is left out."""

_MXFP4_BYTES = 4.25 / 8
"""MXFP4: blocks of 32 four-bit values share one 8-bit scale (OCP Microscaling 1.0, section 5)."""

_FP8_BLOCK_BYTES = 1 + 4 / 128**2
"""FP8 with one FP32 scale per 128 x 128 block (DeepSeek-V3 README_WEIGHTS.md)."""


@dataclass(frozen=True)
class Precision:
    """How a model is stored and multiplied.

    ``linear`` and ``expert``: bytes per parameter of the dense matrices and of the routed
    experts. ``compute`` and ``expert_compute``: operand type of their products (a key of the
    accelerator's peaks). ``kv``: bytes per cached element. Attention itself, embeddings, norms,
    router and output head stay in BF16, as the published checkpoints have them.
    """

    name: str
    linear: float
    expert: float
    compute: str
    expert_compute: str
    kv: float = BF16_BYTES


PRECISIONS = {
    "bf16": Precision("bf16", BF16_BYTES, BF16_BYTES, "bf16", "bf16"),
    "fp8": Precision("fp8", _FP8_BLOCK_BYTES, _FP8_BLOCK_BYTES, "fp8", "fp8"),
    # Four-bit checkpoints quantise the experts; dense models have all their matrices in FP4.
    "fp4": Precision("fp4", _MXFP4_BYTES, _MXFP4_BYTES, "fp4", "fp4"),
}

MOE_FP4 = Precision("fp4", BF16_BYTES, _MXFP4_BYTES, "bf16", "fp4")
"""gpt-oss: MXFP4 experts, BF16 elsewhere (model card)."""


def named_precision(name: str, *, experts: bool) -> Precision:
    """Return the precision of that name; ``experts`` says whether the model has routed experts.

    Raises:
        UnknownName: lists the known names.
    """
    if name not in PRECISIONS:
        names = ", ".join(PRECISIONS)
        raise UnknownName(f"unknown precision {name!r}; known: {names}")
    return MOE_FP4 if experts and name == "fp4" else PRECISIONS[name]
