"""What the command line brings into a ServingPlan: files, the local model cache, a catalogue.

A cluster has none of these, so their content is written into the plan: a plan file needs no other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from archipelago.perfmodel.catalogue.architectures import (
    ModelArchitecture,
    architecture,
    from_config,
)
from archipelago.perfmodel.errors import UnknownName

from ...documents import Document, brief, read_json
from ...errors import InputError, SpecError
from ...servingplan import KIND, ServingPlanResource, ServingPlanSpec, load_resource
from ...servingplan.errors import explain, path_of
from ...servingplan.own import CONFIG_KEY, InlineConfig, OwnCatalogue, OwnModel, bring
from ...servingplan.rule import broken_rules
from .files import STDIN, errors_of, parse_document, read_text, warn

QUANTISATION_KEY: Final = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt writes the number formats if the config.json does not have them."""


def read_resource(text: str, path: str, catalogue: str | None) -> ServingPlanResource:
    """Return the ServingPlan of a text with everything that it refers to on this machine.

    Args:
        text: YAML or JSON.
        path: The file that it stands in, or ``-`` for standard input.
        catalogue: File with an administrator's catalogue; None without one.

    Raises:
        SpecError: it breaks a rule.
        InputError: a file cannot be read, or is not what it should be.
    """
    folder = Path() if path == STDIN else Path(path).parent
    own = None if catalogue is None else read_catalogue(catalogue)

    def change(body: Mapping[str, Any]) -> Mapping[str, Any]:
        body = _with_models(body, lambda model: _from_path(model, folder))
        body = body if own is None else bring(body, own)
        return _with_models(body, _from_cache)

    return load_resource(text, change)


def read_catalogue(path: str) -> OwnCatalogue:
    """Return a catalogue of own entries: a file of its own, the operator's, or a ServingPlan.

    Raises:
        InputError: the file cannot be read; the message names the place.
        SpecError: an entry breaks a rule.
    """
    text = read_text(path)
    document = parse_document(text, path)
    if document.get("kind") == KIND:
        try:
            return _entries(read_resource(text, path, None).spec)
        except SpecError as error:
            raise _in_file(path, error.problems) from None
    section = document.get("catalogue", document)
    if not isinstance(section, Mapping):
        raise InputError(f"{path}: catalogue: {brief(section)} is not a mapping of entries")
    document = dict(section)
    if isinstance(models := document.get("models"), list):
        folder = Path(path).parent
        document["models"] = [
            _from_path(m, folder) if isinstance(m, Mapping) else m for m in models
        ]
    try:
        own = OwnCatalogue.model_validate(document)
    except ValidationError as error:
        problems = [
            (path_of(each["loc"]), explain(each, "", OwnCatalogue))
            for each in error.errors(include_url=False)
        ]
    else:
        problems = [(path_of(place), remedy) for place, remedy in broken_rules(own, ())]
    if problems:
        raise _in_file(path, problems)
    return own


def _in_file(path: str, problems: Iterable[tuple[str, str]]) -> SpecError:
    return SpecError([(f"{path}: {place}", remedy) for place, remedy in problems])


def _entries(spec: ServingPlanSpec) -> OwnCatalogue:
    """Return the entries that a plan has itself; of models of one architecture the first."""
    models = {
        model.architecture.casefold(): OwnModel(
            name=model.architecture,
            precision=model.precision,
            config=InlineConfig(inline=model.config.inline),
        )
        for model in reversed(spec.models)
        if model.config is not None and model.config.inline is not None
    }
    return OwnCatalogue(accelerators=spec.accelerators, models=tuple(models.values()))


def read_config(path: Path) -> Document:
    """Return a config.json, with the number formats that stand in a file beside it.

    Raises:
        InputError: a file cannot be read.
        PlanFileError: one is not JSON; the message names it and the place.
    """
    config = _read_json(path)
    beside = path.parent / QUANTISATION_KEY
    if "quantization_config" not in config and beside.is_file():
        config["quantization"] = _read_json(beside).get("quantization")
    return config


def own_model(place: str) -> ModelArchitecture:
    """Return a model by the path of its config.json, its name or identifier.

    Raises:
        UnknownName: neither the catalogue nor the local model cache has it, and it is no file.
        PerfModelError: a field of the config.json is not understood.
    """
    if Path(place).is_file():
        return from_config(read_config(Path(place)), place)
    return named_model(place)


def named_model(
    name: str, precision: str | None = None, own: Iterable[OwnModel] = ()
) -> ModelArchitecture:
    """Return the model that a plan means by a name: one's own, the catalogue's, or a cached one.

    Raises:
        UnknownName: none has it, or there is no such precision.
        PerfModelError: a field of its config.json is not understood.
    """
    for each in own:
        if each.name.casefold() == name.casefold():
            return from_config(each.config.inline, each.name, precision or each.precision)
    try:
        return architecture(name, precision)
    except UnknownName:
        if (config := cached_config(name)) is None:
            raise
    return from_config(config, name, precision)


def cached_config(identifier: str) -> Document | None:
    """Return the config.json of a model in the local Hugging Face cache; None if it is not there.

    The layout is that of the library huggingface_hub: ``models--OWNER--NAME/refs/main`` names the
    folder of ``snapshots`` with the newest revision.
    """
    owner, _, name = identifier.partition("/")
    if not name:
        return None
    repository = _hub_cache() / f"models--{owner}--{name}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    config = repository / "snapshots" / revision / CONFIG_KEY
    return read_config(config) if config.is_file() else None


def _hub_cache() -> Path:
    """Return the folder of the cache, by the variables that huggingface_hub reads."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def _read_json(path: Path) -> Document:
    with errors_of(str(path)):
        return dict(read_json(read_text(str(path))).mapping())


def _with_models(
    body: Mapping[str, Any], change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return a resource with each model changed; what is no ServingPlan stays as it is."""
    spec = body.get("spec")
    models = spec.get("models") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(models, list):
        return body
    changed = [change(model) if isinstance(model, Mapping) else model for model in models]
    return {**body, "spec": {**spec, "models": changed}}


def _from_path(model: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return the model with the config.json that ``config.path`` names, relative to its file."""
    config = model.get("config")
    if not isinstance(config, Mapping) or not isinstance(path := config.get("path"), str):
        return model
    rest = {key: value for key, value in config.items() if key != "path"}
    return {**model, "config": {**rest, "inline": read_config(folder / path)}}


def _from_cache(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the model with its config.json of the local cache, if only that has it."""
    identifier = model.get("architecture")
    if not isinstance(identifier, str) or model.get("config") is not None:
        return model
    try:
        architecture(identifier)
    except UnknownName:
        config = cached_config(identifier)
    else:
        return model
    if config is None:
        return model
    warn(f"{identifier}: not in the catalogue; its config.json of the local model cache is used")
    return {**model, "config": {"inline": config}}
