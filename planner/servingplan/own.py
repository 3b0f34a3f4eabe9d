"""What a plan brings along: models and accelerators that the catalogue does not have.

A model is its published ``config.json``; an accelerator is its data sheet, or a few figures and a
relative that has the others. The administrator's catalogue has entries of the same kinds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from ..documents import ANYTHING_KEY
from .rule import Rule, SpecObject, within
from .types import (
    DATA_KEY,
    DNS_NAME,
    LABEL_VALUE,
    AcceleratorName,
    DecimalText,
    Listed,
    ModelName,
    Named,
    PrecisionName,
)

MOST_FIELDS: Final = 512
"""Fields of a config.json: published ones have at most 120."""
CONFIG_KEY: Final = "config.json"

_Figure = DecimalText | None


_Content = Annotated[
    dict[str, JsonValue],
    Field(min_length=1, max_length=MOST_FIELDS, json_schema_extra={ANYTHING_KEY: True}),
]


class ModelConfig(SpecObject):
    """The published config.json of a model: as it is, or where it is."""

    inline: _Content | None = Field(
        default=None,
        description="Content of the config.json, unchanged. A field that decides the shape of the "
        "model is understood, or refused by its name.",
    )
    config_map: Annotated[str, Field(pattern=DNS_NAME, max_length=253)] | None = Field(
        default=None,
        description="Name of a ConfigMap in the plan's namespace that has the file as a key, "
        "instead of inline. On the command line write path, or give the model's id.",
    )
    key: Annotated[str, Field(pattern=DATA_KEY, max_length=253)] = Field(
        default=CONFIG_KEY, description="Key in the ConfigMap."
    )
    rules = (
        Rule(
            "",
            "has(self.inline) != has(self.configMap)",
            lambda c: (c.inline is None) != (c.config_map is None),
            "config needs inline, the content of the config.json, or configMap, the name of a "
            "ConfigMap that has it; only one of them",
        ),
    )


class InlineConfig(SpecObject):
    """The config.json of a model of the administrator's catalogue."""

    inline: _Content = Field(description="Content of the config.json, unchanged.")


class OwnModel(SpecObject):
    """A model of the administrator's catalogue."""

    name: ModelName = Field(description="Name under which plans use it, in architecture.")
    precision: PrecisionName | None = Field(
        default=None,
        description="Number format of the weights, if the config.json does not say it.",
    )
    config: InlineConfig = Field(description="Its config.json.")


def _figure(unit: str, what: str) -> Any:  # noqa: ANN401  # what pydantic declares
    return Field(default=None, description=f"{what} [{unit}], a decimal string.")


class OwnAccelerator(SpecObject):
    """An accelerator that the catalogue does not have, or other figures for one that it has."""

    name: AcceleratorName = Field(
        description="Name under which pools use it. It comes before an equal one in the catalogue.",
    )
    like: AcceleratorName | None = Field(
        default=None,
        description="Nearest relative in the catalogue: absent figures, and the shares of the "
        "peaks that engines reach, are those of it. Such a guess gives the plan a wider interval. "
        "Absent: memory, its bandwidth and a 16-bit peak must be stated.",
    )
    memory_gibibytes: _Figure = _figure("GiB", "Memory of one GPU, as its driver reports it")
    memory_gigabytes_per_second: _Figure = _figure("GB/s", "Bandwidth of that memory")
    bf16_teraflops: _Figure = _figure("TFLOP/s", "Dense peak of BF16 products of one GPU")
    fp16_teraflops: _Figure = _figure("TFLOP/s", "Dense peak of FP16 products, if not that of BF16")
    fp8_teraflops: _Figure = _figure("TFLOP/s", "Dense peak of FP8 products; 0 if it has no units")
    fp4_teraflops: _Figure = _figure("TFLOP/s", "Dense peak of FP4 products; 0 if it has no units")
    scale_up_gigabytes_per_second: _Figure = _figure(
        "GB/s", "NVLink or the like of one GPU in each direction; 0 if it has none"
    )
    scale_up_domain: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="GPUs that reach each other over that link, or over PCIe in one host [GPUs].",
    )
    pcie_gigabytes_per_second: _Figure = _figure("GB/s", "PCIe of one GPU in each direction")
    nic_gigabytes_per_second: _Figure = _figure(
        "GB/s", "Share of one GPU in the network adapters of its node, in each direction"
    )
    product_labels: Annotated[
        Listed[
            Annotated[
                str,
                Field(
                    pattern=LABEL_VALUE,
                    min_length=1,
                    max_length=63,
                    description="Value of the label nvidia.com/gpu.product or the like.",
                ),
            ]
        ],
        Field(max_length=16),
    ] = Field(
        default=(),
        description="What its nodes call it in their product label. A pool with a nodeSelector "
        "needs at least one.",
    )
    rules = (
        Rule(
            "like",
            "has(self.like) || (has(self.memoryGibibytes) && has(self.memoryGigabytesPerSecond) "
            "&& (has(self.bf16Teraflops) || has(self.fp16Teraflops)))",
            lambda a: (
                a.like
                or (
                    a.memory_gibibytes
                    and a.memory_gigabytes_per_second
                    and (a.bf16_teraflops or a.fp16_teraflops)
                )
            ),
            "state memoryGibibytes, memoryGigabytesPerSecond and bf16Teraflops (or fp16Teraflops), "
            "or name in like the accelerator of the catalogue that it resembles most",
        ),
        *(
            within(
                field,
                {">": 0.0},
                f"{field} must be larger than 0: correct it, or remove it",
                optional=True,
            )
            for field in ("memoryGibibytes", "memoryGigabytesPerSecond")
        ),
    )


class OwnCatalogue(SpecObject):
    """The administrator's catalogue: a file for the command line, a section of the operator's."""

    accelerators: Annotated[Named[OwnAccelerator], Field(max_length=1000)] = Field(
        default=(), description="GPU types, as in spec.accelerators."
    )
    models: Annotated[Named[OwnModel], Field(max_length=1000)] = Field(
        default=(), description="Models, each with its config.json."
    )
