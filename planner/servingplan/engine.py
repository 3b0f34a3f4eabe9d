"""The engine of a model in the spec: what it is, how it is started, and what is seen of it.

Fields that change times or memory have no default here but say which one a plan assumes if they are
absent: so it is known what was stated.
"""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from ..started import started_text
from .rule import Rule, SpecObject, within
from .types import MAX_TOKENS, SERVED_NAME, VERSION, DecimalText, Listed

MOST_GPUS = 1024
"""Largest degree that can be pinned; islands of the default sizes have at most 128 GPUs."""


def _share(field: str, what: str, *, optional: bool = True) -> Rule:
    return within(
        field,
        {"<": 1.0},
        f'{field} is {what}, below 1 and not a percentage: write "0.3" for 30 %',
        optional=optional,
    )


class PrefixHit(SpecObject):
    """The share of prompts of some lengths whose cache is there already."""

    up_to_tokens: int = Field(
        ge=1,
        le=MAX_TOKENS,
        description="Longest prompt that the share is of [tokens]; the next entry begins above it.",
    )
    share: DecimalText = Field(
        description="Share of these prompts' tokens that the prefix cache has, a decimal string "
        "without unit, from 0 to below 1."
    )
    rules = (_share("share", "the cached share of a prompt", optional=False),)


class Speculation(SpecObject):
    """Speculative decoding: a draft proposes tokens, which one step of the model checks."""

    draft_tokens: int = Field(
        ge=1, le=64, description="Tokens that are drafted in a step for each sequence [tokens]."
    )
    acceptance: DecimalText = Field(
        description="Probability that a drafted token is accepted if those before it were, a "
        "decimal string without unit, from 0 to 1; engines report it (vLLM: accepted over drafted "
        "tokens).",
    )
    draft_cost: DecimalText = Field(
        default="0",
        description="Time of drafting one token over the time of one step of the model, a decimal "
        "string without unit; 0 for n-grams, 0.05 or so for a layer of the model itself.",
    )
    rules = (
        within(
            "acceptance",
            {"<=": 1.0},
            'acceptance is a probability from 0 to 1, not a percentage: write "0.7" for 70 %',
        ),
    )


class Degrees(SpecObject):
    """Pinned degrees of parallelism of the model's islands; an absent one is planned."""

    tensor: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="Degree of tensor parallelism [GPUs]. Absent: planned.",
    )
    pipeline: int | None = Field(
        default=None, ge=1, le=MOST_GPUS, description="Pipeline [stages]. Absent: planned."
    )
    data: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="Data-parallel copies of the attention in an island [copies]. Absent: planned.",
    )
    expert: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="GPUs that the experts of a stage are spread over [GPUs]: 1 (each GPU has a "
        "slice of every expert), or tensor times data. Absent: planned.",
    )
    rules = (
        Rule(
            "expert",
            "self.expert == 1 || self.expert == self.tensor * self.data",
            lambda d: d.expert in (1, d.tensor * d.data),
            "expert is 1, or all GPUs of a stage, tensor times data: correct one of the three, or "
            "leave one out",
            present=("tensor", "data", "expert"),
        ),
    )


