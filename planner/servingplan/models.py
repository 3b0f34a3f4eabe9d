"""A language model in the spec: workload, latency targets, and what its islands may do."""

from typing import Literal

from pydantic import Field

from .engine import Engine
from .own import ModelConfig
from .rule import Rule, SpecObject, within
from .types import DecimalText, Label, ModelName, PrecisionName
from .workload import Workload


class Targets(SpecObject):
    """Latency targets; an absent one is not a constraint."""

    ttft_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time to first token that the plan must keep [ms]. Absent: no such target.",
    )
    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time per output token that the plan must keep [ms]. Absent: no such target.",
    )


class Model(SpecObject):
    """One language model with its workload and targets."""

    name: Label = Field(
        description="Name of the model in this plan, its routes and its islands; a DNS label of "
        "at most 63 characters.",
    )
    architecture: ModelName = Field(
        description="Model in the catalogue, for example Llama-3.1-8B or Qwen/Qwen3-32B; any name "
        "beside config. It cannot be changed: another architecture is another model.",
    )
    config: ModelConfig | None = Field(
        default=None,
        description="Published config.json of a model that the catalogue does not have. Absent: "
        "the catalogue's.",
    )
    precision: PrecisionName | None = Field(
        default=None,
        description="Number format of the weights. Absent: the format that they are published in, "
        "by the catalogue or by config.",
    )
    requests_per_second: DecimalText | None = Field(
        default=None,
        description="Request rate to serve [requests/s], a decimal string. With a rate on every "
        "model the plan maximises headroom, the multiple of these rates that it sustains.",
    )
    weight: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Share of the throughput relative to the other models, if no rates are "
        "stated; without unit.",
    )
    max_sequences: int = Field(
        default=1024,
        ge=1,
        le=65_536,
        description="Largest batch that the engine runs on one copy of the model [sequences]; vLLM "
        "calls it max_num_seqs. An island of several data-parallel copies runs as many times more.",
    )
    serving: Literal["Disaggregated", "Collocated", "Either"] = Field(
        default="Disaggregated",
        description="What islands of the model may do. Disaggregated: prefill on some islands, "
        "decode on others. Collocated: each island does both. Either: whatever serves most.",
    )
    max_utilisation: DecimalText = Field(
        default="1",
        description="Largest share of each limit of an island (time, memory, batch, network) that "
        "a plan may use, a decimal string above 0 and up to 1; below 1 keeps spare capacity on "
        "every island.",
    )
    workload: Workload = Field(
        description="Lengths of the model's requests [tokens] and the ranges they are planned in.",
    )
    slo: Targets = Field(
        default=Targets(),
        description="Latency targets of the model [ms]. A plan has no islands that miss them.",
    )
    engine: Engine = Field(
        default=Engine(),
        description="The engine of the model: how it runs, how islands change phase, and which "
        "metrics describe the traffic.",
    )
    rules = (
        Rule(
            "architecture",
            "self.architecture == oldSelf.architecture",
            None,
            "the architecture of a model cannot be changed: remove this model and add one with "
            "another name",
            reason="FieldValueForbidden",
        ),
        within(
            "requestsPerSecond",
            {">": 0.0},
            "requestsPerSecond must be larger than 0: correct it, or remove a model that gets no "
            "requests",
            optional=True,
        ),
        Rule(
            "weight",
            "self.weight == 1",
            lambda m: m.weight == 1,
            "weight has no effect beside requestsPerSecond, which already says how the throughput "
            "splits: remove one of the two",
            present=("requestsPerSecond",),
        ),
        within(
            "maxUtilisation",
            {">": 0.0, "<=": 1.0},
            "maxUtilisation is a share above 0 and up to 1, not a percentage: "
            'write "0.8" to leave a fifth of every island spare',
        ),
        Rule(
            "engine",
            "!has(self.engine.chunkTokens) || self.engine.chunkTokens >= self.maxSequences || "
            "(has(self.engine.name) && self.engine.name == 'sglang')",
            lambda m: (
                m.engine.chunk_tokens is None
                or m.engine.chunk_tokens >= m.max_sequences
                or m.engine.name == "sglang"
            ),
            "chunkTokens below maxSequences: such an engine does not start, since every sequence "
            "takes a token of a pass; raise chunkTokens, or lower maxSequences",
        ),
    )
