"""A plan as one picture: which islands use which GPUs, and which input lengths they serve.

Left: every pool as a bar, its islands as boxes as wide as their GPUs. Right, per model: how often
each input length occurs, and which group prefills and decodes it. Letters name the groups in all
panels and in the key. Equal plans give equal files: no date, no random ids. Imports matplotlib, so
it is imported only to draw.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from ..documents import safe
from ..plan import MILLION, Group, Plan, Route
from ..problem import DEFAULT_CLASS, STAGES, Phase, PlanningProblem
from .plot_marks import BASE, FORMATS, Mark, group_marks, headline, require, subline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from archipelago.perfmodel.model import FloatArray


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
SEPARATE = 100
"""Islands of a plan up to which each one has its own box; beyond, a group is one box."""
BAR = 0.56
"""Height of a pool's bar, where pools are 1 apart."""
MARGIN = 4
"""Pixels between a text and the borders of its box."""
ISLAND: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.8}
UNUSED: dict[str, Any] = {
    "facecolor": "0.93",
    "edgecolor": "0.75",
    "hatch": "////",
    "linewidth": 0.5,
}
RENTABLE: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.75", "linewidth": 0.5}
SIDES = {Phase.PREFILL: "prefilled by", Phase.DECODE: "decoded by"}
COLUMNS = (0.0, 0.045, 0.13, 0.37, 0.52, 0.785, 0.81)
"""Where the columns of the key stand, as shares of its width; numbers end there."""
NUMBERS = 5
"""Index of the column of numbers."""
LONGEST_CELL = 26
NARROW = 0.01
"""Width of a range, as a share of the panel, below which it gets no border."""
TALL, WIDE = 0.16, 0.03
"""Least height and width, as a share of the panel, of an area that carries a letter."""


def draw(problem: PlanningProblem, plan: Plan, path: str) -> None:
    """Draw a plan into a PNG or SVG file.

    Raises:
        InputError: as ``require``.
        OSError: the file cannot be written.
    """
    require(path)
    with mpl.rc_context(STYLE):
        picture = figure(problem, plan)
        picture.savefig(path, metadata=FORMATS[Path(path).suffix.lower()], dpi=110)


def figure(problem: PlanningProblem, plan: Plan) -> Figure:
    """Return the picture itself, drawn inside ``rc_context(STYLE)``."""
    marks = group_marks(plan)
    shown = plan.groups[:KEY_LINES]
    pools = ROW * len(problem.pools) + 0.3
    key = KEY_LINE * (len(shown) + 2) + 0.4
    height = max(pools + AXIS + key, MODEL_HEIGHT * len(problem.models)) + 1.1
    picture = Figure(figsize=(WIDTH, height), facecolor="white")
    FigureCanvasAgg(picture)
    edges = {"left": 0.075, "right": 0.968, "top": 1 - 1.0 / height, "bottom": 0.5 / height}
    outer = picture.add_gridspec(1, 2, width_ratios=(1.05, 1), wspace=0.15, **edges)
    spare = max(height - 1.1 - pools - AXIS - key, 0.01)
    left = outer[0].subgridspec(4, 1, height_ratios=(pools, AXIS, key, spare), hspace=0.0)
    right = outer[1].subgridspec(len(problem.models), 1, hspace=0.32)
    picture.text(0.012, 1 - 0.3 / height, headline(plan), fontsize=13, weight="bold", va="center")
    picture.text(0.012, 1 - 0.58 / height, subline(plan), fontsize=10, color="0.3", va="center")
    draw_pools(picture.add_subplot(left[0]), problem, plan, marks)
    draw_key(picture.add_subplot(left[2]), plan, shown, marks)
    for index, model in enumerate(problem.models):
        panels = right[index].subgridspec(3, 1, height_ratios=(0.55, 1, 1), hspace=0.16)
        axes: list[Axes] = [picture.add_subplot(panels[row]) for row in range(3)]
        draw_lengths(axes, model.name, plan, marks)
    return picture