class Engine(SpecObject):
    """The engine of a model: how it runs, how islands change phase, which metrics it has."""

    name: Literal["vllm", "sglang", "tensorrt-llm"] | None = Field(
        default=None,
        description="The engine, which picks efficiencies, the calibrations that apply, and the "
        "flags of the pods. Absent: times are the middle of engines, any calibration applies, and "
        "flags follow metrics.",
    )
    version: Annotated[str, Field(pattern=VERSION, max_length=63)] | None = Field(
        default=None,
        description="Version of the engine, as calibrations name it. Absent: any.",
    )
    kv_dtype: Literal["bf16", "fp8"] | None = Field(
        default=None,
        description="Number format of the KV cache: 2 bytes or 1 byte an element. Absent: bf16.",
    )
    memory_share: DecimalText | None = Field(
        default=None,
        description="Share of a GPU's memory that the engine takes, a decimal string without unit "
        "(vLLM: gpu_memory_utilization, SGLang: mem_fraction_static). Absent: 0.9.",
    )
    chunk_tokens: int | None = Field(
        default=None,
        ge=16,
        le=MAX_TOKENS,
        description="Most tokens of prompts in one pass [tokens] (vLLM: max_num_batched_tokens, "
        "SGLang: chunked_prefill_size). Absent: 8192.",
    )
    prefix_hit_share: DecimalText | None = Field(
        default=None,
        description="Share of a prompt's tokens that the prefix cache of a prefill island has "
        "already, a decimal string without unit, from 0 to below 1. KV memory and transfers do not "
        "shrink by it. Absent: 0.",
    )
    prefix_hit_shares: Annotated[Listed[PrefixHit], Field(max_length=16)] = Field(
        default=(),
        description="The same by length of the prompt, in ascending order, in place of "
        "prefixHitShare, which remains for longer prompts. A longer prompt is never planned with "
        "less to compute than a shorter one.",
    )
    speculation: Speculation | None = Field(
        default=None,
        description="Speculative decoding. Absent: none, every step makes one token per sequence.",
    )
    transfer_dtype: Literal["bf16", "int8", "int4"] | None = Field(
        default=None,
        description="Number format of the KV cache on the wire from prefill to decode, if the "
        "connector between the islands compresses it: 16, 8 or 4 bits an element, and 4 bytes of "
        "scales for each 32 elements of int8 and int4. It describes the connector; no argument of "
        "an engine sets it. Nothing is sent wider than it is stored. Absent: as it is stored.",
    )
    attention_data_parallel: Literal["Allowed", "Never", "Always"] = Field(
        default="Allowed",
        description="Whether islands may have several data-parallel copies of the attention beside "
        "experts that are spread over all their GPUs. Never: no island has them. Always: each has.",
    )
    two_batch_overlap: bool | None = Field(
        default=None,
        description="Whether islands whose experts are spread over data-parallel copies run two "
        "batches beside each other, so that one computes while the other's tokens travel to their "
        "experts (vLLM's dual batch overlap, SGLang's two-batch overlap). Others run one. Absent: "
        "one everywhere.",
    )
    parallelism: Degrees | None = Field(
        default=None,
        description="Degrees that every island of the model has. Absent: all are planned.",
    )
    role_switch: Literal["Online", "Restart", "None"] = Field(
        default="Restart",
        description="How an island switches between prefill and decode. "
        "Online: the engine switches while it runs. Restart: its pods are restarted. None: "
        "islands never switch.",
    )
    metrics: Literal["vllm", "sglang", "dynamo", "llm-d"] = Field(
        default="vllm",
        description="Source of the metrics of the model's traffic: the engine vllm or sglang, or "
        "the router dynamo or llm-d. No effect without replanning.source.",
    )
    served_name: Annotated[str, Field(pattern=SERVED_NAME, max_length=253)] | None = Field(
        default=None,
        description="Name of the model in these metrics (their label model_name), as the engine "
        "serves it. Absent: whatever the model's islands report.",
    )
    rules = (
        Rule(
            "version",
            "has(self.name)",
            lambda e: e.name is not None,
            "a version is one of an engine: state its name beside it",
            present=("version",),
        ),
        Rule(
            "metrics",
            "self.name == self.metrics || !(self.metrics in ['vllm', 'sglang']) || "
            "self.name == 'tensorrt-llm'",
            lambda e: e.name in (e.metrics, "tensorrt-llm") or e.metrics in ("dynamo", "llm-d"),
            "the metrics are those of the engine or of a router: set metrics to the engine's name, "
            "to dynamo or to llm-d",
            present=("name",),
        ),
        within(
            "memoryShare",
            {">": 0.0, "<=": 1.0},
            "memoryShare is a share above 0 and up to 1, not a percentage: "
            'write "0.9" for 90 % of the memory',
            optional=True,
        ),
        _share("prefixHitShare", "the cached share of a prompt"),
        Rule(
            "prefixHitShares",
            "self.prefixHitShares.all(i, h, i == 0 || "
            "self.prefixHitShares[i - 1].upToTokens < h.upToTokens)",
            lambda e: all(
                a.up_to_tokens < b.up_to_tokens for a, b in pairwise(e.prefix_hit_shares)
            ),
            "prefixHitShares are in ascending order of upToTokens: sort them, and keep one of each "
            "length",
        ),
        Rule(
            "parallelism",
            "!has(self.parallelism.data) || self.attentionDataParallel == 'Allowed' || "
            "(self.attentionDataParallel == 'Always') == (self.parallelism.data > 1)",
            lambda e: (
                e.parallelism.data is None
                or e.attention_data_parallel == "Allowed"
                or (e.attention_data_parallel == "Always") == (e.parallelism.data > 1)
            ),
            "parallelism.data contradicts attentionDataParallel: remove one of the two",
            present=("parallelism",),
        ),
    )

    @property
    def stated(self) -> frozenset[str]:
        """Return the fields of the API that the spec states and that times or memory depend on."""
        names = (
            "kv_dtype",
            "memory_share",
            "chunk_tokens",
            "prefix_hit_share",
            "speculation",
            "transfer_dtype",
            "two_batch_overlap",
        )
        fields = type(self).model_fields
        found = {str(fields[name].alias) for name in names if getattr(self, name) is not None}
        return frozenset(found | ({"prefixHitShare"} if self.prefix_hit_shares else set()))

    @property
    def started(self) -> str:
        """Return what the spec states of how the engine is started; empty if nothing."""
        hits = [self.prefix_hit_share or "0", *(h.share for h in self.prefix_hit_shares)]
        share = self.memory_share and f"{float(self.memory_share):.6f}".rstrip("0").rstrip(".")
        return started_text(
            {
                "name": self.name,
                "kvDtype": self.kv_dtype,
                "memoryShare": share,
                "chunkTokens": self.chunk_tokens,
                "prefixCaching": "on" if any(float(hit) > 0 for hit in hits) else None,
                "draftTokens": self.speculation.draft_tokens if self.speculation else None,
                "twoBatchOverlap": "on" if self.two_batch_overlap else None,
            }
        )
