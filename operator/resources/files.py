"""The files that a plan names as keys of ConfigMaps, which are its user's; pure.

Such a file is a calibration, or the config.json of a model. Only its text is taken here: a planner
process reads what it says, and refuses it with place and remedy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from archipelago.planner.documents import read_json
from archipelago.planner.servingplan.own import CONFIG_KEY
from archipelago.planner.servingplan.schema import CALIBRATION_KEY

CALIBRATION = "calibration"


class FileSource(NamedTuple):
    """Name of a ConfigMap in the plan's namespace, the key there, and the field that names it."""

    config_map: str
    key: str
    field: str = CALIBRATION

    def __str__(self) -> str:
        return f"ConfigMap {self.config_map}, key {self.key}"

    def check(self, text: str) -> None:
        """Check what can be checked without a planner process.

        Raises:
            PlanFileError: a config.json is no JSON object.
        """
        if self.field != CALIBRATION:
            read_json(text).mapping()


@dataclass(frozen=True)
class FileText:
    """What was found there.

    ``text``: the last good one, empty if there is none; ``refusal``: why it is not what is there.
    """

    source: FileSource
    text: str = ""
    refusal: str = ""

    @cached_property
    def digest(self) -> str:
        """Return the hash of the text: another text is another input of the plan."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def file_sources(spec: Mapping[str, Any]) -> tuple[FileSource, ...]:
    """Return what a spec names, of which every field fits."""
    named = [(CALIBRATION, spec.get("calibration"), CALIBRATION_KEY)]
    for index, model in enumerate(spec.get("models") or ()):
        named.append((f"models[{index}].config", model.get("config"), CONFIG_KEY))
    return tuple(
        FileSource(place["configMap"], place.get("key", key), field)
        for field, place, key in named
        if place and place.get("configMap")
    )


def with_configs(spec: Mapping[str, Any], files: Mapping[FileSource, FileText]) -> dict[str, Any]:
    """Return a spec with the content of each config.json that was found, as if written inline.

    Their texts have been checked (``FileSource.check``).
    """
    texts = {s.field: f.text for s, f in files.items() if s.field != CALIBRATION and f.text}
    if not texts:
        return dict(spec)
    models = []
    for index, model in enumerate(spec["models"]):
        text = texts.get(f"models[{index}].config")
        config = {"config": {"inline": read_json(text).mapping()}} if text else {}
        models.append({**model, **config})
    return {**spec, "models": models}