def draw_pools(ax: Axes, problem: PlanningProblem, plan: Plan, marks: dict[str, Mark]) -> None:
    """Draw every pool as a bar of its GPUs, cut into islands."""
    separate = plan.island_count <= SEPARATE
    ax.set_xlim(0, max(pool.available for pool in problem.pools))
    ax.set_ylim(len(problem.pools) - 0.4, -0.6)
    for row, pool in enumerate(problem.pools):
        bottom, start = row - BAR / 2, 0
        for group in plan.groups:
            gpus, mark = group.gpus_of(pool.name), marks[group.name]
            if not gpus:
                continue
            whole = gpus * group.islands
            boxes, width = (group.islands, gpus) if separate else (1, whole)
            for i in range(boxes):
                corner = (start + i * width, bottom)
                ax.add_patch(Rectangle(corner, width, BAR, facecolor=mark.colour, **ISLAND))
            short = f"{mark.letter}  {group.islands} x {gpus}"
            texts = [f"{short} {_gpus(gpus)}", short, mark.letter]
            _inside(ax, (start, row), whole, texts, (mark.ink, mark.colour))
            start += whole
        for end, text, style in (
            (pool.count, "not used", UNUSED),
            (pool.available, "not rented", RENTABLE),
        ):
            if start < end:
                ax.add_patch(Rectangle((start, bottom), end - start, BAR, **style))
                _inside(ax, (start, row), end - start, [text], ("0.3", style["facecolor"]))
                start = end
    names = [f"{safe(pool.name)}\n{pool.accelerator.name}" for pool in problem.pools]
    ax.set_yticks(range(len(problem.pools)), names)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("GPUs")
    box = "island" if separate else "group of islands"
    ax.set_title(f"One box for each {box}, as wide as its GPUs", loc="left", fontsize=10)


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"


def _inside(
    ax: Axes, at: tuple[float, float], width: float, texts: list[str], colours: tuple[Any, Any]
) -> None:
    """Write the longest of the texts that fits into ``width`` of the x axis, or none.

    ``colours``: of the text, and of the patch behind it that keeps borders of boxes away.
    """
    ink, behind = colours
    room = abs(ax.transData.transform((width, 0))[0] - ax.transData.transform((0, 0))[0])
    middle = at[0] + width / 2
    for text in texts:
        label = ax.text(middle, at[1], text, ha="center", va="center", color=ink, fontsize=8)
        label.set_bbox({"facecolor": behind, "edgecolor": "none", "pad": 1.5})
        if label.get_window_extent().width < room - MARGIN:
            return
        label.remove()


def draw_key(ax: Axes, plan: Plan, shown: tuple[Group, ...], marks: dict[str, Mark]) -> None:
    """Write one line per group: letter, what it is, how much it carries and what binds it."""
    ax.set_axis_off()
    lines = len(shown) + 2
    ax.set_ylim(lines, -0.3)
    ax.set_xlim(0, 1)
    heads = ("", "phase", "pool, model", "islands", "parallelism", "req/s", "used, bound by")
    _line(ax, 0.5, heads, "0.4")
    for line, group in enumerate(shown, start=1):
        mark = marks[group.name]
        ax.add_patch(Rectangle((0.0, line + 0.12), 0.034, 0.76, facecolor=mark.colour))
        middle = line + 0.5
        ax.text(0.017, middle, mark.letter, color=mark.ink, fontsize=8, ha="center", va="center")
        default = group.domain_class == DEFAULT_CLASS
        place = group.pool if default else f"{group.pool} in {group.domain_class}"
        place = safe(f"{place}, {group.model}")
        cells = (
            "",
            str(group.phase),
            place if len(place) <= LONGEST_CELL else place[: LONGEST_CELL - 1] + "\u2026",
            f"{group.islands} x {group.gpus} {_gpus(group.gpus)}",
            str(group.parallelism),
            f"{sum(group.rates):,.1f}",
            f"{group.utilisation:.0%} {safe(group.binding)}",
        )
        _line(ax, middle, cells, "black")
    if more := len(plan.groups) - len(shown):
        ax.text(0.05, lines - 0.5, f"... and {more} more groups", fontsize=8)


