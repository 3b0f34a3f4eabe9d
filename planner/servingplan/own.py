"""What a plan brings along: models and accelerators that the catalogue does not have.

A model is its published ``config.json``; an accelerator is its data sheet, or a few figures and a
relative that has the others. The administrator's catalogue has entries of the same kinds. It is not
looked up: ``brought_spec`` copies what a plan uses of it into the plan, so that a plan and its file
need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, JsonValue

from archipelago.perfmodel.catalogue.accelerators import accelerator, from_facts
from archipelago.perfmodel.catalogue.architectures import architecture, from_config
from archipelago.perfmodel.errors import PerfModelError, UnknownName

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

if TYPE_CHECKING:
    from archipelago.perfmodel.catalogue.accelerators import Accelerator
    from archipelago.perfmodel.catalogue.architectures import ModelArchitecture

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


_SI = {
    "memory_gibibytes": ("memory", float(1 << 30)),
    "memory_gigabytes_per_second": ("bandwidth", 1e9),
    "bf16_teraflops": ("bf16", 1e12),
    "fp16_teraflops": ("fp16", 1e12),
    "fp8_teraflops": ("fp8", 1e12),
    "fp4_teraflops": ("fp4", 1e12),
    "scale_up_gigabytes_per_second": ("scale_up", 1e9),
    "pcie_gigabytes_per_second": ("pcie", 1e9),
    "nic_gigabytes_per_second": ("nic", 1e9),
}
"""Field of ``spec.accelerators[]`` -> field of ``Accelerator``, and its unit in SI units."""


def accelerator_of(name: str, own: Iterable[OwnAccelerator]) -> Accelerator:
    """Return the accelerator that a plan means by a name.

    Raises:
        UnknownName: neither the plan nor the catalogue has it.
        PerfModelError: the plan's own entry lacks a figure.
    """
    stated = next((each for each in own if each.name.casefold() == name.casefold()), None)
    if stated is None:
        try:
            return accelerator(name)
        except UnknownName as error:
            raise UnknownName(f"{error}; a GPU of your own is an entry of accelerators") from None
    figures = {
        field: float(value) * unit
        for key, (field, unit) in _SI.items()
        if (value := getattr(stated, key)) is not None
    }
    if stated.scale_up_domain is not None:
        figures["domain"] = stated.scale_up_domain
    made = from_facts(stated.name, {k: v for k, v in figures.items() if v > 0}, stated.like)
    lacking: dict[str, Any] = dict.fromkeys((key for key, v in figures.items() if v == 0), None)
    if {"bf16", "fp16"} <= lacking.keys() or ("bf16" in lacking and made.fp16 is None):
        raise PerfModelError(
            f"accelerator {name}: both 16-bit peaks are 0; state bf16Teraflops or fp16Teraflops"
        )
    return replace(made, **lacking)


def architecture_of(
    name: str, config: ModelConfig | None, precision: str | None
) -> ModelArchitecture:
    """Return the architecture that a plan means by a model.

    Args:
        name: ``architecture`` of the model.
        config: Its config.json; None: that of the catalogue.
        precision: Number format of the weights; None: the published one.

    Raises:
        UnknownName: there is no ``config``, and the catalogue does not have the model.
        PerfModelError: a field of the config.json is missing or not understood.
    """
    if config is None:
        try:
            return architecture(name, precision)
        except UnknownName as error:
            remedy = "give the published config.json of any other in config"
            raise UnknownName(f"{error}; {remedy}") from None
    if config.inline is None:
        raise PerfModelError(
            f"only the operator reads ConfigMap {config.config_map}: to plan from a file, write "
            "the content of the config.json in config.inline, or its path in config.path"
        )
    return from_config(config.inline, name, precision)


def bring(resource: Mapping[str, Any], catalogue: OwnCatalogue) -> Mapping[str, Any]:
    """Return a resource with what it uses of an administrator's catalogue as entries of its own.

    An entry that the plan has itself comes first. What is no ServingPlan is returned as it is.
    """
    spec = resource.get("spec")
    if not isinstance(spec, Mapping):
        return resource
    return {**resource, "spec": brought_spec(spec, catalogue)}


def brought_spec(spec: Mapping[str, Any], catalogue: OwnCatalogue) -> dict[str, Any]:
    """Return a spec as ``bring`` returns a resource."""
    models = {each.name.casefold(): each for each in catalogue.models}
    gpus = {each.name.casefold(): each for each in catalogue.accelerators}
    listed, own = _mappings(spec.get("models")), _mappings(spec.get("accelerators"))
    named = {_folded(each.get("name")) for each in own}
    used = {_folded(pool.get("accelerator")) for pool in _mappings(spec.get("pools"))}
    more = [gpus[name] for name in sorted(used & gpus.keys() - named)]
    changed = dict(spec)
    if more:
        entries = [each.model_dump(by_alias=True, exclude_none=True, mode="json") for each in more]
        changed["accelerators"] = [*(spec.get("accelerators") or ()), *entries]
    known = [models.get(_folded(model.get("architecture"))) for model in listed]
    if any(known) and len(listed) == len(spec["models"]):
        changed["models"] = [
            _with_config(model, row) if row and not model.get("config") else model
            for model, row in zip(listed, known, strict=True)
        ]
    return changed


def _with_config(model: Mapping[str, Any], row: Any) -> dict[str, Any]:  # noqa: ANN401
    precision = {"precision": row.precision} if row.precision else {}
    return {**precision, **model, "config": {"inline": row.config.inline}}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _folded(name: object) -> str:
    return name.casefold() if isinstance(name, str) else ""
