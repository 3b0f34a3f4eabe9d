"""The names of a ServingPlan: what the plan brings along, else the catalogue of the package.

An administrator's catalogue (``OwnCatalogue``) is not looked up: ``bring`` copies what a plan uses
of it into the plan, so that a plan and its file need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from archipelago.perfmodel.catalogue.accelerators import accelerator, from_facts
from archipelago.perfmodel.catalogue.architectures import architecture, from_config
from archipelago.perfmodel.errors import PerfModelError, UnknownName

if TYPE_CHECKING:
    from archipelago.perfmodel.catalogue.accelerators import Accelerator
    from archipelago.perfmodel.catalogue.architectures import ModelArchitecture

    from .servingplan.own import ModelConfig, OwnAccelerator, OwnCatalogue

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
