"""A plan as one picture: what stands where, and which input lengths go to whom.

Left: every pool as a bar, its islands as boxes as wide as their GPUs. Right, per model: how often
each input length occurs, and which group prefills and decodes it. Letters name the groups in all
panels and in the key. Equal plans give equal files: no date, no random ids.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.planner.errors import InputError
from archipelago.planner.plotmarks import group_marks
from archipelago.planner.problem import Objective
from archipelago.planner.text import safe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from archipelago.planner.plan import Plan
    from archipelago.planner.problem import PlanningProblem, Pool

FORMATS = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": "archipelago"}}
"""File endings that can be drawn, and metadata that would differ from run to run."""
STYLE: Any = {
    "svg.hashsalt": "archipelago",
    "svg.fonttype": "none",  # texts stay texts: they can be searched and read aloud
    "text.parse_math": False,  # $4.00 is money
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH, ROW, MODEL_HEIGHT, KEY_LINE, AXIS = 15.0, 0.62, 4.6, 0.2, 0.6
"""Inches: the figure, one pool, the panels of one model, one line of the key, an axis."""
KEY_LINES = 40
"""Groups that the key lists; the table on the terminal has all."""


def require(path: str, option: str = "--plot") -> None:
    """Find out before a long computation whether a plot can be drawn.

    ``option`` is what the user gave the path with, for the message.

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
            f"{option}: drawing needs matplotlib; install it with: pip install 'archipelago[plot]'"
        )


def draw(problem: PlanningProblem, plan: Plan, path: str) -> None:
    """Draw a plan into a PNG or SVG file.

    Raises:
        InputError: as ``require``.
        OSError: the file cannot be written.
    """
    require(path)
    import matplotlib as mpl  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        picture = figure(problem, plan)
        picture.savefig(path, metadata=FORMATS[Path(path).suffix.lower()], dpi=110)


def figure(problem: PlanningProblem, plan: Plan) -> Figure:
    """The picture itself, drawn inside ``rc_context(STYLE)``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    from archipelago.planner import plotparts  # noqa: PLC0415  # needs matplotlib

    marks = group_marks(plan)
    shown = plan.groups[:KEY_LINES]
    pools = ROW * len(problem.pools) + 0.3
    key = KEY_LINE * (len(shown) + 2) + 0.4
    height = max(pools + AXIS + key, MODEL_HEIGHT * len(problem.models)) + 1.1
    picture = Figure(figsize=(WIDTH, height), facecolor="white")
    FigureCanvasAgg(picture)
    top = 1 - 1.0 / height
    outer = picture.add_gridspec(
        1,
        2,
        width_ratios=(1.05, 1),
        left=0.075,
        right=0.968,
        wspace=0.15,
        top=top,
        bottom=0.5 / height,
    )
    spare = max(height - 1.1 - pools - AXIS - key, 0.01)
    left = outer[0].subgridspec(4, 1, height_ratios=(pools, AXIS, key, spare), hspace=0.0)
    right = outer[1].subgridspec(len(problem.models), 1, hspace=0.32)
    picture.text(0.012, 1 - 0.3 / height, headline(plan), fontsize=13, weight="bold", va="center")
    picture.text(0.012, 1 - 0.58 / height, subline(plan), fontsize=10, color="0.3", va="center")
    plotparts.pools(picture.add_subplot(left[0]), problem, plan, marks)
    plotparts.key(picture.add_subplot(left[2]), plan, shown, marks)
    for index, model in enumerate(problem.models):
        panels = right[index].subgridspec(3, 1, height_ratios=(0.55, 1, 1), hspace=0.16)
        axes: list[Axes] = [picture.add_subplot(panels[row]) for row in range(3)]
        plotparts.lengths(axes, model.name, plan, marks)
    return picture


def headline(plan: Plan) -> str:
    """Name and what the plan reaches."""
    reach = f"{plan.throughput:,.1f} req/s"
    if plan.objective is not Objective.THROUGHPUT:
        reach += f" ({plan.theta:.3g} times the stated rates)"
    return f"{safe(plan.name)}: {reach}"


def subline(plan: Plan) -> str:
    """Proof and price."""
    proof = plan.certificate
    end = "" if proof.complete else f" (not final: {safe(proof.reason)})"
    best = "least possible cost" if plan.objective is Objective.COST else "best possible"
    return (
        f"within {proof.gap:.3%} of the {best}{end}, ${plan.cost_per_hour:,.2f} per hour, "
        f"{len(plan.islands):,} islands"
    )


def used_of(pool: Pool, plan: Plan) -> str:
    """``12 of 16 GPUs``, and how many may be rented and are."""
    text = f"{plan.used(pool.name):,} of {pool.count:,} GPUs"
    if pool.available == pool.count:
        return text
    rented = dict(plan.rented).get(pool.name, 0)
    return f"{text}, {rented:,} of {pool.available - pool.count:,} rented"
