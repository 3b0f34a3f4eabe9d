"""The ConfigMap with the calibration file that a plan names, which is its user's; pure.

Only its text is taken: a planner process reads the file, and refuses it with place and remedy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


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
