"""The ConfigMap with the calibration file that a plan names, which is its user's; pure.

Only its text is taken: a planner process reads the file, and refuses it with place and remedy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from archipelago.planner.documents import Node
from archipelago.planner.errors import PlanFileError

from .reading import Body

CALIBRATION_BYTES: Final = 256 * 1024
"""Largest file that is taken [B]; one of ten engines has a tenth of it."""


class CalibrationSource(NamedTuple):
    """Name of a ConfigMap in the plan's namespace, and the key there."""

    config_map: str
    key: str

    def __str__(self) -> str:
        return f"ConfigMap {self.config_map}, key {self.key}"


@dataclass(frozen=True)
class CalibrationText:
    """What was found there.

    ``text``: the last good one, empty if there is none; ``refusal``: why it is not what is there.
    """

    source: CalibrationSource
    text: str = ""
    refusal: str = ""

    @cached_property
    def digest(self) -> str:
        """Return the hash of the text: another text is another input of the plan."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def calibration_source(spec: Mapping[str, Any]) -> CalibrationSource | None:
    """Return what a spec names, of which every field fits; None if it names nothing."""
    named = spec.get("calibration")
    if not named or "configMap" not in named:
        return None
    return CalibrationSource(named["configMap"], named.get("key", "calibration.yaml"))


def read_calibration_text(body: Body, key: str) -> str:
    """Return the text under a key of a ConfigMap.

    Raises:
        PlanFileError: there is none, or it is too large; the message has the remedy.
    """
    data = Node(body).optional_mapping("data")
    text = data.get(key)
    if not isinstance(text, str) or not text.strip():
        found = ", ".join(sorted(map(str, data))[:5]) or "none"
        raise PlanFileError(
            f"it has no text there (keys: {found}): name one of them in spec.calibration.key, or "
            f"make it with `kubectl create configmap NAME --from-file={key}`"
        )
    if len(text) > CALIBRATION_BYTES:
        raise PlanFileError(
            f"{len(text)} characters, at most {CALIBRATION_BYTES} are read: keep the calibrations "
            "of this plan's accelerators"
        )
    return text
