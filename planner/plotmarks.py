"""How a group is named and coloured in every panel of a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipelago.planner.problem import Phase

if TYPE_CHECKING:
    from archipelago.planner.plan import Group, Plan

BASE = {
    Phase.PREFILL: (0.0, 0.447, 0.698),
    Phase.DECODE: (0.835, 0.369, 0.0),
    Phase.MIXED: (0.0, 0.62, 0.451),
}
"""Blue, vermilion and bluish green of Okabe and Ito: told apart with every common colour
blindness."""
LIGHTEST = 0.62
"""How far towards white the shades of one phase's groups go."""
BRIGHT = 0.45
"""Relative luminance from which on black reads better than white."""


@dataclass(frozen=True)
class Mark:
    """How a group appears in every panel."""

    letter: str
    colour: tuple[float, float, float]

    @property
    def ink(self) -> str:
        """Black or white, whichever reads better on the colour (relative luminance)."""
        red, green, blue = self.colour
        return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > BRIGHT else "white"


def group_marks(plan: Plan) -> dict[str, Mark]:
    """A letter and a shade for every group; shades run within the colour of the phase."""
    marks = {}
    letters = {group.name: _letter(i) for i, group in enumerate(plan.groups)}
    for phase in Phase:
        mine: list[Group] = [group for group in plan.groups if group.phase is phase]
        for i, group in enumerate(mine):
            pale = LIGHTEST * i / max(len(mine) - 1, 1)
            red, green, blue = (part + (1 - part) * pale for part in BASE[phase])
            marks[group.name] = Mark(letters[group.name], (red, green, blue))
    return marks


def _letter(index: int) -> str:
    """A, B ... Z, AA, AB ..."""
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _letter(index // 26 - 1) + letter  # noqa: PLR2004
