"""Letters, colours and headings of a plan's picture, without matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..documents import safe
from ..errors import InputError
from ..problem import Objective, Phase

if TYPE_CHECKING:
    from ..plan import Group, Plan

BASE = {
    Phase.PREFILL: (0.0, 0.447, 0.698),
    Phase.DECODE: (0.835, 0.369, 0.0),
    Phase.MIXED: (0.0, 0.62, 0.451),
}
"""Blue, vermilion and bluish green of Okabe and Ito, for all common kinds of colour blindness."""
LIGHTEST = 0.62
"""Largest share of white in the shades of a phase."""
BRIGHT = 0.45
"""Relative luminance above which black is more legible than white."""
FORMATS = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": "archipelago"}}
"""File endings, and the metadata that would differ from run to run."""


@dataclass(frozen=True)
class Mark:
    """Letter and colour of a group in every panel."""

    letter: str
    colour: tuple[float, float, float]

    @property
    def ink(self) -> str:
        """Return black or white, for the better contrast (relative luminance)."""
        red, green, blue = self.colour
        return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > BRIGHT else "white"


def group_marks(plan: Plan) -> dict[str, Mark]:
    """Return a letter and a shade for every group; groups of a phase share its colour."""
    marks = {}
    letters = {group.name: _letter(i) for i, group in enumerate(plan.groups)}
    for phase in Phase:
        groups: list[Group] = [group for group in plan.groups if group.phase is phase]
        for i, group in enumerate(groups):
            pale = LIGHTEST * i / max(len(groups) - 1, 1)
            red, green, blue = (part + (1 - part) * pale for part in BASE[phase])
            marks[group.name] = Mark(letters[group.name], (red, green, blue))
    return marks


def _letter(index: int) -> str:
    """Return A, B ... Z, AA, AB ..."""
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else _letter(index // 26 - 1) + letter  # noqa: PLR2004


def require(path: str, option: str = "--plot") -> None:
    """Check before a long computation that a plot can be drawn.

    ``option``: the option with the path, for the message.

    Raises:
        InputError: the file's ending is unknown, its folder is missing, or matplotlib is.
    """
    file = Path(path)
    if file.suffix.lower() not in FORMATS:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(FORMATS)}")
    if not file.absolute().parent.is_dir():
        raise InputError(f"{option} {path}: its folder does not exist; create it first")
    if find_spec("matplotlib") is None:
        raise InputError(
            f"{option}: drawing needs matplotlib; install it with: "
            "pip install 'archipelago-serving[plot]'"
        )


def headline(plan: Plan) -> str:
    """Return name and throughput of a plan."""
    text = f"{safe(plan.name)}: {plan.throughput:,.1f} req/s"
    if plan.objective is Objective.THROUGHPUT:
        return text
    return f"{text} ({plan.theta:.3g} times the stated rates)"


def subline(plan: Plan) -> str:
    """Return proof and price of a plan."""
    proof = plan.certificate
    end = "" if proof.complete else f" (not final: {safe(proof.reason)})"
    best = "least possible cost" if plan.objective is Objective.COST else "best possible"
    return (
        f"within {proof.gap:.3%} of the {best}{end}, ${plan.cost_per_hour:,.2f} per hour, "
        f"{plan.island_count:,} islands"
    )