def _line(ax: Axes, y: float, cells: tuple[str, ...], colour: str) -> None:
    for i, (x, cell) in enumerate(zip(COLUMNS, cells, strict=True)):
        side: Any = "right" if i == NUMBERS else "left"
        ax.text(x, y, cell, ha=side, va="center", fontsize=8, color=colour)


def draw_lengths(axes: list[Axes], model: str, plan: Plan, marks: dict[str, Mark]) -> None:
    """Draw how often each input length occurs, and which groups serve it."""
    routes = sorted((r for r in plan.routes if r.model == model), key=lambda r: r.range)
    while len(routes) > 1 and routes[-1].share == 0:
        routes.pop()  # beyond the stated workload: it would squeeze what matters
    first = routes[0].range  # a logarithm does not show 0
    least = first.min if first.min > 1 else max(1.0, first.max / 2)
    edges = np.array([least, *(route.range.max for route in routes)], dtype=np.float64)
    density, *sides = axes
    shares = np.array([route.share for route in routes])
    heights = shares / np.diff(np.log(edges))
    density.stairs(heights / heights.max(), edges, fill=True, color="0.75")
    density.set_ylim(0, 1.08)
    density.set_yticks([])
    density.set_ylabel("requests", rotation=0, ha="right", va="center")
    density.spines["left"].set_visible(False)
    density.set_title(f"{safe(model)}: who serves which input length", loc="left", fontsize=10)
    for ax, stage in zip(sides, STAGES, strict=True):
        _stack(ax, routes, edges, stage, marks)
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xlim(edges[0], edges[-1])
        ax.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.tick_params(axis="x", labelbottom=ax is axes[-1])
    axes[-1].set_xlabel("input length [tokens], logarithmic; the first range starts at 0")


def _stack(
    ax: Axes, routes: list[Route], edges: FloatArray, stage: Phase, marks: dict[str, Mark]
) -> None:
    """Draw the share of each range's requests by group, stacked to one."""
    names = [n for n in marks if any(getattr(p, stage) == n for r in routes for p in r.pairs)]
    base = np.zeros(len(routes))
    narrow = np.diff(np.log(edges)) < NARROW * np.log(edges[-1] / edges[0])
    borders = np.where(narrow, 0.0, 0.3)
    for name in names:
        part = np.array(
            [
                sum(p.weight for p in route.pairs if getattr(p, stage) == name) / MILLION
                for route in routes
            ]
        )
        mark = marks[name]
        some = part > 0
        style: Any = {"color": mark.colour, "edgecolor": "white", "linewidth": borders[some]}
        boxes = (edges[:-1][some], part[some], np.diff(edges)[some], base[some])
        ax.bar(*boxes, align="edge", **style)
        _name_area(ax, edges, base, part, mark)
        base += part
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    ax.set_ylabel(SIDES[stage], color=BASE[stage])


def _name_area(ax: Axes, edges: FloatArray, base: FloatArray, part: FloatArray, mark: Mark) -> None:
    """Write the group's letter into every run of ranges where its area is large and level."""
    whole = np.log(edges[-1] / edges[0])
    level = [(round(base[i], 1), round(part[i], 1)) for i in range(len(part))]
    for _, run in groupby(range(len(part)), key=lambda i: level[i]):
        ranges = list(run)
        least, most = edges[ranges[0]], edges[ranges[-1] + 1]
        height = float(base[ranges[0]] + part[ranges[0]] / 2)
        if part[ranges[0]] >= TALL and np.log(most / least) >= WIDE * whole:
            middle = float(np.sqrt(least * most))
            ax.text(middle, height, mark.letter, color=mark.ink, ha="center", va="center")
